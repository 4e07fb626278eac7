"""EfficientNet-B0 and MobileNet: the published sizes, the resolutions, and a round of DP-SGD; so for their kin."""

from __future__ import annotations

import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from privfl.models import build
from privfl.models.mobile import InvertedBlock, Squeeze

SMALL = {
    "resnet9": ((3, 8, 8), {"width": 8, "hidden": 4}),
    "vgg9": ((1, 16, 16), {"width": 2, "hidden": 4}),
    "mobilenet": ((3, 33, 33), {"width": 8, "hidden": 4}),
    "efficientnet-b0": ((3, 8, 8), {"width": 8}),
    "leaf-cnn": ((3, 50, 50), {}),
    "m5": ((1, 1772), {}),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_round_of_dp_sgd_trains_it_on_the_smallest_inputs(name: str) -> None:
    shape, options = SMALL[name]
    inputs, targets = torch.rand(6, *shape), torch.arange(6) % 2
    task = pf.Task.from_arrays(
        inputs, targets, test=(inputs[:2], targets[:2]), model=lambda: build(name, shape, 2, seed=0, **options),
        partition=pf.IID(clients=1),
    )  # fmt: skip
    run = pf.simulate(
        task,
        pf.FedAvg(),
        rounds=1,
        weighting="uniform",
        training=pf.LocalTraining(steps=1, learning_rate=0.1),
        privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)),
        execution=pf.Execution(engine="loop", workers=1),
    )
    start = torch.cat([p.detach().flatten() for p in build(name, shape, 2, seed=0, **options).parameters()])
    assert run.parameters.isfinite().all()
    assert not torch.equal(run.parameters, start)
    assert 0 < run.statement.cell("sample", "server").epsilon < 10


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("vgg9", (1, 15, 15), "images of 15 x 15 are too small; give at least 16 x 16"),
        ("mobilenet", (3, 20, 20), "images of 20 x 20 are too small; give at least"),
        ("leaf-cnn", (3, 30, 30), "images of 30 x 30 are too small; give at least"),
        ("m5", (1, 1771), "signals of 1771 samples are too short; give at least 1,772"),
    ],
)
def test_inputs_of_which_nothing_would_be_left_are_refused(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(name, shape, 2)


def test_efficientnet_has_its_published_size_and_halves_the_resolution_five_times() -> None:
    with torch.device("meta"):
        network = build("efficientnet-b0", (3, 224, 224), 1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == 5_288_548
    x, sizes = torch.zeros(1, 3, 64, 64), []
    small = build("efficientnet-b0", (3, 64, 64), 2)
    for layer in list(small.body.children())[:-2]:  # type: ignore[union-attr, operator]
        x = layer(x)
        sizes.append(x.shape[-1])
    assert list(dict.fromkeys(sizes)) == [32, 16, 8, 4, 2]
    assert sum(isinstance(layer, InvertedBlock) for layer in small.modules()) == 16


def test_squeezing_scales_whole_channels() -> None:
    squeeze, x = Squeeze(4, 2), torch.rand(2, 4, 3, 3)
    ratio = squeeze(x) / x
    assert torch.allclose(ratio, ratio[..., :1, :1].expand_as(ratio))
    assert ((ratio > 0) & (ratio < 1)).all()
