"""Clipped sums of per-sample gradients equal a loop over single rows, for every shipped model and every layer rule."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privfl import products
from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from privfl.models import build, models
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.per_sample import PerSampleGradients, unknown_layers
from privfl.privacy.clipping.probe import check_per_sample

SMALL = {
    "efficientnet-b0": {"width": 4},
    "mobilenet": {"width": 8},
    "resnet9": {"width": 8},
    "resnet10": {"width": 8},
    "fedevg-resnet10": {"width": 8},
    "resnet10-energy": {"width": 8},
    "resnet20": {"width": 8},
    "resnet32": {"width": 8},
    "vgg9": {"width": 4, "hidden": 16},
    "text-cnn": {"embedding_dim": 8, "filters": 8, "hidden": 8},
    "transformer": {"embedding_dim": 8, "heads": 2, "head_dim": 4, "hidden": 8},
    "distilbert": {"layers": 1, "width": 8, "heads": 2, "hidden": 12, "positions": 10, "dropout": 0.0},
    "lstm": {"embedding_dim": 4, "hidden": 8},
}


def one_row_at_a_time(network, loss, inputs, targets, max_grad_norm):
    """The reference: a backward pass for every row, clipped and added up."""
    total = torch.zeros_like(network.flat)
    norms = []
    for row in range(len(inputs)):
        value = loss(network.module, inputs[row : row + 1], targets[row : row + 1]).sum()
        trained = [parameter for parameter in network.parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True))
        parts = [next(found) if p.requires_grad else torch.zeros_like(p) for p in network.parameters]
        gradient = torch.cat([part.flatten() for part in parts])
        norm = float(gradient.norm())
        norms.append(norm)
        total += gradient * min(1.0, max_grad_norm * (1 - 1e-5) / norm if norm else 1.0)
    return total, torch.tensor(norms, dtype=network.flat.dtype)


def agree(
    module,
    inputs,
    targets,
    *,
    loss=cross_entropy,
    ways=("layers", "rows", "vmap"),
    norms=(0.05, 1.0, math.inf),
    rel=1e-9,
):
    module = module.double().eval()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    for way in ways:
        network = FlatNetwork(module)
        clipper = PerSampleGradients(network, way)
        for max_grad_norm in norms:
            expected, expected_norms = one_row_at_a_time(network, loss, inputs, targets, max_grad_norm)
            found = clipper.clipped_sum(loss, inputs, targets, max_grad_norm)
            scale = float(expected.abs().max()) + 1e-12
            assert float((network.gradient - expected).abs().max()) < rel * scale, (way, max_grad_norm)
            torch.testing.assert_close(found, expected_norms, rtol=1e-8, atol=1e-10)


OWN_LAYERS = {"resnet10-energy", "energy-cnn"}
"""Models with a layer that no rule knows: the head divided by its spectral norm."""


@pytest.mark.parametrize("info", [one for one in models() if one.name != "next-token-lstm"], ids=lambda info: info.name)
def test_every_shipped_model(info):
    options = SMALL.get(info.name, {})
    shape, vocabulary = info.input_shape, info.vocabulary
    if vocabulary is not None:
        shape, vocabulary = (9,), 30
    module = build(info.name, shape, 4, vocabulary=vocabulary, seed=1, **options)
    generator = torch.Generator().manual_seed(2)
    if vocabulary is None:
        inputs = torch.randn(3, *shape, generator=generator)
    else:
        inputs = torch.randint(vocabulary, (3, *shape), generator=generator)
    targets = torch.tensor([0, 3, 1])
    way = "vmap" if info.name in OWN_LAYERS else "layers"
    assert (unknown_layers(module) == []) is (way == "layers")
    assert check_per_sample(FlatNetwork(module), cross_entropy, inputs, targets) == way
    ways = ("vmap",) if way == "vmap" else ("layers", "rows")
    agree(module, inputs, targets, ways=ways, norms=(0.1, math.inf), rel=1e-8)


LAYERS = {
    "linear": (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)), (5,)),
    "linear without bias": (nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 4)), (5,)),
    "linear over time, few steps": (nn.Sequential(nn.Linear(9, 11), nn.Tanh(), nn.Flatten(), nn.Linear(22, 4)), (2, 9)),
    "linear over time, many steps": (
        nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(60, 4)),
        (20, 2),
    ),
    "linear on a grid": (nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(40, 4)), (2, 4, 3)),
    "convolution": (nn.Sequential(nn.Conv2d(2, 6, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)), (2, 7, 6)),
    "convolution, strided, padded, dilated": (
        nn.Sequential(nn.Conv2d(2, 6, 3, stride=2, padding=2, dilation=2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (2, 8, 9),
    ),
    "convolution of many channels, strided, padded, dilated": (
        nn.Sequential(nn.Conv2d(6, 4, 3, stride=2, padding=2, dilation=2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (6, 7, 6),
    ),
    "convolution of few positions, strided, padded, dilated": (
        nn.Sequential(nn.Conv2d(6, 24, 3, stride=2, padding=1, dilation=2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (6, 7, 6),
    ),
    "convolution of few positions, 1-d": (
        nn.Sequential(nn.Conv1d(5, 16, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (5, 4),
    ),
    "convolution of uneven kernel, stride, padding, dilation": (
        nn.Sequential(
            nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(0, 1), dilation=(1, 3)),
            nn.Tanh(),
            nn.Flatten(),
            nn.LazyLinear(4),
        ),
        (2, 7, 6),
    ),
    "convolution in groups": (
        nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (4, 6, 6),
    ),
    "convolution, same padding, even kernel": (
        nn.Sequential(nn.Conv2d(2, 3, 4, padding="same"), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (2, 5, 6),
    ),
    "convolution, circular": (
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)
        ),
        (2, 5, 6),
    ),
    "convolution, reflected": (
        nn.Sequential(nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (2, 9),
    ),
    "convolution, 1-d": (
        nn.Sequential(nn.Conv1d(2, 3, 4, stride=3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        (2, 11),
    ),
    "convolution, 3-d": (nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)), (1, 3, 4, 3)),
    "group norm": (nn.Sequential(nn.GroupNorm(2, 6), nn.Flatten(), nn.LazyLinear(4)), (6, 3, 2)),
    "layer norm": (nn.Sequential(nn.LayerNorm((3, 2)), nn.Flatten(), nn.LazyLinear(4)), (5, 3, 2)),
    "layer norm without bias": (nn.Sequential(nn.LayerNorm(6, bias=False), nn.LazyLinear(4)), (6,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_rule(name):
    torch.manual_seed(0)
    module, shape = LAYERS[name]
    inputs = torch.randn(4, *shape)
    module(inputs)  # gives lazy layers their shapes
    agree(module, inputs, torch.tensor([0, 1, 2, 3]))


class Bag(nn.Module):
    def __init__(self, padding=None):
        super().__init__()
        self.embed = nn.Embedding(6, 5, padding_idx=padding)
        self.head = nn.Linear(5, 4)

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1))


@pytest.mark.parametrize("padding", [None, 0])
def test_embeddings_with_repeated_and_padded_tokens(padding):
    torch.manual_seed(0)
    tokens = torch.tensor([[1, 1, 2, 0], [3, 0, 0, 0], [5, 5, 5, 5]])
    agree(Bag(padding), tokens, torch.tensor([0, 1, 2]), ways=("layers", "rows"))


class Repeated(nn.Module):
    """One layer called three times, one never."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.unused = nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(3, 3)

    def forward(self, inputs):
        for _ in range(3):
            inputs = torch.tanh(self.cell(inputs))
        return self.head(inputs)


