"""Clipping: how long an update may be afterwards, and what is left alone."""

import torch

import privfl as pf
from privfl.privacy.mechanisms.clip import norm, scale_to_norm


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
