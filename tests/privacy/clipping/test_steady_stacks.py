"""A client in a stack is rounded alike, whoever is stacked with it and however long their batches are."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from audits.fuzz.own_parts import MODELS
from privfl.algorithms.fedavg import FedAvg
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.lengths import Lengths, PublicRows
from privfl.privacy.clipping.steady_stacks import LEAST, Rounding, SteadyStacks
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.noise.source import NoiseSource


def plain_sequence():
    """What takes its steps without autograd, in stacks too."""
    layers = [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))


PLAIN = SimpleNamespace(shape=(1, 9, 9), build=plain_sequence)
SIZES = (4, 3, 60, 5, 1)
CHAOS = LocalTraining(batch_size=50, learning_rate=86.0, epochs=3)
"""At this learning rate training diverges, and a last bit grows to any size."""


def update_of_the_first(name, others, *, steady):
    """What client 0 uploads when it is trained in one stack with ``others``."""
    model = {**MODELS, "plain sequence": PLAIN}[name]
    inputs = torch.randn((sum(SIZES), *model.shape), generator=torch.Generator().manual_seed(1)) * 1e3 + 1e6
    targets = torch.arange(sum(SIZES)) % 3
    clients = ClientIndex.of([np.arange(*ends) for ends in pairwise(np.cumsum([0, *SIZES]))])

    def build(seed):
        torch.manual_seed(seed)
        return model.build()

    task = Task("t", inputs, targets, clients, inputs[:2] * 0, targets[:2], 3, build, name)
    algorithm = FedAvg(weighting="uniform")
    with LoopEngine(task, algorithm, CHAOS, RoundChannel.bare(algorithm.fields()), workers=1) as loop:
        loop.lengths = loop.steady_lengths() if steady else None
        engine = VectorisedEngine(loop, 8)
        received = {"parameters": flatten(build(0))}
        results = engine.train([0, *others], received, RoundContext(0, 0, NoiseSource.from_key(0), {}))
        return next(one.upload["update"] for one in results if one.client == 0)


COHORTS = ((), (1,), (2,), (1, 4), (1, 2, 3, 4))


@pytest.mark.parametrize("name", ["convolution", "contrast", "layer-norm", "plain sequence"])
def test_the_update_of_a_client_has_the_same_bits_whoever_is_stacked_with_it(name):
    alone = update_of_the_first(name, (), steady=True)
    for others in COHORTS:
        assert torch.equal(update_of_the_first(name, others, steady=True), alone)


def test_without_lengths_it_moves_with_the_others():
    updates = [update_of_the_first("convolution", others, steady=False) for others in COHORTS]
    assert max(float((one - updates[0]).norm()) for one in updates) > 0


def stacks(*, sums=None, shown=None, name):
    public = PublicRows(torch.ones(4), torch.randn(32, 3, generator=torch.Generator().manual_seed(0)), torch.ones(32))
    return SteadyStacks(Lengths(public), lambda: None, Rounding((name,), sums, shown), {})


def added_up(parameters, batch):
    return batch.rows_only(batch.inputs.double()).sum(1)


def test_stacks_that_round_alike_stay_whole_and_a_client_alone_gets_a_companion():
    found = stacks(sums=added_up, name="alike")
    assert found.groups(1, 8) == [(slice(0, 1), LEAST)]
    assert found.groups(5, 8) == [(slice(0, 5), 5)]


def test_a_stack_that_rounds_otherwise_is_cut_into_pairs():
    def by_height(parameters, batch):
        return added_up(parameters, batch) * (1 + 1e-9 * (len(parameters) > LEAST))

    groups = stacks(sums=by_height, name="pairs").groups(5, 8)
    assert groups == [(slice(0, 2), 2), (slice(2, 4), 2), (slice(4, 5), 2)]


def test_it_is_cut_into_the_largest_power_of_two_that_does_not():
    def by_height(parameters, batch):
        return added_up(parameters, batch) * (1 + 1e-9 * (len(parameters) > 5))

    groups = stacks(sums=by_height, name="fours").groups(9, 8)
    assert groups == [(slice(0, 4), 4), (slice(4, 8), 4), (slice(8, 9), 4)]


def test_sums_over_long_batches_are_cut_at_the_same_rows_for_everybody():
    found = stacks(sums=added_up, name="long")
    assert found.length(500) == found.length(65) == 64
    assert found.length(20) == 20


def test_a_sum_that_depends_on_the_padding_is_formed_in_passes_of_the_reference():
    def by_length(parameters, batch):
        return added_up(parameters, batch) * (1 + 1e-9 * batch.inputs.shape[1])

    assert stacks(sums=by_length, name="padding").length(20) == 64


def test_rows_that_are_shown_decide_the_length_of_what_is_clipped():
    def shown(parameters, batch):
        return batch.inputs.double().norm(dim=2) * (1 + 1e-9 * (batch.inputs.shape[1] < 16))

    assert [stacks(sums=added_up, shown=shown, name="rows").length(rows) for rows in (3, 16, 40)] == [16, 16, 40]
