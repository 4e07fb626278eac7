"""Every step of a sequence is the layer that it stands for, forward, backward and in what its parameters get."""

import pytest
import torch
from torch import nn

from privfl.engine.dropout import StreamDropout
from privfl.engine.sequence_steps import Convolution, Dropped, Flattened, Leaking, Linear, Pooled, Rectified, Tanh
from privfl.engine.sequences import sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.models.layouts import INNERMOST, InnermostPool
from privfl.privacy.noise.source import NoiseStream

IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), Linear, IMAGES.view(-1, 6)[:7]),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), Linear, IMAGES.view(-1, 6)[:7]),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), Convolution, IMAGES),
    "convolution, channels innermost": (
        lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1),
        Convolution,
        IMAGES.contiguous(memory_format=INNERMOST),
    ),
    "convolution without bias": (lambda: nn.Conv2d(3, 4, 3, bias=False), Convolution, IMAGES),
    "rectified": (nn.ReLU, Rectified, IMAGES),
    "leaking": (lambda: nn.LeakyReLU(0.3), Leaking, IMAGES),
    "tanh": (nn.Tanh, Tanh, IMAGES),
    "pooled": (lambda: nn.MaxPool2d(3, 2), Pooled, IMAGES),
    "flattened": (nn.Flatten, Flattened, IMAGES.contiguous(memory_format=INNERMOST)),
}


def step_of(kind, layer):
    if kind is Linear:
        return Linear(layer, steady=False)
    return kind() if kind in (Rectified, Tanh, Flattened) else kind(layer)


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_is_its_layer(name):
    make, kind, inputs = LAYERS[name]
    torch.manual_seed(1)
    layer = make()
    step, given = step_of(kind, layer), inputs.clone().requires_grad_()
    wanted = layer(given)
    back = torch.randn_like(wanted)
    wanted.backward(back)
    with torch.no_grad():
        found, kept = step.forward(inputs.clone())
        torch.testing.assert_close(found, wanted)
        if isinstance(step, Linear | Convolution):
            before = {name: value.clone() for name, value in layer.named_parameters()}
            places = {name: torch.empty_like(value) for name, value in before.items()}
            step.write(back, kept, places)
            step.descend(back, kept, 0.5)
            for name, value in layer.named_parameters():
                torch.testing.assert_close(places[name], value.grad)
                torch.testing.assert_close(value, before[name] - 0.5 * value.grad)
                value.copy_(before[name])
        torch.testing.assert_close(step.backward(back.clone(), kept), given.grad)


@pytest.mark.parametrize("probability", [0.25, 0.3, 1.0])
@pytest.mark.parametrize("dims", [None, 2])
def test_drop_out_multiplies_both_ways_with_the_layer_s_masks(probability, dims):
    layer = StreamDropout(probability, dims)
    layer.generator = NoiseStream(bytes(32))
    wanted = layer(torch.ones_like(IMAGES))
    layer.generator = NoiseStream(bytes(32))
    step = Dropped(layer)
    found, kept = step.forward(IMAGES)
    assert torch.equal(found, IMAGES * wanted)
    assert torch.equal(step.backward(torch.ones_like(IMAGES), kept), wanted)


def steps(*parts):
    network = nn.Sequential(*parts, nn.Linear(4, 3))
    own = Workspace.build(network, torch.device("cpu"), None, innermost=True).own
    found = sequence_of(own, cross_entropy, IMAGES)
    assert found is not None
    apart = [one for step in found.steps for one in getattr(step, "steps", [step])]
    return [type(step).__name__ for step in apart]


def test_steps_stand_where_they_cost_least():
    parts = nn.Conv2d(3, 1, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Dropout(0.5), nn.Flatten()
    before = ["Relaid", "Convolution", "Pooled"]  # which does what ReLU would
    assert steps(*parts) == [*before, "Flattened", "Dropped", "Linear"]
    assert steps(*parts[:3], nn.Dropout2d(0.5), nn.Flatten()) == [*before, "Dropped", "Flattened", "Linear"]


@pytest.mark.parametrize(("layer", "name"), [(nn.LeakyReLU(), "Leaking"), (nn.Tanh(), "Tanh")])
def test_pooling_goes_in_front_of_what_never_falls(layer, name):
    parts = nn.Conv2d(3, 1, 3), layer, nn.MaxPool2d(3), nn.Flatten()
    assert steps(*parts) == ["Relaid", "Convolution", "Pooled", name, "Flattened", "Linear"]


def test_pools_of_both_kinds_are_one_step():
    pool = nn.MaxPool2d(2)
    assert Pooled(InnermostPool(pool).layer).settings == Pooled(pool).settings