def test_a_layer_that_is_called_several_times_and_one_that_never_is():
    torch.manual_seed(0)
    agree(Repeated(), torch.randn(4, 5), torch.tensor([0, 1, 2, 3]), ways=("layers", "rows"))


def test_frozen_parameters_get_no_gradient_and_count_for_nothing():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    for parameter in module[2].parameters():
        parameter.requires_grad_(False)
    agree(module, torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))
    module[0].weight.requires_grad_(False)
    agree(module, torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))
    agree(module, torch.randn(4, 3, 5), torch.tensor([0, 1, 2, 3]), loss=lambda n, x, y: n(x).square().sum((1, 2)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


class Raw(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(5, 4)

    def forward(self, inputs):
        return self.scale * self.layer(inputs)


class Tempered(Raw):
    """A parameter that is a single number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))


class Functional(nn.Module):
    """A layer whose weight is also used behind its back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, inputs):
        return self.layer(inputs) + F.linear(inputs.sin(), self.layer.weight)


@pytest.mark.parametrize("kind", [Tied, Raw, Tempered, Functional])
def test_what_the_layer_rules_cannot_see_goes_by_vmap(kind):
    torch.manual_seed(0)
    module, inputs, targets = kind(), torch.randn(4, 4 if kind is Tied else 5), torch.tensor([0, 1, 2, 3])
    assert check_per_sample(FlatNetwork(module), cross_entropy, inputs, targets) == "vmap"
    agree(kind(), inputs, targets, ways=("vmap",))


def test_a_loss_that_branches_on_values_is_to_blame_itself():
    def branching(network, inputs, targets):
        losses = cross_entropy(network, inputs, targets)
        return losses * (2 if losses.mean().item() > 0 else 1)

    with pytest.raises(ConfigError, match=r"the model or its loss fails .* write it without \.item\(\)"):
        check_per_sample(FlatNetwork(nn.Linear(5, 4)), branching, torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))


def test_a_loss_may_use_features_and_head():
    module = build("two-nn", (1, 4, 4), 4, seed=1, hidden=(6,))

    def loss(network, inputs, targets):
        features = network.features(inputs)
        return F.cross_entropy(network.head(features), targets, reduction="none") + features.square().sum(1)

    agree(module, torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2]), loss=loss)


