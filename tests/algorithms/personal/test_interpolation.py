"""Points on the segment, cos² and the unsquared proximity: SuPerFed's checks 4 and 5, parts of 3, 8 and 9."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import vmap

from privfl.algorithms.personal.interpolation import (
    alignment,
    keep_apart_,
    mix,
    norm_proximity_gradient,
    random_parameters,
    spread,
)
from privfl.models import build
from privfl.models.flat_network import Layout, flatten

ORACLE = json.loads((Path(__file__).parents[2] / "oracles" / "superfed.json").read_text())
SIZES = (12, 5, 30, 3)


def vectors(number, size=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(number)]


def squared_cosine(u, v):
    """Equation (5) squared, by autograd's own operations."""
    return nn.functional.cosine_similarity(u, v, dim=0).square()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_of_the_segment_are_the_end_points_exactly(dtype):
    u, v = (vector.to(dtype) for vector in vectors(2))
    for zero, one in ((0.0, 1.0), (torch.zeros(()), torch.ones(())), (torch.zeros(50), torch.ones(50))):
        zero, one = (lam.to(dtype) if isinstance(lam, torch.Tensor) else lam for lam in (zero, one))
        assert torch.equal(mix(u, v, zero), u)
        assert torch.equal(mix(u, v, one), v)


@pytest.mark.parametrize("lam", [0.1, 0.5, 0.73])
def test_a_mixture_is_the_convex_combination(lam):
    u, v = vectors(2)
    torch.testing.assert_close(mix(u, v, lam), (1 - lam) * u + lam * v, rtol=0, atol=1e-15)
    torch.testing.assert_close(mix(u, v, torch.tensor(lam, dtype=u.dtype)), mix(u, v, lam), rtol=0, atol=1e-15)


def test_one_lambda_per_layer_mixes_each_layer_by_its_own():
    u, v = vectors(2)
    lam = torch.tensor([0.0, 1.0, 0.25, 0.6], dtype=u.dtype)
    mixed = mix(u, v, spread(lam, SIZES))
    parts = [
        (1 - each) * a + each * b
        for each, a, b in zip(lam.tolist(), u.split(list(SIZES)), v.split(list(SIZES)), strict=True)
    ]
    torch.testing.assert_close(mixed, torch.cat(parts), rtol=0, atol=1e-15)


def test_equal_lambdas_in_all_layers_and_a_single_layer_are_one_lambda():
    u, v = vectors(2)
    lam = torch.tensor(0.37, dtype=u.dtype)
    assert torch.equal(mix(u, v, spread(lam.expand(4), SIZES)), mix(u, v, lam))
    assert torch.equal(mix(u, v, spread(lam.expand(1), [50])), mix(u, v, lam))


def pulls(u, v):
    """What :func:`keep_apart_` adds for ν = 1: ∇_u cos² and ∇_v cos²."""
    for_u, for_v = torch.zeros_like(u), torch.zeros_like(v)
    keep_apart_(for_u, for_v, u, v, 1.0)
    return for_u, for_v


@pytest.mark.parametrize("seed", range(5))
def test_the_gradients_of_the_squared_cosine_are_autograds(seed):
    u, v = (vector.requires_grad_() for vector in vectors(2, seed=seed))
    expected = torch.autograd.grad(squared_cosine(u, v), (u, v))
    with torch.no_grad():
        found = pulls(u, v)
        cosine = float(alignment(u, v).cosine)
        reference = float(nn.functional.cosine_similarity(u, v, dim=0))
    assert cosine == pytest.approx(reference, rel=1e-12)
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-6


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1e4])
def test_the_squared_cosine_ignores_lengths_and_its_gradient_is_orthogonal_to_its_end_point(scale):
    u, v = vectors(2, seed=1)
    square = float(alignment(u, v).cosine.square())
    assert 0 <= square <= 1
    assert float(alignment(scale * u, v).cosine.square()) == pytest.approx(square, rel=1e-10)
    assert float(alignment(u, scale * v).cosine.square()) == pytest.approx(square, rel=1e-10)
    for end, gradient in zip((scale * u, v), pulls(scale * u, v), strict=True):
        assert abs(float(end @ gradient)) < 1e-12 * float(end.norm() * gradient.norm())


def test_the_squared_cosine_is_stationary_where_end_points_are_orthogonal_or_parallel():
    u, v = vectors(2, seed=2)
    orthogonal = v - (v @ u) / (u @ u) * u
    for other in (orthogonal, 3 * u, -0.2 * u):
        for gradient in pulls(u, other):
            assert float(gradient.norm()) < 1e-10


