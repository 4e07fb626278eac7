"""Convolutional generators are PyTorch's own layers, read from one flat vector."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

import privfl as pf
from privfl.algorithms.generative.generative_fedavg import GenerativeFedAvg
from privfl.errors import ConfigError
from privfl.models.base import group_norm
from privfl.models.conditional_convolutions import ConvolutionalAdversaries, ConvolutionalAutoencoder, Growing
from tests.algorithms.generative.generative_federation import sent, task_of

EXACT = {"rtol": 0.0, "atol": 1e-12}
KINDS = {"autoencoder": ConvolutionalAutoencoder, "adversaries": ConvolutionalAdversaries}
ALGORITHMS: dict[str, type[GenerativeFedAvg]] = {"fedcvae": pf.FedCVAE, "fedcgan": pf.FedCGAN}
SHAPES = {(1, 28, 28): 4, (3, 32, 32): 4, (1, 14, 14): 3, (2, 7, 5): 2, (1, 2, 3): 1}
SMALL = {"latent": 2, "hidden": 2, "samples_per_class": 2, "classifier_epochs": 1, "architecture": "convolutional"}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shrinking(channels: tuple[int, ...], flat: int, beside: int, outputs: int, leak: float) -> nn.ModuleList:
    """The same convolutions and the linear layer out of PyTorch's own."""
    layers: list[nn.Module] = []
    for inputs, made in pairwise(channels):
        layers += [nn.Conv2d(inputs, made, 4, 2, 1, bias=False), group_norm(made), nn.LeakyReLU(leak)]
    return nn.ModuleList([nn.Sequential(*layers, nn.Flatten()), nn.Linear(flat + beside, outputs)]).double()


def growing(sides: list[tuple[int, int]], channels: tuple[int, ...], inputs: int) -> nn.ModuleList:
    """The same transposed convolutions; the bias of the last is the vector's last piece."""
    first, layers = nn.Linear(inputs, channels[-1] * math.prod(sides[-1])), []
    up = list(zip(sides, channels, strict=True))[::-1]
    for (small, given), (large, made) in pairwise(up):
        odd = (large[0] - 2 * small[0], large[1] - 2 * small[1])
        last = made == channels[0] and large == sides[0]
        layers += [group_norm(given), nn.ReLU(), nn.ConvTranspose2d(given, made, 4, 2, 1, odd, bias=last)]
    return nn.ModuleList([first, nn.Sequential(nn.Unflatten(1, (channels[-1], *sides[-1])), *layers)]).double()


@pytest.mark.parametrize("shape", SHAPES)
def test_up_to_four_convolutions_halve_an_image_as_long_as_a_pixel_is_left(shape: tuple[int, int, int]) -> None:
    pyramid = Growing(shape, 3)
    assert len(pyramid.sides) == SHAPES[shape] + 1
    assert pyramid.sides[0] == shape[1:]
    assert min(pyramid.sides[-1]) >= 1
    assert pyramid.channels == (shape[0], 3, 3, 6, 12)[: SHAPES[shape] + 1]


@pytest.mark.parametrize("shape", [(1, 14, 14), (2, 7, 5)])
def test_the_networks_are_pytorchs_own_layers_in_order(shape: tuple[int, int, int]) -> None:
    classes, latent, width, pixels = 3, 2, 8, math.prod(shape)
    pyramid = Growing(shape, width)
    sides, channels, flat = list(pyramid.sides), pyramid.channels, math.prod(pyramid.top)
    inputs, codes = drawn(4, pixels), drawn(4, latent, seed=1)
    kinds = torch.eye(classes, dtype=torch.float64)[[0, 2, 1, 1]]
    for networks in (kind(shape, classes, latent, width) for kind in KINDS.values()):
        parameters = networks.new(torch.Generator().manual_seed(0), torch.float64) + 0.01 * drawn(networks.size)
        assert parameters.shape == (networks.size,)
        assert torch.equal(torch.cat(networks.parts(parameters)), parameters)
        up = growing(sides, channels, latent + classes)
        if isinstance(networks, ConvolutionalAutoencoder):
            down = shrinking(channels, flat, classes, 2 * latent, 0.0)
            vector_to_parameters(parameters, [*down.parameters(), *up.parameters()])
            mean, log_variance = networks.encode(networks.parts(parameters)[0], inputs, kinds)
            expected = down[1](torch.cat([down[0](inputs.view(-1, *shape)), kinds], 1))
            torch.testing.assert_close(torch.cat([mean, log_variance], 1), expected, **EXACT)
        else:
            down = shrinking(channels, flat, 0, 1 + classes, 0.2)
            vector_to_parameters(parameters, [*up.parameters(), *down.parameters()])
            logits = down[1](down[0](inputs.view(-1, *shape)))
            for real in (True, False):
                told = nn.functional.binary_cross_entropy_with_logits(
                    logits[:, 0], torch.full((4,), float(real), dtype=torch.float64), reduction="none"
                )
                named = nn.functional.cross_entropy(logits[:, 1:], kinds.argmax(1), reduction="none")
                found = networks.error(networks.parts(parameters)[1], inputs, kinds, real)
                torch.testing.assert_close(found, told + named, **EXACT)
        made = networks.generate(parameters, codes, kinds)
        torch.testing.assert_close(made, up[1](up[0](torch.cat([codes, kinds], 1))).flatten(1), **EXACT)
        alone = networks.generate(parameters, codes[0], kinds[0])
        torch.testing.assert_close(alone, made[0], **EXACT)


def test_the_thesiss_sizes_have_the_numbers_of_parameters_that_their_layers_add_up_to() -> None:
    networks = ConvolutionalAutoencoder((1, 28, 28), classes=10, latent=128, hidden=64)
    kernels = 16 * (1 * 64 + 64 * 64 + 64 * 128 + 128 * 256)
    down = kernels + 2 * (64 + 64 + 128 + 256) + (256 + 10 + 1) * 256
    up = kernels + 2 * (64 + 64 + 128 + 256) + (138 + 1) * 256 + 1
    assert networks.size == down + up
    assert ConvolutionalAdversaries((1, 28, 28), 10, 128, 64).size == up + down - 267 * 256 + 257 * 11


def test_inputs_that_are_no_images_are_refused_in_one_sentence() -> None:
    for shape in ((9,), (1, 1, 5)):
        with pytest.raises(ConfigError, match="take architecture = 'perceptron'"):
            ConvolutionalAutoencoder(shape, 3, 2, 2).size  # noqa: B018


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_cohort_that_is_stacked_sends_what_its_clients_send_one_by_one(name: str) -> None:
    task = task_of()
    _, alone = sent(task, ALGORITHMS[name](**SMALL))
    _, stacked = sent(task, ALGORITHMS[name](**SMALL), stacked=True)
    for one, other in zip(alone, stacked, strict=True):
        assert one.upload is not None
        assert other.upload is not None
        assert float(one.upload["update"].abs().max()) > 0
        torch.testing.assert_close(other.upload["update"], one.upload["update"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_with_noise_at_every_client_claims_for_whole_clients(name: str) -> None:
    algorithm = ALGORITHMS[name](weighting="uniform", **SMALL)
    training = pf.LocalTraining(learning_rate=1e-2, batch_size=8)
    hidden = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0, at="client")])
    run = pf.simulate(
        task_of(), algorithm, rounds=1, training=training, privacy=hidden, execution=pf.Execution(workers=1)
    )
    assert 0 < run.statement.cell("client", "server").epsilon < math.inf
    assert run.server["images"].shape == (6, 1, 2, 3)
