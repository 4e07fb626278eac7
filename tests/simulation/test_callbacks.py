"""What a callback sees of a run, and that looking changes nothing."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import privfl as pf
from privfl.privacy.accounting.claims import make_statement


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


def stop_after(rounds):
    """A callback that ends a run after so many ``rounds``."""

    def stop(simulation, line):
        if simulation.round == rounds:
            raise StopIteration

    return stop


DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1), noise_key=7)


def private(task, rounds, **settings):
    return pf.simulate(task, pf.FedAvg("uniform"), rounds=rounds, privacy=DPSGD, seed=3, **settings)


def test_a_callback_ends_a_run_whose_end_no_round_is_charged_for(task):
    seen = []
    run = private(task, 5, callbacks=[stop_after(2), lambda simulation, line: seen.append(line)])
    whole = private(task, 2)
    assert len(run.metrics) == len(seen) == run.summary["rounds"] == 2  # every callback is told of the last round
    assert run.statement.finite() == run.metrics[-1]["epsilon"] == {} != whole.statement.finite()
    assert torch.equal(run.parameters, whole.parameters)
    assert run.summary["stopped"] == "callback"
    assert run.summary["warnings"][-1] == "The run was stopped by a callback after round 2 of 5."
    told = " ".join(str(run.statement).split())
    assert "a callback stopped the run after round 2 of 5, and when it did may tell of the data what no round" in told


def test_a_callback_that_stops_in_the_last_round_stops_nothing(task):
    run = private(task, 2, callbacks=[stop_after(2)])
    assert (run.summary["stopped"], run.summary["warnings"]) == ("finished", [])
    assert run.statement.finite() == private(task, 2).statement.finite()


def test_a_run_that_a_callback_ended_stays_ended_until_more_rounds_are_asked_for(task, tmp_path):
    here = {"out": tmp_path / "run"}
    first = private(task, 3, callbacks=[stop_after(2)], **here)
    again = private(task, 3, resume=True, **here)
    assert (again.summary, again.statement) == (first.summary, first.statement)
    longer = private(task, 4, resume=True, **here)
    assert (longer.summary["stopped"], longer.summary["rounds"]) == ("finished", 4)
    assert torch.equal(longer.parameters, private(task, 4).parameters)
    for run in (first, longer):  # that it was stopped has told what it has told
        assert run.statement.finite() == {}
        assert "a callback stopped the run after round 2 of 3" in " ".join(str(run.statement).split())
        assert math.isinf(make_statement(run.ledger, 1e-5, reproducible_noise=True).cell("sample", "server").epsilon)


def test_lines_that_a_callback_sees_are_copies(task, tmp_path):
    seen = []

    def scribble(simulation, line):
        for one in (line, simulation.metrics[-1], *simulation.metrics[:1]):
            one["epsilon"]["sample/server"] = math.nan
            one["mine"] = torch.zeros(1)
            del one["round"]
        seen.append([one["round"] for one in simulation.metrics])

    private(task, 2, callbacks=[scribble], out=tmp_path / "run")
    run = private(task, 3, resume=True, out=tmp_path / "run")
    assert seen == [[0], [0, 1]]
    assert run.metrics == private(task, 3).metrics


def whiten(simulation, line):
    if simulation.round == 2:
        simulation.task.inputs.sub_(simulation.task.inputs.mean(0))


def relabel(simulation, line):
    if simulation.round == 2:
        simulation.task.targets.numpy()[:] = 0  # past PyTorch, which counts no such write


def swap(simulation, line):
    if simulation.round == 2:
        simulation.task.clients.rows.copy_(simulation.task.clients.rows.flip(0))


@pytest.mark.parametrize("change", [whiten, relabel, swap])
def test_a_callback_that_changes_what_clients_train_on_takes_the_guarantees(change):
    def run(rounds):
        digits = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
        copied = replace(digits, inputs=digits.inputs.clone(), targets=digits.targets.clone())
        return private(copied, rounds, callbacks=[change])

    assert run(2).statement.finite()  # after the last round it changes nothing that is trained on
    found = run(3).statement
    assert found.finite() == {}
    assert "a callback changed what clients train on after round 2" in " ".join(str(found).split())


def test_any_other_exception_of_a_callback_interrupts_the_run_which_can_be_resumed(task, tmp_path):
    def fail(simulation, line):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        private(task, 3, callbacks=[fail], out=tmp_path / "run")
    resumed = private(task, 3, resume=True, out=tmp_path / "run")
    assert torch.equal(resumed.parameters, private(task, 3).parameters)
