"""Each network against its paper: parameter counts from closed forms, and twins written another way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.models import Network, build, models
from privfl.models.base import group_norm
from privfl.models.residual import BasicBlock
from privfl.models.text import AttentionPooling, SelfAttention


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def conv_and_fc(network: nn.Module) -> int:
    return sum(p.numel() for m in network.modules() if not isinstance(m, nn.GroupNorm) for p in m.parameters(False))


def fill_like(network: nn.Module, twin: nn.Module) -> None:
    """Copy the parameters of ``network`` to ``twin`` in order."""
    with torch.no_grad():
        for source, target in zip(network.parameters(), twin.parameters(), strict=True):
            target.copy_(source)


# Published totals: McMahan et al. 2017, §3 (199,210 and 1,663,370). Counted in the authors' code: the pfl-research
# benchmark network moved to 1x28x28 (1,199,882), FedEvg's ResNet-10 on MNIST (4,979,914; CIFAR-10 below). The others
# are sums over layers, written out.
COUNTS = {
    "logistic": 784 * 10 + 10,
    "two-nn": 199_210,
    "two-cnn": 1_663_370,
    "rebafl-fmnist": (25 * 16 + 16) + (25 * 16 * 32 + 32) + (32 * 5 * 5 * 128 + 128) + (128 * 10 + 10),
    "rebafl-cifar": (75 * 16 + 16) + (400 * 32 + 32) + (288 * 64 + 64) + (64 * 3 * 3 * 128 + 128) + 128 * 10,
    "moon-cnn": (75 * 6 + 6) + (150 * 16 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 85 + 85 * 256) + 257 * 10,
    "resnet8": 432 + 2 * 2304 + (4608 + 9216) + (18432 + 36864) + 650 + 2 * (3 * 16 + 2 * 32 + 2 * 64),
    "resnet9": 1728 + 73_728 + 229_376 + 917_504 + 3_670_016 + 2 * (3 * 64 + 3 * 896) + 512 * 256 + 256 * 10,
    "vgg9": 9 * (16 + 16 * 32 + 32 * 64 + 64 * 128 + 128 * 256 + 256 * 512) + 512 * 256 + 256 * 62,
    "mobilenet": 27 * 32
    + 9 * (32 + 64 + 128 + 256)
    + (32 * 64 + 64 * 128 + 128 * 256 + 256 * 512)
    + 2 * (32 + 32 + 64 + 64 + 128 + 128 + 256 + 256 + 512)
    + 512 * 256
    + 256 * 200,
    "efficientnet-b0": 5_288_548 - 1281 * 992,  # published at 1,000 classes (Tan and Le 2019: 5.3 million)
    "leaf-cnn": 27 * 32 + 3 * 9 * 32 * 32 + 4 * 64 + 32 * 2 + 2,
    "m5": (80 * 64 + 64) + (3 * 64 * 64 + 64) + (3 * 64 * 128 + 128) + (3 * 128 * 256 + 256) + 2 * 512 + 256 * 35 + 35,
    "resnet10": 1728 + 73_728 + 229_376 + 917_504 + 3_670_016 + 5130 + 2 * (3 * 64 + 3 * (128 + 256 + 512)),
    "resnet20": 432 + 6 * 2304 + (4608 + 5 * 9216) + (18432 + 5 * 36864) + 650 + 2 * (7 * 16 + 6 * 32 + 6 * 64),
    "resnet32": 432 + 10 * 2304 + (4608 + 9 * 9216) + (18432 + 9 * 36864) + 650 + 2 * (11 * 16 + 10 * 32 + 10 * 64),
    "fedevg-resnet10": 4_979_914,
    "resnet10-energy": 4_979_914,
    "energy-cnn": 9 * (16 + 512 + 1024) + 2 * (16 + 32 + 32) + 32 * 49 * 10 + 10,
    "resnet1d": 7 * 32 + 2 * 5 * 32 * 32 + 5 * 32 * 64 + 5 * 64 * 64 + 2 * (3 * 32 + 2 * 64) + 64 * 5 + 5,
    "text-cnn": 3_000_000 + (900 * 400 + 400) + 400 + (400 * 256 + 256) + (256 * 256 + 256) + (256 * 18 + 18),
    "transformer": 3_000_000 + 3 * 300 * 400 + 400 + (400 * 256 + 256) + (256 * 256 + 256) + (256 * 18 + 18),
    "distilbert": 66_362_880 + (768 * 768 + 768) + (768 * 2 + 2),
    "lstm": 800 + 1024 * (8 + 256 + 2) + 1024 * (256 + 256 + 2) + 256 * 100 + 100,
    "next-token-lstm": 97 * 32 + 512 * (32 + 128 + 2) + 128 * 97 + 97,
    "cnn-1m": 1_199_882,
    "tiny-cnn": (25 * 8 + 8) + (72 * 16 + 16) + 400 * 10 + 10,
}


def test_every_model_has_the_published_or_written_out_number_of_parameters() -> None:
    assert {info.name: info.parameters for info in models()} == COUNTS


def test_the_listed_counts_are_those_of_a_built_network() -> None:
    for info in models():
        if info.parameters < 1_000_000:
            network = build(info.name, info.input_shape, info.classes, vocabulary=info.vocabulary)
            assert size(network) == info.parameters


def test_superfeds_variants_are_options() -> None:
    """Weights that SuPerFed's code has: TwoNN 238,800 and TwoCNN 722,800 (three channels at 28 x 28)."""
    deep = build("two-nn", (1, 28, 28), 10, hidden=(200, 200, 200), bias=False)
    wide = build("two-cnn", (3, 28, 28), 10, hidden=(200, 200), bias=False, padding=1, pool_padding=1)
    assert size(deep) == 238_800
    assert size(wide) == 722_800
    assert wide(torch.zeros(2, 3, 28, 28)).shape == (2, 10)


