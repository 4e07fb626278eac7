"""No row's gradient depends on where in a pass it stands, whatever a server makes of the parameters it sends."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privfl.federation.losses import LOSSES, binary_cross_entropy, cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping import placement
from privfl.privacy.clipping.known import _LAYERS
from privfl.privacy.clipping.lengths import Lengths, PublicRows, padded_length
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.placement import SEVERAL, calls_of, nothing_is_left_over, placed_alike, wherever_it_stands
from privfl.privacy.clipping.stacked import StackedGradients
from privfl.privacy.clipping.steady_stacks import Rounding, SteadyStacks
from privfl.privacy.door.batch_plans import Epochs
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.cohort_door import CohortDoor
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.keeper import ClientSlot
from tests.programs import python

UNITS, ROWS = 7, 35
HUGE = 1e9


class Own(nn.Module):
    """A user's, which is seen row by row."""

    def __init__(self):
        super().__init__()
        self.units, self.difference, self.last = nn.Linear(6, UNITS), nn.Linear(UNITS, 3), nn.Linear(3, 2)

    def forward(self, inputs):
        return self.last(torch.tanh(self.difference(torch.sigmoid(self.units(inputs)))))


class Activated:
    """A network whose last unit equals its first, unless rounding tells them apart, and a server that asks whether.

    Where they do, tanh of their difference times a huge number is 1 and passes no gradient on; where they do not, it is
    0 and passes on nothing but a huge one.
    """

    loss = staticmethod(cross_entropy)

    def __init__(self, activation):
        self.activation = activation

    def build(self):
        torch.manual_seed(0)
        if self.activation is Own:
            return Own()
        return nn.Sequential(nn.Linear(6, UNITS), self.activation(), nn.Linear(UNITS, 3), nn.Tanh(), nn.Linear(3, 2))

    def targets(self, generator, rows):
        return torch.randint(2, (rows,), generator=generator)

    def attack(self, network):
        units, difference, last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        for layer in (units, difference, last):
            layer.weight.zero_()
            layer.bias.zero_()
        units.weight[:, 0] = 1
        difference.weight[0, 0], difference.weight[0, -1] = HUGE, -HUGE
        last.weight[0, 0] = 1


class Labelled:
    """Several labels with equal logits for the first and the last: what goes back is the difference of their errors."""

    loss = staticmethod(binary_cross_entropy)

    def build(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 3), nn.Linear(3, UNITS))

    def targets(self, generator, rows):
        return torch.zeros(rows, UNITS)

    def attack(self, network):
        for layer in network:
            layer.weight.zero_()
            layer.bias.zero_()
        network[0].weight[1, 0] = 1
        network[1].weight[0, 1] = network[1].weight[-1, 1] = 1
        network[1].weight[0, 0], network[1].weight[-1, 0] = HUGE, -HUGE


CASES = {
    "sigmoid": Activated(nn.Sigmoid),
    "silu": Activated(nn.SiLU),
    "mish": Activated(nn.Mish),
    "elu": Activated(nn.ELU),
    "a user's own": Activated(Own),
    "labels": Labelled(),
}


@torch.no_grad()
def most_moved(case, engine, way):
    """The most by which one row more, first or last, moves the clipped sum, in units of what is charged."""
    network = FlatNetwork(case.build())
    draws = torch.Generator().manual_seed(9)
    public = PublicRows(network.flat.clone(), torch.randn(32, 6, generator=draws), case.targets(draws, 32))
    lengths = Lengths(public, str(case), engine, way, placement.SEVERAL)
    case.attack(network.module)
    gradients = PerSampleGradients(network, way) if engine == "loop" else StackedGradients(network, way)
    dpsgd = DPSGD(noise_multiplier=1.0, sample_rate=1.0, max_grad_norm=1.0)

    def total(inputs, targets):
        slot = ClientSlot(0, torch.arange(len(inputs)), Epochs(len(inputs), 1), torch.Generator())
        if engine == "loop":
            door = ClientDoor(slot, inputs, targets, network, gradients, case.loss, dpsgd, lengths=lengths)
            parameters = network.flat
        else:
            door = CohortDoor([slot], inputs, targets, gradients, lambda *_: None, case.loss, dpsgd, lengths=lengths)
            parameters = network.flat[None].clone()
        return door._clipped_sum(case.loss, door.everything(), parameters, {}, 1.0).flatten().double().clone()

    moved = []
    for count in range(1, ROWS):
        inputs, targets = torch.randn(count + 1, 6, generator=draws), case.targets(draws, count + 1)
        more = total(inputs, targets)
        moved += [float((more - total(inputs[part], targets[part])).norm()) for part in (slice(count), slice(1, None))]
    return max(moved)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("case", CASES)