class Positions(nn.Module):
    """A position embedding that is looked up once for the whole batch: its gradients belong to no sample."""

    def __init__(self, length):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 6), nn.Embedding(length, 6), nn.Linear(6, 3)

    def forward(self, tokens):
        return self.head((self.words(tokens) + self.places(torch.arange(tokens.shape[1]))).tanh().mean(1))


@pytest.mark.parametrize("length", [4, 6])
def test_a_layer_whose_rows_are_not_samples_is_seen_once_for_every_row(length):
    torch.manual_seed(0)
    network = FlatNetwork(Positions(length))
    tokens, targets = torch.randint(9, (4, length)), torch.randint(3, (4,))
    assert check_per_sample(network, cross_entropy, tokens, targets) == "rows"
    agree(Positions(length), tokens, targets, ways=("rows", "vmap"))


def test_a_layer_that_no_way_serves_is_named_with_the_mend():
    class Peeking(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, inputs):
            return (inputs if inputs.abs().max().item() < 1e9 else 0 * inputs) * self.weight

    network = FlatNetwork(nn.Sequential(nn.Linear(5, 5), Peeking()))
    with pytest.raises(ConfigError, match=r"per-sample gradients of 1 \(Peeking\) cannot be formed .*opacus\.layers"):
        check_per_sample(network, cross_entropy, torch.randn(4, 5), torch.randint(5, (4,)))


