"""Stacked gradients laid out for a device are autograd's, whatever the convolutions, plainly and row by row."""

import pytest
import torch
from torch import nn

from privfl.engine import device_sequences
from privfl.engine.device_sequences import DeviceSequence, _geometry
from privfl.engine.sequences import Convolution, sequence_of
from privfl.engine.stacked_sequences import stacked_sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.noise.source import NoiseStream

CLIENTS, ROWS = 3, 6
IMAGES = torch.randn(CLIENTS, ROWS, 2, 9, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % 4


def pooled():
    body = [nn.Conv2d(2, 5, 3, stride=(2, 1), padding=(1, 2)), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)]
    body += [nn.Conv2d(5, 6, 2, bias=False), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(24, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 4))


NETWORKS = {
    "pooled": pooled,
    "padded inside": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 5, stride=3, padding=2),
        nn.Flatten(),
        nn.Linear(27, 4),
    ),
    "pooled first": lambda: nn.Sequential(
        nn.MaxPool2d(2),
        nn.Conv2d(2, 4, 2),
        nn.Dropout(0.5),
        nn.Conv2d(4, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(3, 4),
    ),
    "steps beyond windows": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Conv2d(3, 2, 1, stride=2), nn.Flatten(), nn.Linear(40, 4)
    ),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 6, bias=False), nn.ReLU(), nn.Linear(6, 4)),
}


def built(name, way):
    torch.manual_seed(0)
    space = Workspace.build(NETWORKS[name](), torch.device("cpu"), None)
    gradients = StackedGradients(space.own, way)
    single = sequence_of(space.own, cross_entropy, IMAGES[0], anywhere=True)
    public = IMAGES[0, :4], LABELS[0, :4]
    found = stacked_sequence_of(single, gradients, space.dropout, *public, steady=False, kind=DeviceSequence)
    assert isinstance(found, DeviceSequence)
    return found, gradients, space


def with_counts(space, counts):
    """The batch of the clients' first rows, so many of each; their masks begin anew."""
    for layer in space.dropout:
        layer.stack, layer.counts = [NoiseStream(bytes([client]) * 32) for client in range(len(counts))], counts
    rows = max(counts)
    mask = None if min(counts) == rows else torch.arange(rows) < torch.tensor(counts)[:, None]
    return StackedBatch(IMAGES[:, :rows], LABELS[:, :rows], mask, {})


@pytest.fixture(params=[False, True], ids=["few values", "many values"])
def many(request, monkeypatch):
    """Whether what goes back through a convolution is added up as if windows held many values."""
    monkeypatch.setattr(device_sequences, "MANY", 0 if request.param else device_sequences.MANY)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("counts", [(6, 6, 6), (5, 2, 1), (1, 1, 1)])
def test_plain_sums_are_those_of_autograd(name, counts):
    found, gradients, space = built(name, None)
    parameters = space.own.flat.detach() * torch.linspace(0.5, 1.5, CLIENTS)[:, None]
    wanted = gradients.plain_sum(cross_entropy, parameters, with_counts(space, counts))
    with torch.no_grad():
        sums = found.plain_sum(parameters, with_counts(space, counts))
    torch.testing.assert_close(sums, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("counts", [(6, 6, 6), (5, 2, 1)])
@pytest.mark.parametrize("whole", [False, True])
def test_clipped_sums_are_those_of_autograd(name, counts, whole):
    found, gradients, space = built(name, "layers")
    parameters = space.own.flat.detach() * torch.linspace(0.5, 1.5, CLIENTS)[:, None]
    wanted = gradients.clipped_sum(cross_entropy, parameters, with_counts(space, counts), 0.3)
    gradients.unaided, gradients.whole_rows = found, whole
    sums = gradients.clipped_sum(cross_entropy, parameters, with_counts(space, counts), 0.3)
    torch.testing.assert_close(sums, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outermost", [False, True])
def test_windows_and_shares_are_those_of_unfolding(outermost):
    height, width, channels = 7, 5, 3
    layer = nn.Conv2d(channels, 1, (3, 2), stride=(2, 1), padding=(1, 0))
    found = _geometry(Convolution(layer), (height, width, channels), torch.device("cpu"), outermost=outermost)
    image = torch.randn(1, channels, height, width, generator=torch.Generator().manual_seed(0)).requires_grad_()
    unfolded = nn.functional.unfold(image, layer.kernel_size, padding=layer.padding, stride=layer.stride)
    memory = (image if outermost else image.permute(0, 2, 3, 1)).reshape(-1)
    windows = torch.cat([memory, memory.new_zeros(1)])[found.windows]
    torch.testing.assert_close(windows.view(-1, unfolded.shape[1]), unfolded[0].T)
    assert found.output == (4, 4)
    back = torch.randn(unfolded.shape, generator=torch.Generator().manual_seed(1))
    (expected,) = torch.autograd.grad(unfolded, image, back)
    spread = torch.cat([back[0].T.reshape(-1), back.new_zeros(unfolded.shape[1])])
    shares = spread[found.shares].view(height, width, channels, -1).sum(3)
    torch.testing.assert_close(shares.permute(2, 0, 1), expected[0])
