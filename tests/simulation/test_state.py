"""Where a run stands is what its checkpoint holds: every field of it, and nothing besides."""

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.errors import DataError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import everywhere, pure_cost
from privfl.privacy.sizes.known_sizes import SIZE
from privfl.simulation.checkpoint import read_checkpoint
from privfl.simulation.health import Health
from privfl.simulation.plan import RunSettings, prepare
from privfl.simulation.settings import Schedule
from privfl.simulation.state import State


@pytest.fixture(scope="module")
def plan():
    task = pf.load("digits", partition=pf.Dirichlet(clients=6, alpha=1.0), model="logistic")
    size = pf.LaplaceSize(epsilon=3.0, bound=400, lower=50, refresh="every_round")
    privacy = pf.Privacy(size=size, max_size_error=50, noise_key=1)
    return prepare(
        RunSettings(
            task=task,
            algorithm=pf.FedSampling(300),
            schedule=Schedule(4),
            training=pf.LocalTraining(),
            privacy=privacy,
            cohort=pf.Everyone(),
            availability=pf.Always(),
            execution=pf.Execution(device="cpu"),
            record=(),
        )
    )


def underway(plan):
    """A state in which no field is what a run begins with."""
    state = State.start(plan)
    state.round = 3
    state.server = {**state.server, "parameters": torch.randn(650), "a/b": torch.tensor(0.3, dtype=torch.float64)}
    state.client_state = {4: {"own": torch.randn(3)}, 0: {"own/part": torch.zeros(2, dtype=torch.int64)}}
    state.sizes.ask(2, np.array([1, 4]), plan.source)
    state.ledger.record(everywhere(SIZE, pure_cost(0.5)), [2], 7)
    state.metrics = [{"round": round, "clients": 5, "epsilon": {"sample/public": 1.5}} for round in range(3)]
    state.dropped = Counter({"sent no 'update'": 2})
    state.health = Health(3, 1, 18, Counter({"sent no 'update'": 4}), moved=True)
    state.failure, state.ended, state.stopped = "the model never moved", True, True
    return state


def told(state):
    """Every field of ``state`` as values that can be compared."""
    values = {field.name: getattr(state, field.name) for field in fields(State)}
    sizes = values.pop("sizes")
    tensors = {("server", name): tensor for name, tensor in values.pop("server").items()}
    for client, own in values.pop("client_state").items():
        tensors |= {(client, name): tensor for name, tensor in own.items()}
    return {
        **values,
        "ledger": values["ledger"].state(),
        "responses": sizes.responses.state(),
        "weights": sizes.weights(np.arange(6)).tolist(),
        "tensors": {key: (str(value.dtype), value.tolist()) for key, value in tensors.items()},
    }


def test_a_checkpoint_stores_every_field_and_nothing_else(plan):
    stored = underway(plan).checkpoint()
    kinds = {name.split("/")[0] for name in stored.tensors}
    assert {"round", *kinds, *stored.meta} == {field.name for field in fields(State)}


def test_every_field_comes_back_from_disk(plan, tmp_path):
    state = underway(plan)
    (tmp_path / "latest.npz").write_bytes(state.checkpoint().encode(None))
    restored = State.load(read_checkpoint(tmp_path / "latest.npz")[0], plan)
    fresh = State.start(plan)
    for name, value in told(state).items():
        assert told(restored)[name] == value
        assert told(fresh)[name] != value, f"{name} is what a run begins with: the comparison shows nothing"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"round": 5}, "after round 5 is not one of this run: the run has 4 rounds"),
        ({"metrics": []}, "it holds the metrics of 0 rounds"),
        ({"metrics": [{"round": 1}] * 3}, "it holds the metrics of 3 rounds"),
        ({"ledger": Ledger(5, ("update",))}, "its ledger is of 5 clients, and the run has 6"),
        ({"client_state": {6: {"own": torch.zeros(3)}}}, "client 6 keeps something in it, and the run has 6 clients"),
        ({"server": {"parameters": torch.zeros(7)}}, r"its parameters have shape \(7,\), and the model has \(650,\)"),
    ],
)
def test_a_checkpoint_of_another_run_is_one_sentence(plan, change, told):
    state = underway(plan)
    for name, value in change.items():
        setattr(state, name, value)
    with pytest.raises(DataError, match=told):
        State.load(state.checkpoint(), plan)


@pytest.mark.parametrize("name", ["ledger", "sizes", "metrics", "dropped"])
@pytest.mark.parametrize("value", [None, 3, [1], {"a": "b"}, "…"])
def test_a_checkpoint_whose_parts_are_odd_is_one_sentence(plan, name, value):
    stored = underway(plan).checkpoint()
    with pytest.raises(DataError, match="is not one of this run"):
        State.load(replace(stored, meta={**stored.meta, name: value}), plan)


def test_what_is_restored_charges_the_ledger_that_was_restored(plan, tmp_path):
    restored = State.load(underway(plan).checkpoint(), plan)
    restored.sizes.ask(3, np.arange(6), plan.source)
    assert restored.sizes.cost in restored.ledger.releases


def test_a_run_begins_with_the_same_state_again(plan):
    assert told(State.start(plan)) == told(State.start(replace(plan)))
