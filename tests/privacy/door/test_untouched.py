"""A function that a step hands to the door changes nothing that it holds, or the step could count its calls."""

import itertools
import random
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.algorithms.base import descend
from privfl.algorithms.label_skew.calibrated_logits import rewritten
from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from privfl.privacy.door.untouched import held_by, untouched
from privfl.randomness import process_generators

CALLS = [0]


class Counter:
    __slots__ = ("calls", "numbers")

    def __init__(self):
        self.calls, self.numbers = 0, random.Random(4)


class Slow:
    def __init__(self):
        self.inner = {
            "counter": Counter(),
            "array": np.zeros(3),
            "tensor": torch.zeros(3),
            "numbers": itertools.count(),
            "numpy": np.random.default_rng(1),
            "torch": torch.Generator(),
        }
        self.last, self.seen = deque([1], maxlen=1), set()

    def loss(self, network, inputs, targets):
        return F.cross_entropy(network(inputs), targets, reduction="none")


def raise_calls():
    CALLS[0] += 1


CHANGES = {
    "a number in slots": lambda slow: setattr(slow.inner["counter"], "calls", 1),
    "an array": lambda slow: slow.inner["array"].__setitem__(0, 1.0),
    "a tensor": lambda slow: slow.inner["tensor"].add_(1),
    "an iterator": lambda slow: next(slow.inner["numbers"]),
    "Python's random generator": lambda slow: slow.inner["counter"].numbers.random(),
    "NumPy's": lambda slow: slow.inner["numpy"].random(),
    "PyTorch's": lambda slow: torch.rand(1, generator=slow.inner["torch"]),
    "the end of a queue": lambda slow: slow.last.append(2),
    "a set": lambda slow: slow.seen.add(1),
    "a new field": lambda slow: setattr(slow, "more", 1),
    "a global": lambda slow: raise_calls(),
    "a tensor's numbers by way of data": lambda slow: slow.inner["tensor"].data.add_(1),
    "an attribute of its class": lambda slow: setattr(Counter, "made", getattr(Counter, "made", 0) + 1),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("held", ["a method", "a closure", "an argument", "a default"])
def test_what_a_function_changes_of_what_it_holds_is_seen(what, held):
    slow, change = Slow(), CHANGES[what]

    def closed(network, inputs, targets):
        return slow.loss(network, inputs, targets) * CALLS[0]

    def given(network, inputs, targets, own=None):
        return own.loss(network, inputs, targets) * CALLS[0]

    def by_default(network, inputs, targets, own=slow):
        return own.loss(network, inputs, targets) * CALLS[0]

    functions = {"a closure": closed, "an argument": partial(given, own=slow), "a default": by_default}
    function = functions.get(held, slow.loss)
    if held == "a method" and what == "a global":
        pytest.skip("the method reads no global that changes")
    assert held_by(function) == held_by(function)
    with pytest.raises(ConfigError, match="changes something outside of it that it holds"), untouched(function, None):
        change(slow)


GENERATORS = {
    "Python": random.random,
    "NumPy": lambda: np.random.rand(1),  # noqa: NPY002 - which everybody shares
    "NumPy, of whose pairs of normal numbers one is kept": lambda: np.random.randn(),  # noqa: NPY002
    "PyTorch": lambda: torch.rand(1),
}


@pytest.mark.parametrize("whose", GENERATORS)
def test_a_function_that_draws_from_a_generator_of_the_whole_process_is_refused(whose):
    with (
        pytest.raises(ConfigError, match=r"draws from a random generator of the whole process.*random_numbers"),
        untouched(lambda network, inputs, targets: 0, None),
    ):
        GENERATORS[whose]()


def test_the_second_of_a_pair_of_normal_numbers_is_seen_too():
    np.random.seed(0)  # noqa: NPY002 - which everybody shares
    np.random.randn()  # noqa: NPY002
    with pytest.raises(ConfigError, match="draws from"), untouched(lambda network, inputs, targets: 0, None):
        np.random.randn()  # noqa: NPY002


def test_models_that_privfl_builds_for_other_clients_meanwhile_are_not_blamed_on_it():
    def loss(network, inputs, targets):
        return 0

    with untouched(loss, None), process_generators():
        torch.rand(1)
    with pytest.raises(ConfigError, match="draws from"), untouched(loss, None):
        torch.rand(1)
    torch.manual_seed(3)
    with process_generators(), untouched(loss, None):
        torch.rand(1)
    with untouched(loss, None):
        within = process_generators()
        within.__enter__()
        torch.rand(1)
    within.__exit__(None, None, None)


@dataclass(frozen=True)
class Apart(pf.MOON):
    """A rival of one's own."""


def test_a_loss_of_privfl_around_the_tasks_own_is_not_watched_call_by_call():
    def usual(network, inputs, targets):
        return F.cross_entropy(network(inputs), targets, reduction="none")

    for algorithm, other, watched in [
        (pf.MOON(), usual, False),
        (Apart(), usual, True),  # its step may count
        (pf.MOON(), lambda *given: usual(*given), True),  # another loss than the task's
    ]:
        loss = rewritten(algorithm.contrasted, other)
        with pytest.raises(ConfigError, match="draws from") if watched else nullcontext(), untouched(loss, usual):
            torch.rand(1)
    with pytest.raises(ConfigError, match="draws from"), untouched(partial(usual, extra=usual), usual):
        torch.rand(1)


def test_the_tasks_own_loss_and_what_is_known_are_watched_elsewhere():
    slow = Slow()
    loss = slow.loss
    with untouched(loss, loss):
        slow.more = 1
    with untouched(cross_entropy, loss):
        pass


@dataclass(frozen=True)
class SkipsEmpty(pf.FedAvg):
    """Skips a step in which its loss was not asked: the batch was empty."""

    name: ClassVar[str] = "skips-empty"

    def step(self, local, received, batch, client, training):
        asked = []

        def loss(network, inputs, targets):
            asked.append(1)
            return F.cross_entropy(network(inputs), targets, reduction="none")

        gradient = client.gradient(loss, local["parameters"], batch)
        if asked:
            descend(local, gradient, training)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_step_cannot_learn_whether_its_loss_was_called(engine):
    inputs, targets = torch.randn(12, 4), torch.arange(12) % 3
    task = pf.Task.from_arrays(
        inputs, targets, partition=pf.IID(clients=2), model=lambda: nn.Linear(4, 3), test=(inputs + 1, targets)
    )
    with pytest.raises(ConfigError, match="the function loss changes something outside of it that it holds"):
        pf.simulate(
            task,
            SkipsEmpty(weighting="uniform"),
            rounds=1,
            training=pf.LocalTraining(batch_size=4, steps=2),
            privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0)),
            execution=pf.Execution(engine=engine, device="cpu"),
        )
