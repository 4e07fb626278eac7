"""What DP-SGD clips of a residual network without autograd is what it clips with it, row by row, and is bounded."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.engine.averaging import Averaged
from privfl.engine.sequence_blocks import Fork, Join, Normalised
from privfl.engine.sequence_checks import clips_otherwise, differs_from_autograd
from privfl.engine.sequences import sequence_of
from privfl.engine.stacked_sequences import stacked_sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.models.base import Network, group_norm
from privfl.models.residual import BasicBlock, GlobalAverage, Subsample, resnet_cifar
from privfl.privacy.clipping.factors import shrunk
from privfl.privacy.clipping.lengths import Lengths, PublicRows, identity
from privfl.privacy.clipping.stacked import StackedGradients
from privfl.privacy.door.batch_plans import Epochs
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.keeper import ClientSlot
from privfl.privacy.noise.source import NoiseStream

ROWS = 7
IMAGES = torch.randn(ROWS, 3, 9, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(ROWS) % 4
DPSGD = pf.DPSGD(noise_multiplier=1.0, sample_rate=1.0)


def with_block(change=lambda block: None, **options):
    block = BasicBlock((6, 6), **options)
    change(block)
    return Network(nn.Sequential(nn.Conv2d(3, 6, 3), block, GlobalAverage()), nn.Linear(6, 4))


NETWORKS = {
    "two blocks of every stage": lambda: resnet_cifar((3, 9, 8), 4, blocks=2, width=8),
    "a block behind pooling": lambda: Network(
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), BasicBlock((8, 16), stride=2), nn.Dropout(0.3),
            GlobalAverage(),
        ),
        nn.Linear(16, 4),
    ),
    "a block first": lambda: Network(nn.Sequential(BasicBlock((3, 8)), nn.Flatten()), nn.Linear(576, 4)),
}  # fmt: skip


def workspace(network):
    torch.manual_seed(0)
    space = Workspace.build(network(), torch.device("cpu"), "layers", innermost=True)
    with torch.no_grad():  # layers that begin at one and zero would hide an exchange
        space.own.flat.add_(torch.randn(space.own.flat.shape) * 0.1)
    space.start(NoiseStream(bytes([1] * 32)))
    return space, sequence_of(space.own, cross_entropy, IMAGES, steady=True)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bound", [0.05, 1e6])
def test_clipped_sums_are_those_of_rows_taken_one_by_one(name, bound):
    space, found = workspace(NETWORKS[name])
    own = space.own
    own.module.eval()
    total = torch.zeros_like(own.flat, dtype=torch.float64)
    for row in range(ROWS):
        with torch.enable_grad():
            loss = cross_entropy(own.module, IMAGES[row : row + 1], LABELS[row : row + 1]).sum()
        gradient = torch.cat([part.flatten() for part in own.gradient_of(loss)]).double()
        total += gradient * min(1.0, shrunk(bound, torch.float32) / float(gradient.norm()))
    space.clipper.unaided = found
    own.gradient.fill_(float("nan"))  # whatever lies there
    space.clipper.clipped_sum(cross_entropy, IMAGES, LABELS, bound)
    torch.testing.assert_close(own.gradient, total.float(), rtol=1e-4, atol=1e-5 * float(total.abs().max()))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_norms_and_sums_are_those_of_autograd(name):
    space, found = workspace(NETWORKS[name])
    inputs = IMAGES.clone()
    assert not differs_from_autograd(found, cross_entropy, space.dropout, inputs, LABELS)
    assert not clips_otherwise(found, cross_entropy, space.clipper, space.dropout, inputs, LABELS)
    assert torch.equal(inputs, IMAGES)


@pytest.mark.parametrize("kind", [Normalised, Averaged, Join, Fork])
def test_a_wrong_step_is_found_out(kind, monkeypatch):
    space, found = workspace(NETWORKS["two blocks of every stage"])
    before = kind.backward
    monkeypatch.setattr(kind, "backward", lambda step, back, kept: before(step, back, kept) * 1.01)
    assert clips_otherwise(found, cross_entropy, space.clipper, space.dropout, IMAGES, LABELS)


def at_the_door(inputs, targets):
    """The sum over all rows as the door forms it from what layers say, before its noise."""
    space, found = workspace(NETWORKS["two blocks of every stage"])
    space.clipper.unaided = found
    rows = torch.randn(32, *inputs.shape[1:], generator=torch.Generator().manual_seed(99))
    public = PublicRows(space.own.flat, rows, torch.arange(32) % 4)
    lengths = Lengths(public, identity(space.own.module), "blocks without autograd")
    slot = ClientSlot(0, torch.arange(len(inputs)), Epochs(len(inputs), 1), torch.Generator())
    door = ClientDoor(
        slot, inputs, targets, space.own, space.clipper, cross_entropy, DPSGD, lengths=lengths, announce=space.announce
    )
    with torch.no_grad():
        return door._clipped_sum(cross_entropy, door.everything(), space.own.flat, {}, 1.0).double().clone()


@pytest.mark.parametrize("common", [1.0, 1e6, "wide"])
def test_one_row_more_moves_the_sum_by_no_more_than_the_bound_whatever_the_magnitudes(common):
    generator = torch.Generator().manual_seed(5)
    for count in (1, 2, 7, 15, 16):
        inputs = torch.randn(count + 1, 3, 9, 8, generator=generator)
        if common == "wide":
            inputs *= 10.0 ** (torch.rand(inputs.shape, generator=generator) * 14 - 6)
        else:
            inputs += common
        labels = torch.randint(4, (count + 1,), generator=generator)
        moved = at_the_door(inputs, labels) - at_the_door(inputs[:count], labels[:count])
        assert float(moved.norm()) <= 1.0


def test_a_row_that_is_not_finite_counts_as_zero():
    inputs = IMAGES.clone()
    inputs[3, 0, 4, 4] = float("nan")
    keep = torch.arange(ROWS) != 3
    found, without = at_the_door(inputs, LABELS), at_the_door(IMAGES[keep], LABELS[keep])
    torch.testing.assert_close(found, without, rtol=1e-5, atol=1e-6)


def replaced(name, part):
    return lambda block: setattr(block, name, part)


class Other(BasicBlock):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize(
    "network",
    [
        with_block(activation=F.silu), with_block(linear_sum=True), with_block(project=True, stride=2),
        with_block(replaced("norm2", nn.Identity())), with_block(replaced("norm2", nn.GroupNorm(2, 6, affine=False))),
        with_block(replaced("conv1", nn.Conv2d(6, 6, 2, padding="same"))), with_block(replaced("shortcut", nn.ReLU())),
        Network(nn.Sequential(Other((3, 6)), GlobalAverage()), nn.Linear(6, 4)),
    ],
    ids=["activation", "linear sum", "projection", "no normalisation", "normalisation without parameters",
         "uneven padding", "shortcut", "subclass"],
)  # fmt: skip
def test_what_is_not_exactly_a_known_block_keeps_autograd(network):
    space = Workspace.build(network, torch.device("cpu"), "layers", innermost=True)
    found = sequence_of(space.own, cross_entropy, IMAGES, steady=True)
    assert found is None or not any(isinstance(step, Fork) for step in found.steps)


def test_blocks_serve_dp_sgd_in_the_loop_alone():
    """Plain gradients gain nothing by it, and stacks have no such steps."""
    space, found = workspace(NETWORKS["two blocks of every stage"])
    assert {Normalised, Averaged, Fork, Join} <= {type(step) for step in found.steps}
    assert sum(step.shortcut is not None for step in found.steps if isinstance(step, Join)) == 2
    assert sequence_of(space.own, cross_entropy, IMAGES) is None
    stacked = StackedGradients(space.own, "layers")
    assert stacked_sequence_of(found, stacked, space.dropout, IMAGES[:4], LABELS[:4], steady=True) == ""


@pytest.mark.parametrize("innermost", [False, True])
def test_normalisation_reads_its_values_where_they_are(innermost):
    """Whatever the layout of what it is given and of what arrives; the kernels look at sizes alone."""
    layer = group_norm(16)
    nn.init.normal_(layer.weight)
    step, layout = Normalised(layer), torch.channels_last if innermost else torch.contiguous_format
    given = torch.randn(4, 16, 5, 6).contiguous(memory_format=layout).requires_grad_()
    wanted = layer(given)
    for back in (torch.randn(4, 16, 5, 6), torch.randn(4, 5, 6, 16).permute(0, 3, 1, 2), torch.randn(4, 16, 6, 5).mT):
        expected = torch.autograd.grad(wanted, [given, *layer.parameters()], back, retain_graph=True)
        with torch.no_grad():
            output, kept = step.forward(given)
            places = {"weight": torch.empty(16), "bias": torch.empty(16)}
            step.write(back, kept, places)
            found = step.backward(back, kept)
        torch.testing.assert_close(output, wanted)
        for one, other in zip((found, places["weight"], places["bias"]), expected, strict=True):
            torch.testing.assert_close(one, other)


def test_normalisation_says_what_each_sample_gives_its_parameters_where_samples_lie_one_after_the_other():
    layer = group_norm(16)
    nn.init.normal_(layer.weight)
    given, back = torch.randn(4, 16, 5, 6), torch.randn(4, 16, 5, 6)
    alone = [
        torch.autograd.grad(layer(row[None]), list(layer.parameters()), of[None])
        for row, of in zip(given, back, strict=True)
    ]
    with torch.no_grad():
        for arriving in (back, back.contiguous(memory_format=torch.channels_last)):
            _, kept = Normalised(layer).forward(given)
            Normalised(layer).backward(arriving, kept)
            for name, rows in zip(("weight", "bias"), zip(*alone, strict=True), strict=True):
                torch.testing.assert_close(kept.formed[name], torch.stack(rows))
        _, kept = Normalised(layer).forward(given.contiguous(memory_format=torch.channels_last))
        Normalised(layer).backward(back, kept)
    assert kept.formed is None


def test_a_shortcut_without_parameters_takes_every_second_position():
    fork = Fork()
    join = Join(fork, Subsample(2, 3))
    given, rest = torch.randn(2, 5, 7, 6), torch.randn(2, 8, 4, 3)
    expected = rest + Subsample(2, 3)(given)
    fork.forward(given)
    assert torch.equal(join.forward(rest.clone())[0], expected)
    leaf = given.clone().requires_grad_()
    back, through = torch.randn(2, 8, 4, 3), torch.randn(2, 5, 7, 6)
    Subsample(2, 3)(leaf).backward(back)
    assert join.backward(back, None) is back
    torch.testing.assert_close(fork.backward(through.clone(), None), through + leaf.grad)
