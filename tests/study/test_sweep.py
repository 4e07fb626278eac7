"""What runs spent together is never less than what each of them spent, whatever is composed."""

import math

import numpy as np
import pytest

import privfl as pf
from privfl.study.sweep import together
from privfl.study.tuning import Tuning
from tests.study.stores import small


def test_where_the_value_decides_how_often_something_is_released_nothing_is_claimed(tmp_path):
    base = small(tmp_path)
    tuning = Tuning("training.epochs", (1, 3), choice_epsilon=0.5)
    found = pf.Study(base, title="t", metric="test_accuracy", tuning=tuning).run(tmp_path / "out", processes=1)
    assert set(found.rows()[0].epsilons.values()) == {math.inf}
    (told,) = found.tuned.values()
    assert any("or the same ones more often, for other values of training.epochs" in one for one in told["reasons"])


@pytest.mark.parametrize("delta", [0.01, 1e-5])
def test_an_empty_claim_stays_empty_when_runs_are_taken_together(tmp_path, delta):
    generator = np.random.default_rng(0)
    task = pf.Task.from_arrays(
        generator.normal(size=(2000, 4)).astype(np.float32),
        generator.integers(0, 2, 2000),
        partition=pf.IID(clients=4),
        model="logistic",
    )
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=50.0, sample_rate=0.01), target_delta=delta)
    for name in "ab":
        pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=privacy, out=tmp_path / "runs" / name)
    found = together(tmp_path / "runs", ["a", "b"])
    if delta == 0.01:
        assert found.finite() == {}
        assert "ε would be 0 only because delta = 0.01" in found.cell("sample", "public").reasons[0]
    else:
        assert found.finite().keys() == {"sample/server", "sample/public"}


def test_of_runs_on_different_data_the_largest_decides_whether_delta_is_too_large(tmp_path):
    base = small(tmp_path)
    privacy = {"training": {"noise_multiplier": 1.0, "sample_rate": 0.1}, "target_delta": 0.004}
    found = pf.Study({**base, "privacy": privacy}, title="t", metric="test_accuracy").run(tmp_path / "out", processes=1)
    caveats = together(tmp_path / "out" / "runs", [one.run for one in found.members]).caveats
    assert sum("above one over the number of examples" in one for one in caveats) == 1