def test_an_end_point_of_zero_has_cosine_zero_and_no_pull():
    u, zero = vectors(1)[0], torch.zeros(50, dtype=torch.float64)
    for pair in ((u, zero), (zero, u), (zero, zero)):
        assert float(alignment(*pair).cosine) == 0
        assert all(torch.equal(gradient, zero) for gradient in pulls(*pair))


@pytest.mark.parametrize("row", ORACLE["cosine_deviation"]["rows"], ids=lambda row: row["network"])
def test_independent_initialisations_are_nearly_orthogonal(row):
    """|cos| < 5σ_c: the cosine of independent Gaussian vectors this long is normal, so one in 1.7 million fails."""
    layers = [(a * b, 2 / (a + b)) for a, b in row["weights"]]
    layers += [(a * b * area, 2 / ((a + b) * area)) for a, b, area in row.get("convolutions", ())]
    assert sum(count for count, _ in layers) == ORACLE["sizes"][row["network"]]
    deviation = math.sqrt(sum(n * s**2 for n, s in layers)) / sum(n * s for n, s in layers)
    assert deviation == pytest.approx(row["deviation"], abs=5e-5)
    generator = torch.Generator().manual_seed(0)
    u, v = (
        torch.cat([math.sqrt(s) * torch.randn(n, generator=generator, dtype=torch.float64) for n, s in layers])
        for _ in range(2)
    )
    assert abs(float(alignment(u, v).cosine)) < 5 * deviation


def test_the_unsquared_proximity_and_its_gradient_are_pytorchs_also_where_nothing_has_moved():
    u, anchor = vectors(2, seed=4)
    u[12:17] = anchor[12:17]
    u.requires_grad_()
    value = sum((a - b).norm() for a, b in zip(u.split(list(SIZES)), anchor.split(list(SIZES)), strict=True))
    (expected,) = torch.autograd.grad(value, u)
    with torch.no_grad():
        torch.testing.assert_close(norm_proximity_gradient(u, anchor, SIZES), expected, rtol=0, atol=1e-14)
        assert not norm_proximity_gradient(anchor, anchor, SIZES).any()


def test_all_of_it_serves_a_stack_of_clients_at_once():
    u, v, lam = (torch.stack(vectors(3, seed=seed)) for seed in (5, 6, 7))
    lam = lam[:, :4].sigmoid()
    stacked = vmap(lambda a, b, each: mix(a, b, spread(each, SIZES)))(u, v, lam)
    pulled = vmap(pulls)(u, v)
    ways = vmap(lambda a, b: norm_proximity_gradient(a, b, SIZES))(u, v)
    for client in range(3):
        torch.testing.assert_close(stacked[client], mix(u[client], v[client], spread(lam[client], SIZES)))
        torch.testing.assert_close(ways[client], norm_proximity_gradient(u[client], v[client], SIZES))
        for many, one in zip(pulled, pulls(u[client], v[client]), strict=True):
            torch.testing.assert_close(many[client], one)


def test_keeping_apart_adds_the_gradients_in_place_for_one_client_and_for_a_stack():
    u, v, for_u, for_v = (torch.stack(vectors(3, seed=seed)) for seed in (8, 9, 10, 11))
    expected = []
    for client in range(3):
        ends = [end[client].clone().requires_grad_() for end in (u, v)]
        of_u, of_v = torch.autograd.grad(squared_cosine(*ends), ends)
        expected.append((for_u[client] + 2.5 * of_u, for_v[client] + 2.5 * of_v))
    alone = for_u[0].clone(), for_v[0].clone()
    keep_apart_(*alone, u[0], v[0], 2.5)

    def one(for_u, for_v, u, v):
        keep_apart_(for_u, for_v, u, v, 2.5)
        return for_u, for_v

    found = vmap(one)(for_u, for_v, u, v)
    for mine, theirs in zip(alone, expected[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)
    for client_state, changed, number in zip(found, (for_u, for_v), (0, 1), strict=True):
        assert client_state.data_ptr() == changed.data_ptr()
        torch.testing.assert_close(client_state, torch.stack([pair[number] for pair in expected]), rtol=0, atol=1e-14)


def test_scales_and_shifts_of_norm_layers_are_not_random_and_everything_else_is():
    networks = [build("resnet8", (1, 16, 16), 10, seed=seed) for seed in (0, 1)]
    layout = Layout.of(networks[0])
    found = layout.named_views(random_parameters(layout, *map(flatten, networks)))
    fixed = {name for name, module in networks[0].named_modules() if isinstance(module, nn.GroupNorm)}
    assert fixed
    for name, drawn in found.items():
        assert bool(drawn.all()) == bool(drawn.any()) == (name.rpartition(".")[0] not in fixed), name
