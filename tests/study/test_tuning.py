"""Tuning: trials see training data alone, the best value wins for all seeds, and what that spent is stated."""

import re

import pytest

import privfl as pf
from privfl.errors import ConfigError
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