def test_one_row_more_moves_the_sum_by_what_is_charged_wherever_the_others_come_to_stand(case, engine):
    ways = ("layers", "vmap", "rows") if case != "a user's own" else ("vmap",)
    assert max(most_moved(CASES[case], engine, way) for way in ways) <= 1


def test_were_places_not_looked_at_rows_would_move_past_the_charge(monkeypatch):
    monkeypatch.setattr(placement, "SEVERAL", 1)
    moved = max(most_moved(CASES[case], "loop", "layers") for case in ("sigmoid", "silu", "mish"))
    if not depends_on_the_place(nn.Sigmoid()):
        pytest.skip("this processor rounds numbers alike wherever they stand")
    assert moved > 1.5


ACTIVATIONS = [kind for kind in _LAYERS if kind.__module__ == "torch.nn.modules.activation"]
OF_A_ROW = (nn.Softmax, nn.LogSoftmax)


def depends_on_the_place(layer):
    """Whether some of ten thousand numbers come out otherwise, or their gradients do, as the last of a few."""
    values = 2 * torch.randn(10_000, generator=torch.Generator().manual_seed(3))

    def both(part):
        part = part.clone().requires_grad_()
        output = layer(part)
        output.sum().backward()
        return torch.stack([output.detach(), part.grad])

    whole = both(values)
    return any(not torch.equal(torch.cat([both(p) for p in values.split(n)], 1), whole) for n in (7, 13, 29))


def test_every_activation_that_rounds_by_place_is_noted():
    assert len(ACTIVATIONS) > 20
    layers = [nn.Threshold(0.1, 0) if kind is nn.Threshold else kind() for kind in ACTIVATIONS if kind not in OF_A_ROW]
    unnoted = []
    for layer in layers:
        values = torch.randn(3, 5, requires_grad=True)
        if not calls_of(lambda layer=layer, values=values: layer(values).sum().backward()):
            unnoted.append(layer)
    assert {nn.ReLU, nn.LeakyReLU, nn.Hardtanh, nn.SiLU} - set(map(type, unnoted)) == {nn.SiLU}
    assert [layer for layer in unnoted if depends_on_the_place(layer)] == []


def test_what_is_rounded_right_is_not_noted_and_what_is_not_is_noted_in_every_form():
    values, others = torch.rand(2, 3, 5)

    def exact():
        (values + others).mul(2).div(others + 1).clamp_(0.5).sqrt().pow(2).sub_(others, alpha=-1)
        F.relu(values).where(values > 0, others).max().neg_()
        F.cross_entropy(values.softmax(1) @ others.T, torch.ones(3).long()) + values.cumsum(1).sum()

    assert calls_of(exact) == []
    forms = [
        values.sigmoid,
        values.clone().sigmoid_,
        lambda: torch.sigmoid(values, out=others.clone()),
        lambda: values.pow(1.5),
        lambda: F.logsigmoid(values),
        lambda: values.logsumexp(1),
        lambda: torch.rsub(values, others, alpha=0.3),
        lambda: torch.div(values, others, rounding_mode="floor"),
    ]
    assert [len(calls_of(form)) > 0 for form in forms] == [True] * len(forms)
    assert calls_of(lambda: torch.arange(3).pow(torch.arange(3))) == []  # whole numbers are not rounded
    assert len(calls_of(lambda: torch._foreach_sigmoid([values, others]))) >= 2
    waves = torch.complex(values, others)
    assert [len(calls_of(form)) for form in (lambda: waves * waves, waves.exp, lambda: waves + waves)] == [1, 1, 0]


@pytest.mark.parametrize("alike", [True, False])
def test_what_is_to_go_one_way_up_to_the_end_is_noted_unless_it_was_seen_to(monkeypatch, alike):
    asked = []
    monkeypatch.setattr(placement, "alike_up_to_the_end", lambda *about: asked.append(about) or alike)
    values, others = torch.rand(2, 3, 5)
    forms = [values.exp, values.clone().tanh_, lambda: values.add(others, alpha=0.3), lambda: values.lerp(others, 0.3)]
    assert [len(calls_of(form)) for form in forms] == [0 if alike else 1] * 4
    assert asked == [(name, torch.float32) for name in ("exp", "tanh", "add", "lerp")]