def test_fedevgs_resnet_has_the_size_of_its_code_on_other_data() -> None:
    assert size(build("fedevg-resnet10", (3, 32, 32), 10)) == 4_981_066


def test_resnet20_and_32_have_the_sizes_of_he_table_6() -> None:
    assert round(conv_and_fc(build("resnet20", (3, 32, 32), 10)) / 1e6, 2) == 0.27
    assert round(conv_and_fc(build("resnet32", (3, 32, 32), 10)) / 1e6, 2) == 0.46


@pytest.mark.parametrize(("name", "depth"), [("resnet8", 8), ("resnet20", 20), ("resnet32", 32)])
def test_the_cifar_family_has_as_many_layers_as_it_says(name: str, depth: int) -> None:
    layers = [m for m in build(name, (3, 32, 32), 10).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth


def test_the_1d_resnet_has_five_convolutions() -> None:
    assert sum(isinstance(m, nn.Conv1d) for m in build("resnet1d", (1, 140), 5).modules()) == 5


def test_the_residual_networks_halve_the_resolution_where_they_say() -> None:
    x = torch.zeros(1, 3, 32, 32)
    for name, sizes in {"resnet20": [32] * 4 + [16] * 3 + [8] * 3, "resnet10": [32, 32, 16, 8, 4]}.items():
        seen, h = [], x
        for layer in build(name, (3, 32, 32), 10).body.children():
            h = layer(h)
            if isinstance(layer, BasicBlock) or (isinstance(layer, nn.ReLU) and not seen):
                seen.append(h.shape[-1])
        assert seen == sizes


TWINS: dict[str, tuple[tuple[int, ...], nn.Sequential]] = {
    "two-cnn": (
        (1, 28, 28),
        nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 32, 5, padding="same"), nn.MaxPool2d(2), nn.ReLU()),
            nn.Sequential(nn.Conv2d(32, 64, 5, padding="same"), nn.MaxPool2d(2), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)),
        ),
    ),
    "rebafl-fmnist": (
        (1, 28, 28),
        nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.LeakyReLU(0.01)),
            nn.Sequential(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.LeakyReLU(0.01)),
            nn.Sequential(nn.Flatten(), nn.Linear(800, 128), nn.LeakyReLU(0.01), nn.Linear(128, 10)),
        ),
    ),
    "rebafl-cifar": (
        (3, 32, 32),
        nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 5), nn.MaxPool2d(2), nn.LeakyReLU(0.01)),
            nn.Sequential(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.LeakyReLU(0.01)),
            nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.LeakyReLU(0.01)),
            nn.Sequential(nn.Flatten(), nn.Linear(576, 128), nn.Linear(128, 10, bias=False)),
        ),
    ),
    "cnn-1m": (
        (1, 28, 28),
        nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(12 * 12 * 64, 128), nn.ReLU(), nn.Linear(128, 10)),
        ),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_convolutional_network_computes_what_its_layers_written_down_compute(name: str) -> None:
    shape, twin = TWINS[name]
    network, x = build(name, shape, 10, seed=1).eval(), torch.randn(3, *shape)
    fill_like(network, twin)
    torch.testing.assert_close(network(x), twin(x))


