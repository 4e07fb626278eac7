"""What a callback sees of a run, and that looking changes nothing."""

from dataclasses import FrozenInstanceError

import pytest
import torch

import privfl as pf


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.IID(clients=4), model="logistic")


def test_a_callback_sees_the_run_after_every_round(task, tmp_path):
    seen = []

    def look(simulation, line):
        logits = simulation.engine.logits(simulation.server["parameters"], task.test_inputs)
        accuracy = float((logits.argmax(1) == task.test_targets).double().mean())
        assert accuracy == pytest.approx(line["test_accuracy"])
        assert simulation.metrics[-1] == line
        assert simulation.round == len(simulation.metrics) == line["round"] + 1
        seen.append(simulation)

    run = pf.simulate(task, pf.Ditto(), rounds=3, out=tmp_path / "run", callbacks=[look])
    last = seen[-1]
    assert [one.round for one in seen] == [1, 2, 3]
    assert torch.equal(last.server["parameters"], run.parameters)
    assert last.client_state.keys() == run.client_state.keys() == set(range(4))
    assert (last.schedule.rounds, last.algorithm.name, last.path) == (3, "ditto", tmp_path / "run")
    assert len(last.task.clients) == 4


def test_nothing_is_written_without_a_folder(task):
    paths = []
    pf.simulate(task, pf.FedAvg(), rounds=1, callbacks=[lambda simulation, line: paths.append(simulation.path)])
    assert paths == [None]


def test_a_callback_cannot_take_the_state_away_from_the_run(task):
    def meddle(simulation, line):
        simulation.server["parameters"].fill_(7.0)
        simulation.server.clear()
        simulation.client_state.clear()
        with pytest.raises(FrozenInstanceError):
            simulation.round = 0

    settings = {"rounds": 3, "execution": pf.Execution(engine="loop")}
    watched = pf.simulate(task, pf.Ditto(), callbacks=[meddle], **settings)
    assert torch.equal(watched.parameters, pf.simulate(task, pf.Ditto(), **settings).parameters)