def recurrent(layer):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = layer(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, inputs):
            return self.head(self.cells(inputs)[0][:, -1])

    torch.manual_seed(0)
    return FlatNetwork(Recurrent()), (torch.randn(4, 5, 4), torch.randint(3, (4,)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_frameworks_lstm_goes_by_vmap():
    network, probe = recurrent(nn.LSTM)
    assert check_per_sample(network, cross_entropy, *probe) == "vmap"


@pytest.mark.parametrize("layer", [nn.GRU, nn.RNN])
def test_the_frameworks_other_recurrent_layers_are_refused_by_name(layer):
    network, probe = recurrent(layer)
    with pytest.raises(ConfigError, match=rf"per-sample gradients of cells \({layer.__name__}\) cannot be formed"):
        check_per_sample(network, cross_entropy, *probe)


def test_a_loss_that_couples_samples_is_refused():
    def coupled(network, inputs, targets):
        logits = network(inputs)
        return F.cross_entropy(logits - logits.mean(0), targets, reduction="none")

    network = FlatNetwork(nn.Linear(5, 4))
    with pytest.raises(ConfigError, match="one term per sample"):
        check_per_sample(network, coupled, torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_too_coarse_for_sums_are_refused(dtype):
    network = FlatNetwork(nn.Linear(5, 4).to(dtype))
    with pytest.raises(ConfigError, match=rf"parameters in {dtype}, too coarse .* precision = 'bfloat16'"):
        check_per_sample(network, cross_entropy, torch.randn(4, 5, dtype=dtype), torch.arange(4))


def test_a_mean_loss_is_refused():
    network = FlatNetwork(nn.Linear(5, 4))
    with pytest.raises(ConfigError, match="one term per sample"):
        check_per_sample(network, lambda n, x, y: F.cross_entropy(n(x), y), torch.randn(4, 5), torch.arange(4))


@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30])
def test_a_sample_whose_gradient_is_not_finite_counts_as_zero(way, poison):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))
    network = FlatNetwork(module)
    clipper = PerSampleGradients(network, way)
    inputs, targets = torch.randn(5, 16), torch.arange(5) % 4
    others = [0, 1, 3, 4]
    clipper.clipped_sum(cross_entropy, inputs[others], targets[others], 1.0)
    expected = network.gradient.clone()
    inputs[2] = poison
    clipper.clipped_sum(cross_entropy, inputs, targets, 1.0)
    assert bool(network.gradient.isfinite().all())
    if not math.isfinite(poison):
        torch.testing.assert_close(network.gradient, expected)


@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
def test_an_empty_batch_gives_a_zero_gradient(way):
    network = FlatNetwork(nn.Linear(5, 4))
    network.gradient.fill_(7)
    norms = PerSampleGradients(network, way).clipped_sum(cross_entropy, torch.zeros(0, 5), torch.zeros(0).long(), 1.0)
    assert norms.shape == (0,)
    assert float(network.gradient.abs().max()) == 0


def test_one_sample_never_moves_the_sum_by_more_than_the_bound():
    torch.manual_seed(0)
    network = FlatNetwork(build("rebafl-fmnist", (1, 28, 28), 10, seed=0))
    clipper = PerSampleGradients(network)
    for scale in (0.01, 1.0, 100.0):
        inputs, targets = scale * torch.randn(20, 1, 28, 28), torch.randint(10, (20,))
        clipper.clipped_sum(cross_entropy, inputs, targets, 0.7)
        whole = network.gradient.double().clone()
        for left_out in (0, 7, 19):
            rest = [row for row in range(20) if row != left_out]
            clipper.clipped_sum(cross_entropy, inputs[rest], targets[rest], 0.7)
            assert float((whole - network.gradient.double()).norm()) <= 0.7 * (1 + 1e-6)


def test_batch_norm_is_refused_by_its_name():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(ConfigError, match=r"layer '1' is BatchNorm2d.*use GroupNorm"):
        FlatNetwork(module)


def test_a_linear_layer_is_given_as_many_rows_as_products_need(monkeypatch):
    monkeypatch.setattr(products, "forms", lambda: products.Forms(fewest=16))
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(5, 1, 5, 5, generator=draws), torch.tensor([0, 1, 2, 0, 1])
    agree(module, inputs, targets)
    taken = []
    for layer in (module[0], module[2], module[4]):
        forward = layer.forward
        monkeypatch.setattr(layer, "forward", lambda x, forward=forward: taken.append(len(x)) or forward(x))
    clipper = PerSampleGradients(FlatNetwork(module), "layers")
    monkeypatch.setattr(clipper, "serves_batches", lambda *_: True)
    clipper.clipped_sum(cross_entropy, inputs.double(), targets, 1.0)
    with torch.no_grad():
        clipper.plain_sum(cross_entropy, inputs.double(), targets, 5.0)
    assert taken == [5, 16, 16, 5, 5, 5]
