"""Clients with about as many rows pass together, and nothing that they send tells it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from privfl.algorithms.fedavg import FedAvg
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping import by_length as cut
from privfl.privacy.clipping.by_length import A_PASS, by_length
from privfl.privacy.clipping.stacked import StackedBatch
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.noise.source import NoiseSource

ALL = list(range(8))


def test_where_a_row_is_few_numbers_all_pass_together():
    assert by_length([3, 20, 1, 9, 5, 7, 2, 8], 1) == [ALL]


def test_where_it_is_many_those_with_the_most_rows_are_apart():
    assert by_length([3, 20, 1, 9, 5, 7, 2, 8], A_PASS) == [[1, 3, 7, 5], [4, 0, 6, 2]]


def test_equally_long_batches_stay_together_however_large_their_rows():
    assert by_length([6] * 8, 10 * A_PASS) == [ALL]
    assert by_length([0] * 8, 10 * A_PASS) == [ALL]


def test_no_part_is_small():
    assert by_length([100, 1, 1, 1, 1, 1], 10 * A_PASS) == [list(range(6))]
    parts = by_length(list(range(50)), A_PASS)
    assert [len(part) for part in parts] == [13, 13, 13, 11]
    assert sorted(place for part in parts for place in part) == list(range(50))


def test_some_clients_of_a_batch_keep_their_rows_in_the_order_asked_for():
    inputs = torch.arange(24.0).view(3, 4, 2)
    mask = torch.tensor([[True, True, False, False], [True] * 4, [False] * 4])
    batch = StackedBatch(inputs, torch.arange(12).view(3, 4), mask, {}, [2, 4, 0]).of([2, 0])
    assert torch.equal(batch.inputs, inputs[[2, 0], :2])
    assert batch.targets.tolist() == [[8, 9], [0, 1]]
    assert batch.mask.tolist() == [[False, False], [True, True]]
    assert batch.together == [0, 2]


def sent(monkeypatch, a_pass):
    monkeypatch.setattr(cut, "A_PASS", a_pass)
    sizes = [4, 40, 9, 25, 60, 12, 3, 33, 18, 50, 7]
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(sum(sizes), 1, 6, 6, generator=draws), torch.arange(sum(sizes)) % 3
    clients = ClientIndex.of([np.arange(*ends) for ends in pairwise(np.cumsum([0, *sizes]))])

    def build(seed):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 16)]
        return nn.Sequential(*layers)

    task = Task("t", inputs, targets, clients, inputs[:2], targets[:2], 16, build, "m")
    algorithm = FedAvg(weighting="uniform")
    channel = RoundChannel.bare(algorithm.fields(), DPSGD(noise_multiplier=0.5, sample_rate=0.3, max_grad_norm=0.2))
    training, heights = LocalTraining(batch_size=6, learning_rate=0.5, steps=3), []
    passed = StackedBatch.part

    def noted(self, **asked):
        heights.append(asked["stack"])
        return passed(self, **asked)

    monkeypatch.setattr(StackedBatch, "part", noted)
    with LoopEngine(task, algorithm, training, channel, way="layers", workers=1) as loop:
        engine = VectorisedEngine(loop, 20, "layers")
        context = RoundContext(0, 0, NoiseSource.from_key(0), {})
        results = engine.train(range(len(sizes)), {"parameters": flatten(build(0))}, context)
        return {one.client: one.upload["update"] for one in results}, set(heights)


def test_parts_move_no_bit_and_masks_are_each_clients_own(monkeypatch):
    whole, stacks = sent(monkeypatch, 10**18)
    assert stacks == {11}
    parts, stacks = sent(monkeypatch, 0)
    assert max(stacks) < 11
    assert all(torch.equal(parts[client], update) for client, update in whole.items())


@pytest.mark.parametrize("values", [784, 5400])
def test_counts_of_a_usual_cohort_are_cut_where_that_spares_more_than_it_costs(values):
    draws = np.random.default_rng(0).binomial(50, 0.2, size=(20, 50))
    for counts in draws.tolist():
        parts = by_length(counts, values)
        assert len(parts) == 1 if values == 784 else len(parts) in (3, 4)
