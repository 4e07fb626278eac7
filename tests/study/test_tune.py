"""The best value of a setting wins for all seeds, once, and what finding it spent counts with every run."""

import math

import privfl as pf
from privfl.study.store import Store
from privfl.study.tuning import FIRST_SEED, Tuning

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


def test_what_tuning_spent_counts_with_every_run(tmp_path):
    base = {**BASE, "dataset": {"name": "digits", "seed": 0}, "privacy": {"training": {"sample_rate": 0.1}}}
    settings = {"title": "private", "seeds": 1, "epsilon": (2.0,)}
    alone = pf.Study(base, **settings).run(tmp_path / "alone", processes=1).rows()[0]
    exact = pf.Study(base, **settings, tuning=Tuning(RATE, (0.5, 1.0))).run(tmp_path / "exact", processes=1)
    (row,) = exact.rows()
    assert set(row.epsilons.values()) == {math.inf}
    assert any("exact figures on validation rows" in why for why in next(iter(exact.tuned.values()))["reasons"])
    assert exact.members[0].metrics["epsilon of the run alone sample/public"] <= 2
    assert exact.members[0].metrics["epsilon sample/public"] == math.inf
    noisy = Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25)
    (row,) = pf.Study(base, **settings, tuning=noisy).run(tmp_path / "noisy", processes=1).rows()
    spent = row.epsilons["sample/public"]
    assert alone.epsilons["sample/public"] + 0.25 < spent <= 3 * 2 + 0.25 + 1e-6  # two trials, a run and a pick
    assert row.epsilons["sample/server"] == row.epsilons["client/public"] == math.inf
