"""A client in a stack is rounded alike, whoever is stacked with it and however long their batches are."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from audits.fuzz.own_parts import MODELS
from privfl import products
from privfl.algorithms.fedavg import FedAvg
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.losses import cross_entropy
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.factors import Clipping
from privfl.privacy.clipping.lengths import Lengths, PublicRows
from privfl.privacy.clipping.stacked import StackedBatch
from privfl.privacy.clipping.steady_stacks import LEAST, Rounding, SteadyStacks
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.cohort_door import CohortDoor
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.loss import coupled
from privfl.privacy.noise.source import NoiseSource


def plain_sequence():
    """What takes its steps without autograd, in stacks too."""
    layers = [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))


def many_windows():
    """Likewise, with so many windows that the sum over those of a few rows is not formed in one go."""
    layers = [nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(400, 3))


OWN = {
    "plain sequence": SimpleNamespace(shape=(1, 9, 9), build=plain_sequence),
    "many windows": SimpleNamespace(shape=(1, 28, 28), build=many_windows),
}
SIZES = (4, 3, 60, 5, 1)
CHAOS = LocalTraining(batch_size=50, learning_rate=86.0, epochs=3)
"""At this learning rate training diverges, and a last bit grows to any size."""
SMALL = replace(CHAOS, batch_size=10)
"""Batches that are all padded to as many rows."""


@coupled
def apart_from_the_mean(network, inputs, targets, present):
    """Cross-entropy of outputs less their mean over the batch."""
    outputs, there = network(inputs), present.to(inputs.dtype)
    mean = (outputs * there[:, None]).sum(0) / there.sum().clamp_min(1)
    return nn.functional.cross_entropy(outputs - mean, targets, reduction="none") * there


def squares_of_outputs(network, points):
    return network(points).square().sum()


class Pulled(FedAvg):
    """Each step goes along a gradient too that no data is in."""

    name: ClassVar[str] = "pulled"

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        own = {"points": torch.linspace(-1, 1, 5 * 81).view(5, 1, 9, 9) + 0 * local["parameters"][0]}
        local["parameters"].sub_(0.05 * client.data_free_gradient(squares_of_outputs, local["parameters"], own))
        local["parameters"].add_(1e-4 * client.data_free_value(squares_of_outputs, local["parameters"], own))


class Looking(FedAvg):
    """Steps along the gradient of all rows at once follow the others."""

    name: ClassVar[str] = "looking"

    def conclude(self, local, received, batch, client, training):
        for _ in range(3):
            self.step(local, received, batch, client, training)


def update_of_the_first(name, others, *, steady, loss=cross_entropy, algorithm=None, training=CHAOS):
    """What client 0 uploads when it is trained in one stack with ``others``."""
    model = {**MODELS, **OWN}[name]
    inputs = torch.randn((sum(SIZES), *model.shape), generator=torch.Generator().manual_seed(1)) * 1e3 + 1e6
    targets = torch.arange(sum(SIZES)) % 3
    clients = ClientIndex.of([np.arange(*ends) for ends in pairwise(np.cumsum([0, *SIZES]))])

    def build(seed):
        torch.manual_seed(seed)
        return model.build()

    task = Task("t", inputs, targets, clients, inputs[:2] * 0, targets[:2], 3, build, name, loss=loss)
    algorithm = algorithm or FedAvg(weighting="uniform")
    with LoopEngine(task, algorithm, training, RoundChannel.bare(algorithm.fields()), workers=1) as loop:
        loop.lengths = loop.steady_lengths() if steady else None
        engine = VectorisedEngine(loop, 8)
        received = {"parameters": flatten(build(0))}
        results = engine.train([0, *others], received, RoundContext(0, 0, NoiseSource.from_key(0), {}))
        return next(one.upload["update"] for one in results if one.client == 0)


COHORTS = ((), (1,), (2,), (1, 4), (1, 2, 3, 4))


@pytest.mark.parametrize("training", [CHAOS, SMALL], ids=["large batches", "small batches"])
@pytest.mark.parametrize("name", ["convolution", "contrast", "layer-norm", *OWN])
def test_the_update_of_a_client_has_the_same_bits_whoever_is_stacked_with_it(name, training):
    alone = update_of_the_first(name, (), steady=True, training=training)
    for others in COHORTS:
        assert torch.equal(update_of_the_first(name, others, steady=True, training=training), alone)


@pytest.mark.parametrize("name", ["convolution", *OWN])
def test_nor_does_it_move_where_small_batches_are_followed_by_one_of_all_rows(name):
    given = {"algorithm": Looking(weighting="uniform"), "training": SMALL}
    alone = update_of_the_first(name, (), steady=True, **given)
    for others in COHORTS:
        assert torch.equal(update_of_the_first(name, others, steady=True, **given), alone)


def test_were_small_batches_as_long_as_the_longest_of_a_stack_it_would_move(monkeypatch):
    gather = CohortDoor._gather

    def without_padding(self, plans, rows, *rest):
        fixed, self._fixed_rows = self._fixed_rows, None
        drawn = gather(self, plans, rows, *rest)
        self._fixed_rows = fixed
        return replace(drawn, fixed=True)

    monkeypatch.setattr(CohortDoor, "_gather", without_padding)
    updates = [update_of_the_first("many windows", others, steady=True, training=SMALL) for others in COHORTS]
    if all(torch.equal(one, updates[0]) for one in updates):
        pytest.skip("this processor adds up the windows of few rows alike, however many rows follow")


@pytest.mark.parametrize("name", ["convolution", "plain sequence"])
def test_nor_does_it_move_where_a_loss_couples_the_rows_of_a_batch(name):
    alone = update_of_the_first(name, (), steady=True, loss=apart_from_the_mean)
    for others in COHORTS:
        assert torch.equal(update_of_the_first(name, others, steady=True, loss=apart_from_the_mean), alone)
    moved = update_of_the_first(name, (2,), steady=False, loss=apart_from_the_mean)
    assert not torch.equal(moved, update_of_the_first(name, (), steady=False, loss=apart_from_the_mean))


def test_nor_where_a_step_asks_for_gradients_that_no_data_is_in():
    given = {"algorithm": Pulled(weighting="uniform"), "training": LocalTraining(batch_size=50, learning_rate=1e-8)}
    alone = update_of_the_first("plain sequence", (), steady=True, **given)
    for others in COHORTS:
        assert torch.equal(update_of_the_first("plain sequence", others, steady=True, **given), alone)
    moved = [update_of_the_first("plain sequence", others, steady=False, **given) for others in COHORTS]
    assert max(float((one - moved[0]).norm()) for one in moved) > 0


def test_without_lengths_it_moves_with_the_others():
    updates = [update_of_the_first("convolution", others, steady=False) for others in COHORTS]
    assert max(float((one - updates[0]).norm()) for one in updates) > 0


def stacks(*, sums, shown=None, name):
    public = PublicRows(torch.ones(4), torch.randn(32, 3, generator=torch.Generator().manual_seed(0)), torch.ones(32))
    return SteadyStacks(Lengths(public), lambda: None, Rounding((name,), sums, shown), {})


def added_up(parameters, batch):
    return batch.rows_only(batch.inputs.double()).sum(1)


def test_sums_are_tried_in_float32_though_all_public_rows_may_ask_for_float64():
    found = []

    def clipped(parameters, batch):
        sizes = torch.full((batch.targets.numel(),), 1e3, dtype=torch.float64)
        clipping = Clipping.of_norms(torch.ones_like(batch.targets, dtype=torch.float64), 1.0, torch.float32, 4)
        found.extend(clipping.mapped(torch.flatten).regimes({"sum": parameters}, sizes))
        return added_up(parameters, batch)

    steady = stacks(sums=clipped, shown=lambda parameters, batch: batch.inputs, name="float32")
    assert (steady.length(3), steady.groups(2, 4)) == (4, [(slice(0, 2), LEAST)])
    assert found
    assert not any(found)


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


def one_after_another(parameters, batch):
    return batch.rows_only(batch.inputs.double()).cumsum(1)[:, -1]


def by_length_from(longest):
    def sums(parameters, batch):
        return one_after_another(parameters, batch) * (1 + 1e-9 * max(batch.inputs.shape[1] - longest, 0))

    return sums


def test_sums_over_long_batches_are_whole_where_long_passes_add_up_alike():
    found = stacks(sums=one_after_another, name="whole")
    assert [found.length(rows) for rows in (20, 64, 65, 500)] == [20, 64, 65, 500]


@pytest.mark.parametrize("longest", [64, 128])
def test_where_they_do_not_they_are_cut_at_the_same_rows_for_everybody(longest):
    found = stacks(sums=by_length_from(longest), name=f"cut at {longest}")
    assert found.length(500) == found.length(longest + 1) == longest
    assert found.length(20) == 20


def test_clients_whose_sums_depend_on_their_place_stand_in_the_first_one_by_one():
    def by_place(parameters, batch):
        return added_up(parameters, batch) * (1 + 1e-9 * torch.arange(len(parameters)).double()[:, None])

    groups = stacks(sums=by_place, name="places").groups(3, 8)
    assert groups == [(slice(place, place + 1), LEAST) for place in range(3)]
    norms = lambda parameters, batch: batch.inputs.double().norm(dim=2)  # noqa: E731
    assert stacks(sums=by_place, shown=norms, name="places of sums").groups(2, 8) == groups[:2]


def test_a_sum_that_depends_on_the_padding_is_formed_in_passes_of_the_reference():
    def by_length(parameters, batch):
        return added_up(parameters, batch) * (1 + 1e-9 * batch.inputs.shape[1])

    assert stacks(sums=by_length, name="padding").length(20) == 64


def test_rows_that_are_shown_decide_the_length_of_what_is_clipped():
    def shown(parameters, batch):
        return batch.inputs.double().norm(dim=2) * (1 + 1e-9 * (batch.inputs.shape[1] < 16))

    found = stacks(sums=one_after_another, shown=shown, name="rows")
    assert [found.length(rows) for rows in (3, 16, 40, 41)] == [16, 16, 40, 44]


def test_sums_of_clipped_rows_decide_it_too():
    """The rows are rounded alike in all passes, but what they add up to is not."""

    def shown(parameters, batch):
        return batch.inputs.double().norm(dim=2)

    def by_eights(parameters, batch):
        return one_after_another(parameters, batch) * (1 + 1e-9 * (batch.inputs.shape[1] % 8))

    found = stacks(sums=by_eights, shown=shown, name="sums of rows")
    assert [found.length(rows) for rows in (3, 8, 12, 17, 30)] == [8, 8, 16, 32, 32]


BOUND = 0.7
OTHERS = {
    "nobody moves": (lambda rows: rows, (6, 4)),
    "shorter": (lambda rows: rows, (1, 1)),
    "longer": (lambda rows: rows, (90, 4)),
    "so long that float32 does not do": (lambda rows: rows, (300, 4)),
    "in several passes": (lambda rows: rows, (1200, 4)),
    "too large for float32": (lambda rows: rows * 1e28, (6, 4)),
    "not finite": (lambda rows: rows / 0, (6, 4)),
    "cancelling": (lambda rows: rows * 1e-3 + 1e4, (6, 4)),
}
"""What the other two clients of a stack hold, who are to move no bit of what the first one sends."""


class Steps(nn.Module):
    """A linear layer at many positions of a row, whose shares of a row's gradient may cancel."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.outer(torch.tanh(self.inner(inputs[:, 0])).mean(1))


NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 3)),
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
    "normalised": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(16, 3)
    ),
    "steps": Steps,
}


def private_update_of_the_first(network, way, others, noise_multiplier=0.0):
    change, sizes = others
    sizes = (5, *sizes)
    generator = torch.Generator().manual_seed(1)
    own, theirs = (torch.randn(count, 1, 3, 3, generator=generator) for count in (48, 2048))
    inputs = torch.cat([own[: sizes[0]], change(theirs[: sum(sizes[1:])])])
    clients = ClientIndex.of([np.arange(*ends) for ends in pairwise(np.cumsum([0, *sizes]))])

    def build(seed):
        torch.manual_seed(seed)
        return NETWORKS[network]()

    task = Task(
        "t", inputs, torch.arange(sum(sizes)) % 3, clients, inputs[:2] * 0, torch.zeros(2).long(), 3, build, "m"
    )
    algorithm = FedAvg(weighting="uniform")
    channel = RoundChannel.bare(algorithm.fields(), DPSGD(noise_multiplier, max_grad_norm=BOUND, sample_rate=0.9))
    training = LocalTraining(batch_size=4, learning_rate=0.5, steps=3)
    with LoopEngine(task, algorithm, training, channel, way=way, workers=1) as loop:
        engine = VectorisedEngine(loop, 8, way)
        context = RoundContext(0, 0, NoiseSource.from_key(0), {})
        results = engine.train(range(3), {"parameters": flatten(build(0))}, context)
        return next(one.upload["update"] for one in results if one.client == 0)


