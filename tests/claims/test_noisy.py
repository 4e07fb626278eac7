"""With noise, a claim that holds is not refuted, and one that does not hold is."""

from pathlib import Path

import pytest

from audits.fuzz.experiment import Data, Experiment
from audits.fuzz.noisy import measure, quiet
from privfl.engine import loop
from tests.claims.planted.inside import changed

FALSE_ALARM = 1e-6
EXPERIMENT = quiet(
    Experiment(
        dpsgd={"noise_multiplier": 8.0, "sample_rate": 0.5},
        training={"batch_size": 2},
        data=Data(rows=(2, 3), client=1, extra="huge"),
    )
)


def bare_sizes():
    """Every upload holds its client's size."""
    train = loop.LoopEngine._train_one

    def leaks(self, space, client, phase, received, context):
        result = train(self, space, client, phase, received, context)
        if not self.task.name.startswith("probe"):
            result.upload["update"].add_(100.0 * len(self.task.clients[client]))
        return result

    return [(loop.LoopEngine, "_train_one", leaks)]


def test_a_claim_that_holds_is_not_refuted():
    cells = measure(EXPERIMENT, trials=30, false_alarm=FALSE_ALARM)
    assert [one.cell for one in cells] == ["sample/server", "sample/public"]
    assert all(0 < one.claimed < 1.5 and not one.refuted for one in cells)


@pytest.mark.slow
def test_a_claim_that_does_not_hold_is_refuted():
    with changed(bare_sizes):
        cells = measure(EXPERIMENT, trials=60, false_alarm=FALSE_ALARM)
    assert all(one.refuted for one in cells)


@pytest.mark.slow
def test_a_claim_about_a_run_that_asked_nobody_is_not_held_against_runs_that_asked_somebody():
    """Its statement says ε = 0 of whole clients, rightly: the draw depends on no data. Other draws have ε = ∞."""
    text = (Path(__file__).parent / "nobody_asked.json").read_text(encoding="utf-8")
    cells = {one.cell: one.claimed for one in measure(Experiment.from_json(text), trials=2, false_alarm=FALSE_ALARM)}
    assert cells["client/server"] == float("inf")
    assert cells["sample/server"] == 0