@pytest.mark.parametrize("name", placement._ALIKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_came_out_the_same_up_to_the_end_does_so_in_few_numbers(name, dtype):
    if not placement.alike_up_to_the_end(name, dtype):
        pytest.skip("this processor has another way for the last numbers")
    one, other = torch.rand(2, 5000, generator=torch.Generator().manual_seed(8)).mul_(3).add_(0.1).to(dtype)
    function = placement._ALIKE[name]
    few = torch.cat([function(*parts) for parts in zip(one.split(7), other.split(7), strict=True)])
    assert torch.equal(few, function(one, other))


def test_what_has_two_ways_is_found_to_differ(monkeypatch):
    """Which functions have two ways depends on the processor and on PyTorch: 2.15 has one for ``sinh``, 2.13 two."""
    numbers = torch.rand(2000, generator=torch.Generator().manual_seed(8)).mul_(3).add_(0.1)
    found = 0
    for name in ("sigmoid", "exp2", "sinh"):
        function = getattr(torch, name)
        if torch.equal(torch.cat([function(one) for one in numbers.split(1)]), function(numbers)):
            continue
        found += 1
        monkeypatch.setitem(placement._ALIKE, name, lambda one, _, function=function: function(one))
        assert not placement.alike_up_to_the_end(name, torch.float32)
    if not found:
        pytest.skip("this processor rounds numbers alike wherever they stand")


def test_the_innermost_loop_is_as_long_as_what_lies_together_in_all_tensors():
    def length(work):
        ((_, found, _),) = calls_of(work)
        return found

    values = torch.rand(4, 6, 10)
    assert length(values.sigmoid) == 240
    assert length(values.permute(2, 0, 1).sigmoid) == 240
    assert length(values[:, :, :7].sigmoid) == 7
    assert length(values[:, :5].sigmoid) == 50
    assert length(values[..., 0].sigmoid) == 24
    assert length(lambda: torch.atan2(values, values[0])) == 60
    assert length(lambda: torch.atan2(values, values[..., :1])) == 10
    assert length(values[0, 0, 0].sigmoid) == 1


def test_passes_are_alike_where_nothing_is_left_over_or_loops_go_along_rows():
    def calls(*lengths):
        return [("exp", length, (1, 1)) for length in lengths]

    assert nothing_is_left_over(calls(64, 640))
    assert not nothing_is_left_over(calls(64, 65))
    assert placed_alike(calls(64, 128), calls(640))
    assert placed_alike(calls(7, 64), calls(7, 640))
    assert not placed_alike(calls(7, 63), calls(7, 640))
    assert not placed_alike(calls(7), calls(7, 7))
    assert not placed_alike(calls(7), [("log", 7, (1, 1))])
    assert not placed_alike(calls(7), [("exp", 7, (2, 1))])


def lengths_of(rows, size=100):
    return Lengths(PublicRows(torch.zeros(size), torch.randn(32, 3), torch.zeros(32).long()), rows, size)


@pytest.mark.parametrize(("numbers", "wanted"), [(1, 64), (3, 64), (20, 16), (32, 10), (64, 9)])
def test_a_length_leaves_nothing_over_in_rows_of_so_many_numbers(numbers, wanted):
    lengths = lengths_of(numbers)

    def run(inputs, targets):
        torch.ones(len(inputs), numbers).sigmoid()
        return inputs.double().norm(dim=1)

    assert lengths.of("asked", run, 9) == wanted
    assert lengths.reference_of("asked", lambda length: run(*lengths.public.batch(length))) == 64


def test_a_reference_that_would_leave_some_over_is_longer():
    large = lengths_of("large", 3_000_000)
    for numbers, wanted in {1: 64, 2: 32, 4: 16, 3: 64, 6: 32}.items():
        assert large.reference == 16
        assert large.reference_of(numbers, lambda length, n=numbers: torch.ones(length, n).sigmoid()) == wanted
    assert large.reference_of("along rows", lambda length: torch.ones(length, 9)[:, :7].sigmoid()) == 16
    assert padded_length(9, large.reference_of(3, lambda length: None), lambda length: False) == 64


def added_up(parameters, batch):
    return batch.rows_only(batch.inputs.double()).cumsum(1)[:, -1]


def test_a_stack_of_any_number_of_clients_leaves_nothing_over():
    lengths = lengths_of("stack")
    stacks = []

    def shown(parameters, batch):
        stacks.append(len(parameters))
        torch.ones(*batch.targets.shape, 32).sigmoid()
        return batch.inputs.double().norm(dim=2)

    steady = SteadyStacks(lengths, lambda: None, Rounding(("asked",), added_up, shown), {})
    assert steady.length(7) == 8  # 2 × 7 × 32 numbers would leave nothing over, 3 × 7 × 32 do
    assert steady.groups(3, 8) == [(slice(0, 3), 3)]
    assert steady.groups(3, 7) == [(slice(place, place + 1), 2) for place in range(3)]
    assert steady.groups(1, 7) == [(slice(0, 1), 2)]
    assert set(stacks) == {1, 2, 3}


@pytest.mark.parametrize("numbers", [7, 64])
def test_clients_whose_own_numbers_would_be_left_over_are_passed_one_by_one(numbers):
    def shown(parameters, batch):
        parameters[:, :numbers].contiguous().sigmoid()
        return batch.inputs.double().norm(dim=2)

    steady = SteadyStacks(lengths_of(f"own {numbers}"), lambda: None, Rounding(("asked",), added_up, shown), {})
    assert steady.length(9) == 12  # as ever: which rows there are changes nothing of it
    one_by_one = [(slice(0, 1), 2), (slice(1, 2), 2)]
    assert steady.groups(2, 12) == (one_by_one if numbers == 7 else [(slice(0, 2), 2)])


def test_a_device_other_than_a_processor_is_left_alone():
    lengths = lengths_of("device")
    lengths.public.targets = torch.zeros(32, device="meta")
    assert lengths.calls("asked", 3, lambda length: torch.ones(length).sigmoid()) == []


PRIVATE_RUN = """
import logging, sys
import torch
import privfl as pf
from privfl.privacy.clipping.placement import calls_of

task = pf.Task.from_dataset(pf.load_dataset("digits"), partition=pf.IID(3), model="logistic", seed=0)
privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
pf.simulate(task, pf.FedAvg(), rounds=1, privacy=privacy)
print("torch._dynamo" in sys.modules)
warned = []
logging.getLogger("torch._dynamo").addFilter(warned.append)
layer = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Sigmoid())
compiled = torch.compile(layer, backend="eager")
print(calls_of(lambda: compiled(torch.ones(5, 4))) == calls_of(lambda: layer(torch.ones(5, 4))) != [], warned)
"""


def test_a_private_run_does_not_import_pytorchs_compiler_and_what_is_compiled_is_looked_at_too():
    assert python("-c", PRIVATE_RUN, fresh=True).stdout.splitlines() == ["False", "True []"]


LABELS = {"mean-squared-error": torch.randn, "huber": torch.randn, "binary-cross-entropy": torch.rand}


@pytest.mark.parametrize("numbers", [1, 3, 7])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_gives_a_row_the_same_gradient_wherever_it_stands(name, numbers):
    """Of the logits, the same bits: what goes back from here is multiplied with whatever a server likes."""
    draws = torch.Generator().manual_seed(4)
    shape = (2000, 5, numbers) if name == "token-cross-entropy" else (2000, numbers)
    logits = 3 * torch.randn(shape, generator=draws)
    made = LABELS.get(name)
    targets = made(shape, generator=draws) if made else torch.randint(numbers, shape[:-1], generator=draws)
    loss = LOSSES[name](delta=0.7) if name == "huber" else LOSSES[name]

    def gradients(rows):
        found = []
        for some, own in zip(logits.split(rows), targets.split(rows), strict=True):
            leaf = some.clone().requires_grad_()
            terms = loss(nn.Identity(), leaf, own)
            found.append(torch.autograd.grad((terms * 0.3).sum(), leaf)[0])
        return torch.cat(found)

    alone = gradients(1)
    for rows in (2, 3, 5, 13, 64, 1000):
        assert torch.equal(gradients(rows), alone)


@pytest.mark.parametrize("shape", [(9,), (9, 7), (9, 64), (9, 3, 5), (0, 7), (0,), ()])
def test_a_term_is_the_function_and_its_gradient_the_same_bits_in_every_pass(shape):
    values = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    factors = torch.rand(shape, generator=torch.Generator().manual_seed(1))

    def terms(*values):
        return wherever_it_stands(lambda a, b: F.softplus(a * b), *values)

    def both(values, factors):
        values = values.clone().requires_grad_()
        found = terms(values, factors)
        return found, torch.autograd.grad(found.sum(), values)[0]

    found, gradient = both(values, factors)
    torch.testing.assert_close(found, F.softplus(values * factors))
    torch.testing.assert_close(gradient, factors * torch.sigmoid(values * factors))
    for first in range(len(values) if shape else 0):
        for part in (slice(first, None), slice(first, first + 1)):
            some, own = both(values[part], factors[part])
            assert torch.equal(some, found[part])
            assert torch.equal(own, gradient[part])
    assert nothing_is_left_over(calls_of(lambda: both(values, factors)))


def test_loops_take_no_more_at_a_time_than_that():
    assert SEVERAL % (2 * 512 // 16) == 0  # two vectors of 512 bits, of numbers of 16