@pytest.mark.parametrize("way", ["layers", "vmap"])
@pytest.mark.parametrize("network", NETWORKS)
def test_under_dp_sgd_too_no_row_of_the_others_moves_a_bit_of_what_a_client_sends(network, way):
    """Not their sizes, nor that they make sums ask for float64: a client may have less noise than the others."""
    sent = {name: private_update_of_the_first(network, way, others) for name, others in OTHERS.items()}
    moved = [name for name, update in sent.items() if not torch.equal(update, sent["nobody moves"])]
    assert moved == []


def test_with_noise_neither_whether_others_take_several_passes():
    sent = [
        private_update_of_the_first("dense", "layers", OTHERS[name], 1.0) for name in ("in several passes", "shorter")
    ]
    assert torch.equal(*sent)


def test_a_pass_and_its_trial_lie_at_the_same_places_where_kernels_round_by_them(monkeypatch):
    """A slice of a stack begins at other bytes than the trial's rows did, and would be rounded as nobody has tried."""
    monkeypatch.setattr(products, "by_place", lambda: True)
    rows, given = torch.randn(6, 3, 5), {"reference": (torch.randn(6, 7), 0)}
    batch = StackedBatch(rows, torch.zeros(6, 3, dtype=torch.long), None, given, [3] * 6)
    piece = batch.part(clients=slice(1, 4), stack=4, rows=slice(0, 3), length=3)
    assert torch.equal(piece.inputs[:3], rows[1:4])
    for stack in (piece.inputs, piece.loss_kwargs["reference"][0]):
        assert [one.data_ptr() % 64 for one in stack] == [0] * 4
