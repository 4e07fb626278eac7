"""Noise as it leaves an engine: as wide as it is charged for, and everybody's own, one by one and stacked.

Deviations of n numbers are within 6 standard errors (2e-9 each), correlations of two n-vectors below 6/√n (2e-9).
"""

import math
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from privfl.algorithms import FedAvg
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import Phase, RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.noise.source import NoiseSource

ENGINES = ("loop", "vectorised")
FEATURES, CLASSES, SIZES = 500, 4, (4, 9, 2)
MULTIPLIERS = (1.0, 2.0, 4.0)
TRAINING = LocalTraining(learning_rate=0.5, batch_size=8, steps=1)


def rows(network, inputs, targets):
    return inputs.flatten(1)


class Both(FedAvg):
    """Sends an update, and the sum of its clients' rows."""

    statistics: ClassVar[tuple[str, ...]] = ("rows",)

    def fields(self):
        return (*super().fields(), Field("rows", shape=(FEATURES,), weighted=False))

    def begin(self, received, client_state, training):
        local = super().begin(received, client_state, training)
        return {**local, "rows": torch.zeros(FEATURES)}

    def prepare(self, local, received, batch, client, training):
        local["rows"] = client.total(rows, local["parameters"], batch, name="rows")

    def finish(self, local, received, training):
        return {**super().finish(local, received, training), "rows": local["rows"]}


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(FEATURES, CLASSES, bias=False)


def federation():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(sum(SIZES), FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (sum(SIZES),), generator=generator)
    ends = np.cumsum(SIZES)
    clients = ClientIndex.of([np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)])
    return Task("t", inputs, targets, clients, inputs[:2], targets[:2], CLASSES, linear, "linear")


TASK = federation()


def sent(engine, dpsgd, total, *, number=0, label="", seed=1, key=4):
    """What each client sends, and its log."""
    algorithm = Both(weighting="uniform").bind(TASK.context(10, 0))
    channel = RoundChannel.bare(algorithm.fields(), dpsgd, () if total is None else (total,))
    received = algorithm.broadcast(algorithm.start(flatten(TASK.model(0))))
    context = RoundContext(number, seed, NoiseSource.from_key(key), {})
    way = None if dpsgd is None else "layers"
    with LoopEngine(TASK, algorithm, TRAINING, channel, way=way, workers=1) as loop:
        trains = loop if engine == "loop" else VectorisedEngine(loop, 3, way)
        results = list(trains.train(range(3), received, context, Phase(algorithm, channel, label)))
    return {result.client: result for result in results}


def noises(engine, bound, **where):
    """The noise of every client on its gradient and on its total, in units of the sums: those without it taken away."""
    released = []
    for multipliers in (MULTIPLIERS, (0.0, 0.0, 0.0)):
        dpsgd = DPSGD(noise_multiplier=multipliers, max_grad_norm=bound, sample_rate=1.0)
        total = NoisyTotal("rows", 2 * bound, 3.0 if any(multipliers) else 0.0)
        released.append(sent(engine, dpsgd, total, **where))
    with_noise, without = released
    scale = TRAINING.batch_size / TRAINING.learning_rate
    gradients = [(with_noise[i].upload["update"] - without[i].upload["update"]).numpy() * scale for i in range(3)]
    totals = [(with_noise[i].upload["rows"] - without[i].upload["rows"]).numpy() for i in range(3)]
    return gradients, totals


def is_as_wide_as(values, deviation):
    return abs(float(values.std()) / deviation - 1) < 6 / math.sqrt(2 * len(values))


def unlike(one, other):
    size = min(len(one), len(other))
    return abs(float(np.corrcoef(one[:size], other[:size])[0, 1])) < 6 / math.sqrt(size)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bound", [0.5, 3.0])
def test_every_clients_noise_is_its_own_multiplier_times_the_bound(engine, bound):
    gradients, totals = noises(engine, bound)
    assert all(is_as_wide_as(noise, z * bound) for noise, z in zip(gradients, MULTIPLIERS, strict=True))
    assert all(is_as_wide_as(noise, 3.0 * 2 * bound) for noise in totals)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_two_clients_rounds_phases_or_uses_share_their_noise(engine):
    drawn = []
    for where in ({}, {"number": 1}, {"label": " survey"}):
        gradients, totals = noises(engine, 1.0, **where)
        drawn += [*gradients, *totals]
    assert all(unlike(one, other) for one, other in combinations(drawn, 2))


def test_both_engines_draw_the_same_noise():
    for one, other in zip(noises("loop", 1.0), noises("vectorised", 1.0), strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert np.allclose(mine, theirs, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_are_clipped_divided_by_public_numbers_and_charged_client_by_client(engine):
    dpsgd = DPSGD(noise_multiplier=0.0, max_grad_norm=0.1, sample_rate=1.0)
    found = sent(engine, dpsgd, NoisyTotal("rows", 0.5, 0.0))
    ends = np.cumsum(SIZES)
    for client, size in enumerate(SIZES):
        own = TASK.inputs[ends[client] - size : ends[client]].double()
        clipped = own * (0.5 / own.norm(dim=1))[:, None]
        assert torch.allclose(found[client].upload["rows"].double(), clipped.sum(0), rtol=1e-4, atol=1e-5)
        longest = size * 0.1 * TRAINING.learning_rate / TRAINING.batch_size
        assert 0.2 * longest < float(found[client].upload["update"].norm()) <= longest
    noisy = sent(engine, DPSGD(noise_multiplier=MULTIPLIERS, sample_rate=(1.0, 0.5, 0.25)), NoisyTotal("rows", 1, 3.0))
    events = [sorted(map(repr, noisy[client].log.noisy.elements())) for client in range(3)]
    assert [len(one) for one in events] == [2, 2, 2]
    for client, z in enumerate(MULTIPLIERS):
        assert any(f"noise_multiplier={z})" in one for one in events[client])
        assert ("sampling_probability=0.5" in " ".join(events[client])) == (client == 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_is_in_a_batch_follows_the_key_and_the_round_and_not_the_experiments_seed(engine):
    """Without noise, which rows were drawn shows: of fifteen rows two draws agree with probability 3e-5, three 1e-9."""
    dpsgd = DPSGD(noise_multiplier=0.0, max_grad_norm=1.0, sample_rate=0.5)

    def drawn(**where):
        found = sent(engine, dpsgd, None, **where)
        return torch.cat([found[client].upload["update"] for client in range(3)])

    assert torch.equal(drawn(seed=1), drawn(seed=2))
    rounds = [drawn(), drawn(number=1), drawn(number=2)]
    assert not (torch.equal(rounds[0], rounds[1]) and torch.equal(rounds[0], rounds[2]))
    keys = [drawn(key=key) for key in (4, 5, 6)]
    assert not (torch.equal(keys[0], keys[1]) and torch.equal(keys[0], keys[2]))
