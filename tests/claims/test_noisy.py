"""With noise, a claim that holds is not refuted, and one that does not hold is."""

from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from audits.fuzz.exact import cells
from audits.fuzz.experiment import Data, Experiment
from audits.fuzz.noisy import measure, quiet
from audits.fuzz.tape import Tape
from audits.fuzz.worlds import train
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


def asking_nobody(experiment):
    """``experiment`` with other noise keys, for which no round asks anybody; coins differ by the version of Python."""
    for key in count(experiment.noise_key):
        tried = replace(experiment, noise_key=key)
        if ("client", "server") in cells(train(tried, "with", Tape(), price=True)):
            yield tried


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
    for experiment in islice(asking_nobody(Experiment.from_json(text)), 10):
        found = {one.cell: one for one in measure(experiment, trials=2, false_alarm=FALSE_ALARM)}
        assert not any(one.refuted for one in found.values())
        assert found["sample/server"].claimed == 0
        if found["client/server"].claimed == float("inf"):  # there was a doubt, and its runs made claims of their own
            return
    pytest.fail("a few runs of ten experiments raised no doubt")
