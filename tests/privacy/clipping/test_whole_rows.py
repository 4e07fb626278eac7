"""Gradients that are formed row by row in one piece are clipped as by the layers' rules, and none exceeds the bound."""

import math

import pytest
import torch
from torch import nn

from privfl.federation.losses import cross_entropy
from privfl.models.flat_network import FlatNetwork, Layout
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.clipping.whole_rows import BYTES, LARGEST, clipped_rows, in_whole_rows
from tests.device.stand_in import stand_in_cuda

CLIENTS, ROWS = 3, 7


class Recurrent(nn.Module):
    """A layer that is called twice, and one that never is."""

    def __init__(self):
        super().__init__()
        self.step, self.head, self.idle = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(2, 2)

    def forward(self, inputs):
        return self.head(torch.tanh(self.step(torch.tanh(self.step(inputs.flatten(1)[:, :6])))))


def frozen():
    network = nn.Sequential(nn.Flatten(), nn.Linear(2 * 6 * 6, 5), nn.ReLU(), nn.Linear(5, 4))
    network[1].weight.requires_grad_(False)
    return network


NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 5, bias=False), nn.ReLU(), nn.Linear(5, 4)),
    "normalised": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 3, 2, stride=2), nn.Flatten(), nn.Linear(12, 4)
    ),
    "positions": lambda: nn.Sequential(
        nn.Flatten(2), nn.Linear(36, 9), nn.LayerNorm(9), nn.Flatten(), nn.Linear(18, 4)
    ),
    "recurrent": Recurrent,
    "frozen": frozen,
}


def stack(name, way, *, whole):
    torch.manual_seed(0)
    network = FlatNetwork(NETWORKS[name]())
    gradients = StackedGradients(network, way)
    gradients.whole_rows = whole
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS, ROWS, 2, 6, 6, generator=generator)
    targets = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % 4
    parameters = network.flat.detach() * torch.tensor([[1.0], [0.7], [1.3]])
    return gradients, parameters, inputs, targets


@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bound", [0.05, 1.0, math.inf])
def test_sums_and_norms_are_those_of_the_layers_rules(name, way, bound):
    mask = torch.arange(ROWS) < torch.tensor([[7], [4], [0]])
    found = []
    for whole in (False, True):
        gradients, parameters, inputs, targets = stack(name, way, whole=whole)
        batch = StackedBatch(inputs, targets, mask, {})
        norms = gradients.norms(cross_entropy, parameters, batch)[mask]
        found.append((gradients.clipped_sum(cross_entropy, parameters, batch, bound), norms))
    for expected, one in zip(*found, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-6)
    assert not found[1][0][2].any(), "a client without rows has no sum"


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e12, 1e25, 1e38])
@pytest.mark.parametrize("on_device", [False, True], ids=["here", "on the device"])
def test_what_a_row_adds_is_no_longer_than_the_bound(name, scale, on_device):
    if name == "frozen" and on_device:
        pytest.skip(
            "C++ transposes a weight that is the same for every client, and the stand-in loses its values there"
        )
    gradients, parameters, inputs, targets = stack(name, "layers", whole=True)
    inputs[:, 2] *= scale
    bound = 0.3

    def total(rows):
        batch = StackedBatch(inputs[:, rows], targets[:, rows], None, {})
        return gradients.clipped_sum(cross_entropy, parameters, batch, bound).double()

    def on_the_device(rows):
        with stand_in_cuda():
            torch.manual_seed(0)
            there = StackedGradients(FlatNetwork(NETWORKS[name]().to("cuda")), "layers")
            there.whole_rows = True
            batch = StackedBatch(inputs[:, rows].to("cuda"), targets[:, rows].to("cuda"), None, {})
            return there.clipped_sum(cross_entropy, parameters.to("cuda"), batch, bound).cpu().double()

    total = on_the_device if on_device else total
    everyone, others = total(list(range(ROWS))), [0, 1, *range(3, ROWS)]
    assert bool(everyone.isfinite().all())
    assert float((everyone - total(others)).norm(dim=1).max()) <= bound
    assert float(total([2]).norm(dim=1).max()) <= bound


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("on_device", [False, True], ids=["here", "on the device"])
def test_a_row_that_is_not_finite_counts_as_zero_and_moves_no_other(value, on_device):
    rows = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    layout = Layout(("one", "none", "two"), (torch.Size([2, 2]), torch.Size([3]), torch.Size([2])))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 4] = False

    def clipped(rows, mask):
        formed, like = {"one": rows[..., :4], "two": rows[..., 4:]}, rows.new_zeros(2, 9)
        return clipped_rows(formed, layout, mask.shape, 0.5, like, None, mask.to(rows.device))

    keep = [0, 1, 2, 4]
    expected, _ = clipped(rows[:, keep], mask[:, keep])
    rows[1, 3, 5] = value
    rows[0, 3] = 0.0
    if on_device:
        with stand_in_cuda() as counts:
            found, clipping = clipped(rows.to("cuda"), mask)
            assert not [line for line in counts.waits if line.startswith("privfl/")]
            found, factors = found.cpu(), clipping.factors.cpu()
    else:
        found, clipping = clipped(rows, mask)
        factors = clipping.factors
    torch.testing.assert_close(found, expected)
    assert not found[:, 4:7].any()
    assert (float(factors[1, 3]), float(factors[0, 4])) == (0.0, 0.0)


def test_they_are_formed_on_a_device_where_they_fit():
    most = LARGEST // BYTES // 2
    assert in_whole_rows(torch.device("cuda"), 16, most // 16)
    assert not in_whole_rows(torch.device("cuda"), 16, most // 16 + 1)
    assert not in_whole_rows(torch.device("cpu"), 1, 1)


def test_an_embedding_keeps_the_layers_rules():
    torch.manual_seed(0)
    network = FlatNetwork(nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 4)))
    batch = StackedBatch(torch.arange(24).view(2, 3, 4) % 9, torch.zeros(2, 3, dtype=torch.int64), None, {})
    parameters, sums = torch.stack([network.flat.detach()] * 2), []
    for whole in (False, True):
        gradients = StackedGradients(network, "layers")
        gradients.whole_rows = whole
        sums.append(gradients.clipped_sum(cross_entropy, parameters, batch, 0.1))
    assert torch.equal(*sums)
