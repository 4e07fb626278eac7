"""Clipping: how long an update may be afterwards, and what is left alone."""

import math

import pytest
import torch

import privfl as pf
from privfl import compiling
from privfl.privacy.mechanisms.clip import norm, scale_to_norm
from privfl.privacy.norms import LONG


def test_clipping_bounds_the_norm_and_leaves_short_updates_alone():
    for scale in (1e-3, 1.0, 1e6, 1e18):
        update = scale * torch.randn(1000, generator=torch.Generator().manual_seed(0))
        clipped = scale_to_norm(update.clone(), 0.5)
        assert float(torch.linalg.vector_norm(clipped, dtype=torch.float64)) <= 0.5
    short = torch.full((4,), 0.1)
    assert torch.equal(scale_to_norm(short.clone(), 0.5), short)


def test_the_norm_is_added_up_in_float64():
    """In float32 the squares of a long vector of tiny numbers beside a large one are lost."""
    update = torch.full((1_000_001,), 1e-4)
    update[0] = 1.0
    assert abs(norm(update) - (1 + 1e6 * 1e-8) ** 0.5) < 1e-7
    assert norm(torch.full((4,), 1e30)) == 2 * float(torch.tensor(1e30))


@pytest.mark.parametrize("size", [0, 1, LONG - 1, LONG, LONG + 9])
def test_the_norm_has_the_same_bits_with_numba_and_without(monkeypatch, size):
    update = torch.randn(size, generator=torch.Generator().manual_seed(size)).view(-1, 1)
    found = []
    for enough in (math.inf, 0.0):  # seconds saved from which on it is compiled
        monkeypatch.setattr(compiling, "ENOUGH", enough)
        found.append(norm(update))
    assert found[0] == found[1]
    assert found[0] == pytest.approx(math.sqrt(sum(value * value for value in update[:, 0].tolist())), rel=1e-14)


@pytest.mark.parametrize("enough", [math.inf, 0.0])
def test_the_norm_of_what_is_not_finite_or_huge_or_strided(monkeypatch, enough):
    monkeypatch.setattr(compiling, "ENOUGH", enough)
    update = torch.ones(2 * LONG)
    for wrong in (math.inf, -math.inf):
        update[5] = wrong
        assert norm(update) == math.inf
    update[5] = math.nan
    assert math.isnan(norm(update))
    assert norm(torch.full((4,), 3e38)) == 2 * float(torch.tensor(3e38))  # whose squares float32 does not hold
    assert norm(torch.arange(20.0)[::2]) == math.sqrt(sum(place**2 for place in range(0, 20, 2)))


def test_a_clip_states_its_bound_whatever_the_server_has_learnt():
    assert pf.Clip(0.7).norm_bound({}) == pf.Clip(0.7).norm_bound({"clip_norm": torch.tensor(9.0)}) == 0.7


def test_clipping_does_not_move_two_updates_further_apart():
    """It projects onto a ball: what one sample moves before, it moves at most as far afterwards."""
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        one, other = (scale * torch.randn(200, 20, generator=generator, dtype=torch.float64) for _ in range(2))
        before = (one - other).norm(dim=1)
        clipped = [torch.stack([scale_to_norm(row.clone(), 1.0) for row in rows]) for rows in (one, other)]
        assert bool(((clipped[0] - clipped[1]).norm(dim=1) <= before * (1 + 1e-12)).all())
