"""Conditional networks are ordinary perceptrons, read from one flat vector."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from privfl.models.conditional import ConditionalAdversaries, ConditionalAutoencoder, Perceptron

KINDS = {"autoencoder": ConditionalAutoencoder, "adversaries": ConditionalAdversaries}
SHAPES = [(1, 14, 14), (1, 28, 28), (3, 5, 4), (9,)]
EXACT = {"rtol": 0.0, "atol": 1e-12}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fresh(networks: ConditionalAutoencoder | ConditionalAdversaries | Perceptron, seed: int = 0) -> Tensor:
    return networks.new(torch.Generator().manual_seed(seed), torch.float64)


def modules(widths: tuple[int, ...], leak: float) -> nn.Sequential:
    """The same perceptron out of PyTorch's own layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(leak)]
    return nn.Sequential(*layers[:-1]).double()


@pytest.mark.parametrize("leak", [0.0, 0.2])
@pytest.mark.parametrize("widths", [(5, 3), (5, 7, 2), (4, 6, 6, 1)])
def test_a_perceptron_and_its_gradient_are_those_of_linear_layers_in_order(
    widths: tuple[int, ...], leak: float
) -> None:
    ours, theirs = Perceptron(widths, leak), modules(widths, leak)
    parameters = fresh(ours).requires_grad_()
    assert parameters.numel() == ours.size == sum(parameter.numel() for parameter in theirs.parameters())
    vector_to_parameters(parameters.detach(), theirs.parameters())
    inputs, back = drawn(8, widths[0]), drawn(8, widths[-1], seed=1)
    torch.testing.assert_close(ours(parameters, inputs), theirs(inputs), **EXACT)
    (gradient,) = torch.autograd.grad((ours(parameters, inputs) * back).sum(), parameters)
    (theirs(inputs) * back).sum().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in theirs.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradient, expected, **EXACT)


def test_fresh_parameters_are_uniform_within_one_over_the_root_of_the_inputs_of_their_layer() -> None:
    """False alarm below 1e-6: means within 5 standard errors of 0, spread within 5 % of 2·bound/√12 at 4,000 draws."""
    network = Perceptron((16, 250, 4))
    for layer, part in zip((16, 16, 250, 250), torch.split(fresh(network), network.sizes), strict=True):
        bound = 1 / math.sqrt(layer)
        assert float(part.abs().max()) <= bound
        if len(part) >= 1000:
            assert abs(float(part.mean())) < 5 * bound / math.sqrt(3 * len(part))
            assert float(part.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert torch.equal(fresh(network), fresh(network))
    assert not torch.equal(fresh(network), fresh(network, seed=1))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_vectors_hold_what_the_layers_need(shape: tuple[int, ...]) -> None:
    pixels, classes, latent, hidden = math.prod(shape), 4, 3, 6
    decoder = (latent + classes + 1) * hidden + (hidden + 1) * pixels
    encoder = (pixels + classes + 1) * hidden + (hidden + 1) * 2 * latent
    judge = (pixels + classes + 1) * hidden + hidden + 1
    assert ConditionalAutoencoder(shape, classes, latent, hidden).size == encoder + decoder
    assert ConditionalAdversaries(shape, classes, latent, hidden).size == decoder + judge
    for kind in KINDS.values():
        networks = kind(shape, classes, latent, hidden)
        parameters = fresh(networks)
        assert parameters.shape == (networks.size,)
        assert torch.equal(torch.cat(networks.parts(parameters)), parameters)
        logits = networks.generate(
            parameters, drawn(5, latent), torch.eye(classes, dtype=torch.float64)[[0, 1, 2, 3, 0]]
        )
        assert logits.shape == (5, pixels)


def test_encoder_and_decoder_read_the_class_beside_pixels_and_latent() -> None:
    networks = ConditionalAutoencoder((1, 2, 3), classes=4, latent=2, hidden=5)
    parameters = fresh(networks)
    encoder, decoder = modules((10, 5, 4), 0.0), modules((6, 5, 6), 0.0)
    assert networks.size == len(parameters_to_vector([*encoder.parameters(), *decoder.parameters()]))
    vector_to_parameters(parameters, [*encoder.parameters(), *decoder.parameters()])
    pixels, latent, kinds = drawn(7, 6), drawn(7, 2, seed=1), torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 3, 1, 0]]
    first, second = networks.parts(parameters)
    mean, log_variance = networks.encode(first, pixels, kinds)
    torch.testing.assert_close(torch.cat([mean, log_variance], 1), encoder(torch.cat([pixels, kinds], 1)), **EXACT)
    expected = decoder(torch.cat([latent, kinds], 1))
    torch.testing.assert_close(networks.decode(second, latent, kinds), expected, **EXACT)
    torch.testing.assert_close(networks.generate(parameters, latent, kinds), expected, **EXACT)


def test_generator_and_discriminator_read_the_class_too_and_the_discriminator_leaks_by_a_fifth() -> None:
    networks = ConditionalAdversaries((6,), classes=4, latent=2, hidden=5)
    parameters = fresh(networks)
    maker, judge = modules((6, 5, 6), 0.0), modules((10, 5, 1), 0.2)
    vector_to_parameters(parameters, [*maker.parameters(), *judge.parameters()])
    pixels, latent, kinds = drawn(7, 6), drawn(7, 2, seed=1), torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 3, 1, 0]]
    made = networks.generate(parameters, latent, kinds)
    torch.testing.assert_close(made, maker(torch.cat([latent, kinds], 1)), **EXACT)
    judged = networks.judge(networks.parts(parameters)[1], pixels, kinds)
    torch.testing.assert_close(judged, judge(torch.cat([pixels, kinds], 1))[:, 0], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_gives_what_it_gives_within_a_batch(kind: str) -> None:
    networks = KINDS[kind]((6,), 4, 2, 5)
    parameters, latent, kinds = fresh(networks), drawn(3, 2), torch.eye(4, dtype=torch.float64)[:3]
    together = networks.generate(parameters, latent, kinds)
    for row in range(3):
        torch.testing.assert_close(networks.generate(parameters, latent[row], kinds[row]), together[row], **EXACT)
