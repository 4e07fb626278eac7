"""Tuning: trials see training data alone, the best value wins for all seeds, and what that spent is stated."""

import math
import re

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.study.store import Store
from privfl.study.tuning import FIRST_SEED, Rung, Tuning

BASE = {
    "rounds": 4,
    "workers": 1,
    "evaluate_every": 2,
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "weighting": "uniform"},
    "training": {"batch_size": 36, "steps": 1},
}
RATE = "training.learning_rate"


def study(tuning: Tuning, **changes) -> pf.Study:
    return pf.Study(BASE, **{"title": "tuned", "seeds": 2, "tuning": tuning, **changes})


def test_the_budget_is_declared():
    assert Tuning(RATE, (1.0, 2.0, 3.0)).rungs(50) == [Rung(3, 50)]
    halving = Tuning(RATE, low=0.01, high=1.0, trials=9, method="successive-halving", factor=3)
    assert halving.rungs(50) == [Rung(9, 17), Rung(3, 50)]
    assert halving.picks(50) == 4
    assert all(0.01 <= value <= 1 for value in halving.candidates)
    assert halving.candidates == Tuning(RATE, low=0.01, high=1.0, trials=9).candidates
    assert halving.candidates != Tuning(RATE, low=0.01, high=1.0, trials=9, seed=1).candidates
    some = Tuning(RATE, tuple(range(20)), trials=3).candidates
    assert len(set(some)) == 3
    assert set(some) < set(range(20))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"parameter": "rounds"}, "which decides the schedule; tune a setting of training"),
        ({"parameter": "privacy.training.max_norm"}, "which decides what is spent"),
        ({"values": ()}, "has nothing to try; give values, or low, high and trials"),
        ({"values": (1.0,)}, "give two different ones"),
        ({"trials": 5}, "trials is 5 and there are 2 values"),
        ({"values": (), "low": 0.0, "high": 1.0, "trials": 3}, 'give low > 0, or scale = "linear"'),
        ({"values": (), "low": 2.0, "high": 1.0, "trials": 3}, "give low < high"),
        ({"low": 1.0}, "has values and low or high"),
        ({"validation": 1.0}, "validation"),
        ({"factor": 1}, "factor"),
        ({"choice_epsilon": 0.0}, "choice_epsilon"),
        ({"seeds": (3, 3)}, "a list of different ones"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(settings, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        Tuning(**{"parameter": RATE, "values": (0.1, 0.5), **settings})


def test_a_study_leaves_parameter_seeds_and_metric_to_tuning():
    rates = Tuning(RATE, (0.1, 0.5))
    with pytest.raises(ConfigError, match="which an axis sets too"):
        study(rates, grid={"training": {"learning_rate": [1.0]}})
    with pytest.raises(ConfigError, match=f"share {FIRST_SEED}; give tuning seeds of its own"):
        study(rates, seeds=(0, FIRST_SEED))
    with pytest.raises(ConfigError, match="chooses by 'epsilon sample/public'"):
        study(rates, metric="epsilon sample/public")
    with pytest.raises(ConfigError, match="noisy picks count rows"):
        study(Tuning(RATE, (0.1, 0.5), choice_epsilon=1.0), metric="test_loss")


def test_a_typo_in_the_parameter_is_found_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'training\.learning_rate'"):
        study(Tuning("training.learning_rat", (0.1, 0.5))).run(tmp_path, processes=1)
    with pytest.raises(ConfigError, match="1 of 2 runs are impossible; mend them") as caught:
        study(Tuning(RATE, (0.1, -0.5)), seeds=1).run(tmp_path, processes=1)
    assert "learning_rate = -0.5" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_the_best_value_wins_for_every_seed_and_is_not_tuned_again(tmp_path):
    one = study(Tuning(RATE, (1e-6, 0.5, 1e-5, 1e-4), method="successive-halving"))
    found = one.run(tmp_path, processes=1)
    (row,) = found.rows()
    assert row.tuned == "learning_rate = 0.5"
    assert row.mean > 0.6
    trials = Store(tmp_path).members("tuned/tuning")
    assert [trial.rounds for trial in trials] == [2] * 4 + [4] * 2
    assert {trial.seed for trial in trials} == {FIRST_SEED}
    began = [trial.began for trial in trials]
    (tmp_path / "tuned" / "study.log").unlink()
    again = one.run(tmp_path, processes=1)
    assert again.members == found.members
    assert [trial.began for trial in Store(tmp_path).members("tuned/tuning")] == began
    assert not (tmp_path / "tuned" / "study.log").exists()  # nothing was started
    (tmp_path / "results.sqlite").unlink()
    filled = one.run(tmp_path, processes=1)
    assert filled.tuned == found.tuned
    assert [member.metrics for member in filled.members] == [member.metrics for member in found.members]


def test_values_that_all_fail_make_their_runs_impossible_and_stop_no_others(tmp_path):
    bad = {"training": {"batch_size": 36, "steps": 1}, "max_upload_norm": 1e-12}
    one = study(
        Tuning(RATE, (0.1, 0.5)),
        variants=(pf.Variant("good", {}), pf.Variant("bad", bad)),
        seeds=1,
    )
    found = {member.method: member for member in one.run(tmp_path, processes=1).members}
    assert found["good"].state == "done"
    assert found["bad"].state == "impossible"
    assert found["bad"].reason.startswith("no trial of training.learning_rate came to a good end: the run ended")


def test_what_tuning_spent_counts_with_every_run(tmp_path):
    base = {**BASE, "dataset": {"name": "digits", "seed": 0}, "privacy": {"training": {"sample_rate": 0.1}}}
    settings = {"title": "private", "seeds": 1, "epsilon": (2.0,)}
    alone = pf.Study(base, **settings).run(tmp_path / "alone", processes=1).rows()[0]
    exact = pf.Study(base, **settings, tuning=Tuning(RATE, (0.5, 1.0))).run(tmp_path / "exact", processes=1)
    (row,) = exact.rows()
    assert set(row.epsilons.values()) == {math.inf}
    assert any("exact figures on validation rows" in why for why in next(iter(exact.tuned.values()))["reasons"])
    assert exact.members[0].metrics["epsilon sample/public"] <= 2  # of the run alone
    noisy = Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25)
    (row,) = pf.Study(base, **settings, tuning=noisy).run(tmp_path / "noisy", processes=1).rows()
    spent = row.epsilons["sample/public"]
    assert alone.epsilons["sample/public"] + 0.25 < spent <= 3 * 2 + 0.25 + 1e-6  # two trials, a run and a pick
    assert row.epsilons["sample/server"] == row.epsilons["client/public"] == math.inf