def test_the_benchmark_network_starts_xavier_uniform() -> None:
    network = build("cnn-1m", (1, 28, 28), 10, seed=1)
    weight = next(p for p in network.body.parameters() if p.shape == (128, 9216))
    bound = (6 / (9216 + 128)) ** 0.5
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.999 * bound


def test_the_1d_and_2d_blocks_compute_the_equation_of_he() -> None:
    """y = relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), option A: x at every second position, zero channels."""
    for convolution, x in ((nn.Conv1d, torch.randn(2, 4, 9)), (nn.Conv2d, torch.randn(2, 4, 9, 6))):
        block = BasicBlock((4, 8), stride=2, convolution=convolution, group=2)
        conv = F.conv1d if convolution is nn.Conv1d else F.conv2d

        def norm(h: Tensor) -> Tensor:
            return F.group_norm(h, 4)

        inner = norm(conv(x, block.conv1.weight, stride=2, padding=1)).relu()
        residual = norm(conv(inner, block.conv2.weight, padding=1))
        shortcut = torch.zeros_like(residual)
        shortcut[:, :4] = x[:, :, ::2] if convolution is nn.Conv1d else x[:, :, ::2, ::2]
        torch.testing.assert_close(block(x), (residual + shortcut).relu())


def test_no_group_of_a_group_norm_is_a_single_channel() -> None:
    for channels in range(2, 600):
        for group in (2, 4, 8):
            norm = group_norm(channels, group)
            assert channels // norm.num_groups >= min(group, channels)
    assert group_norm(16).num_groups == 2  # Hsieh et al. 2020
    assert group_norm(64, 4).num_groups == 16  # FedEvg's stem


def test_group_norm_keeps_features_that_have_no_spatial_extent() -> None:
    x = torch.randn(64, 8)
    assert group_norm(8)(x).std() > 0.9


def test_self_attention_equals_pytorchs_multihead_attention() -> None:
    ours, theirs = SelfAttention(12, heads=3, head_dim=4), nn.MultiheadAttention(12, 3, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.out_proj.weight.copy_(torch.eye(12))
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_attention_pooling_with_a_zero_score_is_the_mean_and_follows_a_large_score() -> None:
    pooling, x = AttentionPooling(3, dropout=0.0), torch.rand(2, 5, 3)
    with torch.no_grad():
        pooling.score.weight.zero_()
        torch.testing.assert_close(pooling(x), x.mean(1))
        pooling.score.weight[0, 0] = 1e6
    torch.testing.assert_close(pooling(x), x[torch.arange(2), x[:, :, 0].argmax(1)])


@pytest.mark.parametrize("bias", [True, False])
def test_the_lstm_computes_what_pytorchs_lstm_computes(bias: bool) -> None:
    network = build("lstm", (7,), 6, vocabulary=9, hidden=5, embedding_dim=3, bias=bias, seed=1)
    reference = nn.LSTM(3, 5, num_layers=2, bias=bias, batch_first=True)
    ours = dict(network.body[1].named_parameters())
    with torch.no_grad():
        for key, parameter in reference.named_parameters():
            kind, part, layer = key.split("_")
            parameter.copy_(ours[f"lstm.{layer}.{part}.{kind}"])
    tokens = torch.randint(9, (4, 7))
    embedded = network.body[0](tokens)
    torch.testing.assert_close(network.features(tokens), reference(embedded)[0][:, -1])


@pytest.mark.parametrize("classes", [1, 7])
@pytest.mark.parametrize("batch", [1, 2])
def test_shapes_over_a_grid(classes: int, batch: int) -> None:
    grid: dict[str, list[tuple[int, ...]]] = {
        "logistic": [(5,), (2, 5), (3, 4, 5)],
        "two-nn": [(1,), (2, 5), (1, 8, 8)],
        "two-cnn": [(1, 4, 4), (3, 9, 17)],
        "rebafl-fmnist": [(1, 12, 12), (3, 32, 20)],
        "rebafl-cifar": [(3, 16, 16), (1, 28, 33)],
        "resnet8": [(1, 1, 1), (2, 15, 7)],
        "resnet1d": [(1, 1), (12, 140)],
        "tiny-cnn": [(1, 9, 9), (3, 32, 64)],
    }
    for name, shapes in grid.items():
        for shape in shapes:
            network: Network = build(name, shape, classes)
            x = torch.randn(batch, *shape)
            assert network(x).shape == (batch, classes)
            assert network.features(x).shape == (batch, network.feature_dim)
    for name in ("text-cnn", "transformer", "lstm"):
        for length in (1, 9):
            network = build(name, (length,), classes, vocabulary=6)
            assert network(torch.randint(6, (batch, length))).shape == (batch, classes)
