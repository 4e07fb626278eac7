"""A pass is as long as it takes for a row to be rounded as in every other pass."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from audits.fuzz.own_parts import MODELS
from privfl.federation.task import cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.lengths import (
    Lengths,
    PublicRows,
    identity,
    padded,
    padded_length,
    passes,
    public_values,
    reference_length,
)
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.stacked import StackedGradients
from privfl.privacy.door.batch_plans import Epochs
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.cohort_door import CohortDoor
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.keeper import ClientSlot

BOUND = 1.0


def rows_of(shape, count, common, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn((count, *shape), generator=generator)
    if common == "offset":
        inputs += 1e6
    elif common == "wide":
        inputs *= 10.0 ** (torch.rand(inputs.shape, generator=generator) * 14 - 6)
    return inputs, torch.randint(3, (count,), generator=generator)


def clipped_sum(model, engine, way, inputs, targets, lengths_known=True, loss=cross_entropy, **given):
    """The sum over all rows as the door of ``engine`` forms it, before its noise."""
    torch.manual_seed(0)
    network = FlatNetwork(model.build())
    rows, labels = rows_of(model.shape, 32, "ordinary", 99)
    public = PublicRows(network.flat, rows.to(inputs), labels)
    lengths = Lengths(public, identity(network.module), way, engine) if lengths_known else None
    slot = ClientSlot(0, torch.arange(len(inputs)), Epochs(len(inputs), 1), torch.Generator())
    dpsgd = DPSGD(noise_multiplier=1.0, sample_rate=1.0, max_grad_norm=BOUND)
    common = ([slot] if engine == "vectorised" else slot, inputs, targets)
    if engine == "loop":
        door = ClientDoor(*common, network, PerSampleGradients(network, way), cross_entropy, dpsgd, lengths=lengths)
        parameters = network.flat
    else:
        stacked = StackedGradients(network, way)
        door = CohortDoor(*common, stacked, lambda counts, first: None, cross_entropy, dpsgd, lengths=lengths)
        parameters = network.flat[None].clone()
    with torch.no_grad():
        batch = door.everything()
        values = {name: torch.tensor(value) for name, value in given.items()}
        if engine == "vectorised":
            values = {name: (value[None], 0) for name, value in values.items()}
        return door._clipped_sum(loss, batch, parameters, values, BOUND).reshape(-1).double().clone()


def moved(model, engine, way, common, seed, **settings):
    """The largest share of what is charged by which one row more moves the sum, for batches of several sizes."""
    shares = []
    for count in (1, 2, 3, 7, 15, 16):
        inputs, targets = rows_of(model.shape, count + 1, common, seed)
        more = clipped_sum(model, engine, way, inputs, targets, **settings)
        less = clipped_sum(model, engine, way, inputs[:count], targets[:count], **settings)
        shares.append(float((more - less).norm()) / BOUND)
    return max(shares)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(("name", "way"), [("contrast", "vmap"), ("contrast", "rows"), ("layer-norm", "layers")])
def test_one_row_more_moves_the_sum_by_what_is_charged_whatever_the_magnitudes(name, way, engine):
    for common in ("ordinary", "offset", "wide"):
        for seed in range(3):
            assert moved(MODELS[name], engine, way, common, seed) <= BOUND


def test_without_lengths_rounding_moves_the_other_rows_past_the_charge():
    shares = [moved(MODELS["contrast"], "loop", "vmap", "offset", seed, lengths_known=False) for seed in range(8)]
    if max(shares) <= 1:
        pytest.skip("kernels of this processor round these rows alike without any care (those of an AMD EPYC do)")
    assert max(shares) > 1.01


def test_rows_that_a_sum_leaves_out_change_no_bit_of_it():
    model = MODELS["contrast"]
    inputs, targets = rows_of(model.shape, 20, "offset", 0)
    alone = clipped_sum(model, "loop", "vmap", inputs[:1], targets[:1])
    inputs[1:] = torch.nan  # rows that are not finite count as zero
    for count in (2, 3, 9, 20):
        assert torch.equal(clipped_sum(model, "loop", "vmap", inputs[:count], targets[:count]), alone)


def test_equal_rows_by_the_hundreds_move_the_sum_by_no_more_than_one():
    model = MODELS["linear"]
    inputs, targets = rows_of(model.shape, 1, "ordinary", 0)
    inputs, targets = inputs.expand(1301, -1), targets.expand(1301)
    for count in (64, 95, 96, 97, 511, 512, 513, 1300):
        sums = [clipped_sum(model, "loop", "layers", inputs[:rows], targets[:rows]) for rows in (count, count + 1)]
        assert float((sums[1] - sums[0]).norm()) <= BOUND


@pytest.mark.parametrize("cut", [False, True])
def test_a_large_batch_in_float64_is_the_sum_of_its_rows_in_several_passes(cut, monkeypatch):
    """The gradients of a pass lie where those of the one before lay."""
    model = replace(MODELS["linear"], build=lambda: MODELS["linear"].build().double())
    inputs, targets = rows_of(model.shape, 600, "ordinary", 0)
    if cut:
        monkeypatch.setattr(Lengths, "of", lambda self, *asked: self.reference)
    every = [clipped_sum(model, "loop", "layers", inputs.double()[[row]], targets[[row]]) for row in range(600)]
    whole = clipped_sum(model, "loop", "layers", inputs.double(), targets)
    torch.testing.assert_close(whole, torch.stack(every).sum(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [0, 3, 600])
def test_after_a_sum_drop_out_hears_that_nothing_is_padded(rows):
    model, heard = MODELS["linear"], []
    inputs, targets = rows_of(model.shape, 600, "ordinary", 0)
    network = FlatNetwork(model.build())
    lengths = Lengths(PublicRows(network.flat, *rows_of(model.shape, 32, "ordinary", 99)), identity(network.module))
    slot = ClientSlot(0, torch.arange(rows), Epochs(max(rows, 1), 1), torch.Generator())
    door = ClientDoor(
        slot,
        inputs,
        targets,
        network,
        PerSampleGradients(network, "layers"),
        cross_entropy,
        DPSGD(noise_multiplier=1.0, sample_rate=1.0),
        lengths=lengths,
        announce=lambda present, length: heard.append(present),
    )
    with torch.no_grad():
        door._clipped_sum(cross_entropy, door.everything(), network.flat, {}, BOUND)
    assert heard[-1] is None
    assert sum(present or 0 for present in heard) == rows


def test_a_length_is_that_of_the_batch_or_the_next_that_rounds_alike():
    assert padded_length(5, 64, lambda length: True) == 5
    assert padded_length(5, 64, lambda length: length >= 16) == 16
    assert padded_length(20, 64, lambda length: length != 20) == 32
    assert padded_length(5, 64, lambda length: False) == 64
    assert padded_length(64, 64, lambda length: False) == 64
    assert padded_length(100, 64, lambda length: length == 100) == 100
    assert padded_length(100, 64, lambda length: False) == 64


def test_a_few_rows_more_are_tried_before_a_power_of_two():
    """A kernel that takes rows by eight and leaves one over rounds it otherwise: 9 rows need 10, not 16."""
    tried = []

    def alike(length):
        tried.append(length)
        return length % 8 != 1

    assert [padded_length(rows, 16, alike, 3) for rows in (5, 9, 17)] == [5, 10, 18]
    assert tried == [5, 9, 10, 17, 18]
    assert padded_length(1, 64, lambda length: length >= 4, 3) == 4
    assert padded_length(15, 16, lambda length: False, 3) == 16  # the reference needs no trial
    assert padded_length(17, 64, lambda length: length == 32, 3) == 32
    assert padded_length(17, 64, lambda length: False, 3) == 64


def test_a_batch_of_an_unsteady_length_is_cut_into_passes_of_the_reference():
    lengths = partial(padded_length, reference=64, alike=lambda length: False)
    assert list(passes(150, 512, lengths)) == [(slice(0, 64), 64), (slice(64, 128), 64), (slice(128, 150), 64)]
    assert list(passes(1000, 512, int)) == [(slice(0, 512), 512), (slice(512, 1000), 488)]
    assert list(passes(0, 512, int)) == []


def test_padding_repeats_the_first_entry():
    assert padded(torch.tensor([[1, 2]]), 4, 1).tolist() == [[1, 2, 1, 1]]
    values = torch.arange(3)
    assert padded(values, 3) is values


@pytest.mark.parametrize("useless", [torch.zeros(32), torch.full((32,), torch.nan)])
def test_rows_that_prove_nothing_leave_the_reference_alone_as_a_length(useless):
    public = PublicRows(torch.zeros(4), torch.randn(32, 3), torch.zeros(32).long())
    lengths = Lengths(public, "useless", bool(useless.isnan().any()))
    assert lengths.of("asked", lambda inputs, targets: useless[: len(inputs)], 5) == lengths.reference


def test_a_kernel_that_rounds_short_batches_otherwise_is_found():
    public = PublicRows(torch.zeros(4), torch.randn(32, 3), torch.zeros(32).long())

    def run(inputs, targets):
        norms = inputs.double().norm(dim=1)
        return norms if len(inputs) >= 16 else norms * (1 + 1e-9)

    lengths = Lengths(public, "short batches")
    assert [lengths.of("asked", run, rows) for rows in (1, 5, 15, 16, 17, 200)] == [16, 16, 16, 16, 17, 200]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_clients_of_a_stack_try_other_rows_and_each_of_them_must_come_out_alike(odd):
    public = PublicRows(torch.zeros(4), torch.randn(32, 3), torch.arange(32))
    tried = []

    def run(inputs, targets):
        tried.append(targets)
        norms = inputs.double().norm(dim=2)
        if odd < len(norms) and inputs.shape[1] < 16:
            norms[odd] *= 1 + 1e-9
        return norms

    lengths = Lengths(public, "stacks", odd)
    assert lengths.of("asked", run, 9, lambda length: None, 2) == (9 if odd == 2 else 16)
    passes = [targets.tolist() for targets in tried if targets.shape[1] == 9]
    rows = [[(first + row) % 32 for row in range(9)] for first in (0, 9, 18, 27)]
    assert passes == [rows[:2], rows[2:]]
    assert [targets.tolist() for targets in tried if targets.shape[1] == 64] == [[[*range(32)] * 2] * 2]


def test_what_stands_for_a_clients_own_numbers_depends_on_their_shapes_alone():
    def given(number):
        return {
            "counts": torch.full((3, 2), number),
            "previous": torch.full((2, 2), number),
            "weight": torch.tensor(number),
            "kinds": torch.full((2,), int(number)),
            "mask": torch.tensor([number > 1]),
            "rate": number,
        }

    parameters = torch.arange(4.0)
    one, other = (public_values(given(number), parameters) for number in (1.0, 7.0))
    assert one.keys() == given(1.0).keys()
    assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
    assert one["previous"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert one["weight"].shape == ()
    assert 0.05 <= float(one["weight"]) <= 0.15
    assert one["kinds"].tolist() == [0, 0]
    assert one["mask"].tolist() == [True]


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_lengths_are_tried_with_the_same_numbers_whichever_client_comes_first(engine, monkeypatch):
    shown = []

    class Listening(Lengths):
        def same(self, key, other, run, expected):
            shown.append(expected())
            return super().same(key, other, run, expected)

    def weighted(network, inputs, targets, weight):
        return cross_entropy(network, inputs, targets) * weight

    monkeypatch.setitem(clipped_sum.__globals__, "Lengths", Listening)
    inputs, targets = rows_of(MODELS["layer-norm"].shape, 7, "ordinary", 0)
    for weight in (0.0, 0.25):
        clipped_sum(MODELS["layer-norm"], engine, "layers", inputs, targets, loss=weighted, weight=weight)
    half = len(shown) // 2
    assert half > 0
    assert all(map(torch.equal, shown[:half], shown[half:]))


def test_large_networks_are_compared_in_short_passes():
    assert reference_length(1000) == 64
    assert reference_length(10**9) == 16


def test_functions_are_told_apart_by_their_code_and_what_they_hold():
    def made(inner):
        return lambda network, inputs, targets: inner(network, inputs, targets)

    assert identity(made(cross_entropy)) == identity(made(cross_entropy))
    assert identity(made(cross_entropy)) != identity(made(nn.functional.mse_loss))
    assert identity(partial(cross_entropy, weight=torch.ones(3))) != identity(cross_entropy)
    assert identity(partial(made, mu=0.5)) == identity(partial(made, mu=0.7)) != identity(partial(made, mu=0.0))
    assert identity(partial(made, mu=0.5), exact=True) != identity(partial(made, mu=0.7), exact=True)
    assert identity(nn.Linear(3, 2)) != identity(nn.Linear(3, 4))
    assert identity(nn.GroupNorm(2, 4)) != identity(nn.GroupNorm(4, 4))
    assert isinstance(hash(identity(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))), int)


class CallsItself(nn.Module):
    """Holds functions, methods and containers that lead back to it, and a name that is not bound yet."""

    def __init__(self, scale):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.body = lambda inputs: scale * self.layer(inputs)
        self.method, self.every, self.tables = partial(self.forward), [self], {"layers": [self.layer, self]}
        self.layer.owner = [self]

        def later():
            return missing

        self.later = later
        if scale < 0:
            missing = scale

    def forward(self, inputs):
        return self.body(inputs)


def test_a_model_that_leads_back_to_itself_is_told_by_what_it_computes():
    one, same, other = identity(CallsItself(2.0)), identity(CallsItself(2.0)), identity(CallsItself(3.0))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_what_is_known_of_the_tasks_loss_serves_every_algorithm_and_of_another_function_its_own_settings():
    tried = []

    def twice(network, inputs, targets):
        return 2 * inputs.sum(1)

    def length(own, *, plain, given=None):
        public = PublicRows(torch.zeros(3), torch.randn(32, 3), torch.zeros(32).long())
        lengths = Lengths(public, "settings", own=own, plain="the task")

        def run(inputs, targets):
            tried.append(own)
            return inputs.double().sum(1, keepdim=True)

        return lengths.of(lengths.key("a sum", twice, given or {}, plain=plain), run, 5)

    assert [length(own, plain=True) for own in ("fedavg", "fedprox")] == [5, 5]
    assert set(tried) == {"fedavg"}
    assert [length(own, plain=False) for own in ("fedavg", "fedprox")] == [5, 5]
    assert tried[-1] == "fedprox"
    assert [length(own, plain=True, given={"rate": 0.5}) for own in ("ditto", "apfl")] == [5, 5]
    assert tried[-1] == "apfl"
