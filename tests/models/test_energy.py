"""The spectrally normalised head and the networks that carry it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils.parametrizations import spectral_norm

from privfl.models import build
from privfl.models.energy import SpectralLinear, energy_cnn, resnet10_energy

ORACLES = json.loads((Path(__file__).parents[1] / "oracles" / "fedevg.json").read_text())


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def largest_singular_value(layer: SpectralLinear) -> float:
    return float(torch.linalg.svdvals(layer.effective_weight().detach().double())[0])


@pytest.mark.parametrize(("wide", "narrow"), [(8192, 10), (64, 4), (5, 5), (3, 8), (7, 1)])
def test_check_10_the_effective_weights_have_spectral_norm_1_from_the_first_call_on(wide: int, narrow: int) -> None:
    torch.manual_seed(0)
    layer = SpectralLinear(wide, narrow)
    for training in (True, False):
        layer.train(training)
        layer(torch.zeros(1, wide))
        assert 1 - 1e-5 <= largest_singular_value(layer) <= 1.01
    with torch.no_grad():
        layer.weight.mul_(1e-3)
    assert 1 - 1e-5 <= largest_singular_value(layer) <= 1.01


def test_values_and_gradients_are_those_of_converged_power_iteration() -> None:
    torch.manual_seed(1)
    layer, twin = SpectralLinear(20, 6).double(), nn.Linear(20, 6).double()
    with torch.no_grad():
        twin.weight.copy_(layer.weight)
        twin.bias.copy_(layer.bias)
    spectral_norm(twin, n_power_iterations=500)
    x, back = torch.randn(9, 20, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    ours, theirs = layer(x), twin(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad((ours * back).sum(), layer.weight)
    (expected,) = torch.autograd.grad((theirs * back).sum(), twin.parametrizations.weight.original)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-11)


def test_it_keeps_no_state_and_a_call_changes_nothing() -> None:
    layer = SpectralLinear(7, 3).train()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    first, second = (layer(torch.ones(2, 7)) for _ in range(2))
    assert torch.equal(first, second)
    assert set(before) == {"weight", "bias"}
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before.items())


def test_stacked_clients_get_what_each_gets_alone() -> None:
    layers = [SpectralLinear(11, 4).double() for _ in range(3)]
    x = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    stacked = {
        name: torch.stack([dict(layer.named_parameters())[name] for layer in layers]) for name in ("weight", "bias")
    }
    together = vmap(lambda tree, rows: functional_call(layers[0], tree, (rows,)))(stacked, x)
    for client, layer in enumerate(layers):
        torch.testing.assert_close(together[client], layer(x[client]), rtol=0, atol=1e-13)


def test_equal_singular_values_and_zero_weights_give_finite_gradients() -> None:
    for weight in (torch.eye(4), torch.zeros(4, 4)):
        layer = SpectralLinear(4, 4)
        with torch.no_grad():
            layer.weight.copy_(weight)
        layer(torch.ones(2, 4)).sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.isfinite().all()
    assert not layer(torch.ones(2, 4)).any()


def test_weights_that_are_not_finite_give_logits_that_are_not_finite_and_no_error() -> None:
    layer = SpectralLinear(4, 3)
    with torch.no_grad():
        layer.weight[1, 2] = torch.nan
    assert not layer(torch.ones(2, 4)).isfinite().all()


@pytest.mark.parametrize(("shape", "classes", "count"), ORACLES["parameters"]["counts"])
def test_the_resnet_has_as_many_parameters_as_the_authors(shape: list[int], classes: int, count: int) -> None:
    with torch.device("meta"):
        assert size(resnet10_energy(tuple(shape), classes)) == count


def test_the_resnet_is_fedevgs_with_another_head() -> None:
    ours, plain = (
        build("resnet10-energy", (1, 8, 8), 4, width=4, seed=3),
        build("fedevg-resnet10", (1, 8, 8), 4, width=4),
    )
    with torch.no_grad():
        for source, target in zip(ours.parameters(), plain.parameters(), strict=True):
            target.copy_(source)
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.features(x), plain.features(x))
    assert isinstance(ours.head, SpectralLinear)
    torch.testing.assert_close(
        ours.head.effective_weight(), plain.head.weight / torch.linalg.matrix_norm(plain.head.weight, 2)
    )


def test_the_small_network_has_its_written_out_number_of_parameters() -> None:
    assert size(energy_cnn((1, 14, 14), 10)) == 9 * (16 + 512 + 1024) + 2 * (16 + 32 + 32) + 512 * 10 + 10 == 19_258


def test_weights_begin_xavier_normal_and_biases_at_zero() -> None:
    """False alarm below 1e-6: the standard deviation of 81,920 normal weights lies within 1.25 % of its value."""
    head = resnet10_energy((1, 32, 32), 10, width=64).head
    assert isinstance(head, SpectralLinear)
    assert float(head.weight.std().detach()) == pytest.approx((2 / (8192 + 10)) ** 0.5, rel=1.25e-2)
    assert not head.bias.any()
