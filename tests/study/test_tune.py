"""The best value of a setting wins for all seeds, once, and what finding it spent counts with every run."""

import json
import math

import numpy as np
import pytest

import privfl as pf
from privfl.study.results import Results
from privfl.study.store import Store
from privfl.study.tables import Format, write_table
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


def test_exact_figures_of_validation_rows_are_not_told_where_noisy_picks_were_paid_for(tmp_path):
    for epsilon, told in ((0.25, []), (None, [["learning_rate = 0.5", "learning_rate = 1"]])):
        tuning = Tuning(RATE, (0.5, 1.0), choice_epsilon=epsilon)
        found = study(tuning, title="t", seeds=1).run(tmp_path / str(epsilon), processes=1)
        written = json.loads(write_table(found, Format.json))["tuned"][0]["scores"]
        assert [sorted(rung) for rung in written] == told
        kept = Store(tmp_path / str(epsilon)).told("t")["tuned"][0]["scores"]
        assert [sorted(rung) for rung in kept] == told


def test_exact_figures_that_an_earlier_version_kept_beside_noisy_picks_are_not_told(tmp_path):
    study(Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25), title="t", seeds=1).run(tmp_path, processes=1)
    store = Store(tmp_path)
    told = store.told("t")
    told["tuned"][0]["scores"] = [{"learning_rate = 0.5": 0.9}]
    store.tell("t", told)
    assert [one["scores"] for one in Results.of(store, "t").tuned.values()] == [[]]


def test_picks_of_an_earlier_form_of_the_study_count_with_their_trials(tmp_path):
    base = {**BASE, "dataset": {"name": "digits", "seed": 0}, "privacy": {"training": {"sample_rate": 0.1}}}

    def spent(values, epsilon):
        tuning = Tuning(RATE, values, choice_epsilon=epsilon)
        (row,) = (
            pf.Study(base, title="edited", seeds=1, epsilon=(2.0,), tuning=tuning).run(tmp_path, processes=1).rows()
        )
        return row.epsilons["sample/public"]

    first = spent((0.5, 1.0), 3.0)
    edited = spent((0.5, 1.0), 0.25)
    assert edited > first + 0.1  # both picks, from the same trials
    assert spent((0.5, 1.0), 0.25) == edited  # the same pick is not made again
    assert spent((0.5, 0.7), 0.25) > edited + 0.05  # a third, and the trial that is in it no more


def test_noisy_picks_count_rows_that_the_released_model_gets_right_and_nothing_else():
    with pytest.raises(pf.ConfigError, match="noisy picks count rows that the released model gets right"):
        study(Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25), metric="personal_accuracy")
    tuning = Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25)
    both = {"personal_accuracy": 0.9, "local_accuracy": 0.5, "local_macro_f1": 0.4}
    assert tuning.counted(both, "accuracy") == 0.5
    assert tuning.counted({"test_accuracy": 0.7, "test_macro_f1": 0.6}, "test_accuracy") == 0.7
    assert math.isnan(tuning.counted({"personal_accuracy": 0.9}, "accuracy"))


def tokens(path):
    inputs = np.random.default_rng(0).integers(1, 8, (60, 6))
    np.savez(path, inputs=inputs, targets=np.roll(inputs, -1, 1), clients=np.arange(60) // 15)
    return {"file": str(path), "kind": "next-token", "vocabulary": 8}


def test_where_an_accuracy_is_of_tokens_noisy_picks_are_refused_before_any_trial(tmp_path):
    base = {**BASE, "arrays": tokens(tmp_path / "tokens.npz"), "model": {"name": "next-token-lstm"}}
    del base["partition"]
    tuned = pf.Study(base, title="tokens", seeds=1, tuning=Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25))
    with pytest.raises(pf.ConfigError, match="an accuracy in next-token is no share of rows"):
        tuned.run(tmp_path / "out", processes=1)
    assert list((tmp_path / "out").glob("runs/*")) == []


def test_a_study_on_ones_own_arrays_is_tuned_and_says_what_it_spent(tmp_path):
    inputs = np.random.default_rng(0).normal(size=(160, 5)).astype(np.float32)
    np.savez(tmp_path / "own.npz", inputs=inputs, targets=(inputs[:, 0] > 0).astype(int), clients=np.arange(160) // 40)
    base = {**BASE, "arrays": {"file": str(tmp_path / "own.npz")}, "privacy": {"training": {"sample_rate": 0.2}}}
    del base["partition"]
    tuned = Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25)
    (row,) = pf.Study(base, title="own", seeds=1, epsilon=(2.0,), tuning=tuned).run(tmp_path / "o", processes=1).rows()
    assert 2.25 < row.epsilons["sample/public"] < math.inf


def test_clients_own_models_are_not_counted_in_a_noisy_pick(tmp_path):
    tuned = study(Tuning(RATE, (0.5, 1.0), choice_epsilon=0.25))
    own = pf.Study({**BASE, "algorithm": {"name": "local"}}, title="own", seeds=1, tuning=tuned.tuning)
    with pytest.raises(pf.ConfigError, match="local releases none: its figures are those of clients' own models"):
        own.run(tmp_path, processes=1)
