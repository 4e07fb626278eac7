"""Noise on many rows has the same bits on every device, wherever a row lies, however it is cut into passes.

By the libraries' functions, as where there is no Numba; ``test_compiled.py`` is about the compiled pass.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from privfl import compiling
from privfl.privacy.noise import compiled, fused, gaussian
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_, release_grid
from tests.device.stand_in import stand_in_cuda

SIZES = [1, 2, 15, 17, 5386, (1 << 15) + 3, 70_001]


@pytest.fixture(autouse=True)
def without_numba(monkeypatch):
    monkeypatch.setattr(compiled, "release_once_it_pays", lambda numbers: None)
    monkeypatch.setattr(compiling, "installed", lambda: False)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def streams(n, first=0):
    return [NoiseStream(bytes([first + place] * 32)) for place in range(n)]


def rows(n, size):
    return torch.randn(n, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", SIZES)
def test_a_device_gives_the_bits_of_the_cpu(size, monkeypatch):
    monkeypatch.setattr(fused, "AT_ONCE", 1 << 12)
    deviations = [1.0, 0.3, 0.0, 7.0]
    with deterministic():
        here, used = rows(4, size), streams(4)
        for _ in range(2):
            add_gaussian_rows_(used, here, deviations)
        with stand_in_cuda() as counts:
            there, used = rows(4, size).to("cuda"), streams(4)
            counts.reset()
            for _ in range(2):
                add_gaussian_rows_(used, there, deviations)
            assert not counts.waits
            assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("margin", [gaussian.CLOSE, 0.4])
@pytest.mark.parametrize("scales", [[1.0, 1.0], [1.0, 0.3]])
def test_what_is_computed_anew_differs_from_the_fast_numbers_by_less_than_the_margin(margin, scales, monkeypatch):
    """With a wide margin most values are computed anew; a release differs then only if its rounding was close."""
    fast = add_gaussian_rows_(streams(2), rows(2, 40_001).double(), scales)
    monkeypatch.setattr(gaussian, "CLOSE", margin)
    with deterministic():
        exact = add_gaussian_rows_(streams(2), rows(2, 40_001).double(), scales)
    assert torch.equal(exact, fast)


def test_values_far_beyond_the_noise_are_computed_anew_too():
    huge = rows(1, 1000).double() * 2.0**12
    with deterministic():
        here = add_gaussian_rows_(streams(1), huge.clone(), [1e-3])
        with stand_in_cuda():
            there = add_gaussian_rows_(streams(1), huge.to("cuda"), [1e-3]).cpu()
    assert torch.equal(here, there)


@pytest.mark.parametrize("tangents", [False, True])
def test_the_library_and_the_exact_operations_differ_by_far_less_than_the_margin(tangents, monkeypatch):
    monkeypatch.setattr(gaussian, "TANGENTS", tangents)
    stream, other = streams(1)[0], streams(1)[0]
    n = 100_000
    words = np.empty((2, n // 2), dtype=np.int64)
    block = other.pair_words(*words)
    fine = torch.from_numpy(other.fine_words(block, np.arange(8)))
    assert len(fine) == 8
    exact = torch.cat(gaussian.pairs(*map(torch.from_numpy, words), torch.zeros(n // 2, dtype=torch.int64)))
    difference = np.abs(gaussian.normal(stream, n) - exact.numpy()).max()
    assert difference < 2.0**-48
    assert difference / release_grid(1.0) < gaussian.CLOSE / 16


def test_angles_at_the_ends_of_a_turn_and_of_its_quarters_are_as_exact_as_any(monkeypatch):
    """The tangent of half the angle is endless there, or beginning to differ from 0."""
    ends = [-(2**63), 2**63 - 1, 0, 1, -1, 2**62, -(2**62), 2**62 + 1, 2**61, 3 * 2**61]
    angles = torch.tensor([one for one in ends for _ in range(8)])
    radii = torch.arange(1, len(angles) + 1) << 40

    class Chosen(NoiseStream):
        def pair_words(self, radius, angle):
            radius[:], angle[:] = radii.numpy(), angles.numpy()
            return 0

        def fine_words(self, block, places):
            return np.zeros(len(places), dtype=np.int64)

    monkeypatch.setattr(gaussian, "TANGENTS", True)
    found = Chosen(bytes(32)).normal(2 * len(angles))
    exact = torch.cat(gaussian.pairs(radii, angles, torch.zeros_like(angles))).numpy()
    assert np.abs(found - exact).max() < 2.0**-47


def test_where_there_is_no_wide_tangent_releases_are_the_same(monkeypatch):
    made = []
    for tangents in (False, True):
        monkeypatch.setattr(gaussian, "TANGENTS", tangents)
        made.append(add_gaussian_rows_(streams(2), rows(2, 99_999), [1.0, 0.3]))
    assert torch.equal(*made)


class Short(NoiseStream):
    """A stream whose words for radii are the least that there are, so that the third words decide nearly all."""

    def pair_words(self, radius, angle):
        block = super().pair_words(radius, angle)
        radius[:] = np.arange(len(radius)) % 5
        return block


def test_refinement_is_that_of_the_exact_operations():
    """Without it, noise of a radius word 0 is infinite."""
    words = np.empty((2, 504), dtype=np.int64)
    other = Short(bytes(32))
    fine = other.fine_words(other.pair_words(*words), np.arange(504))
    exact = torch.cat([one[:500] for one in gaussian.pairs(*map(torch.from_numpy, (*words, fine)))])
    found = Short(bytes(32)).add_gaussian_(torch.zeros(1000, dtype=torch.float64), 1.0)
    assert float(exact.abs().max()) > 8
    assert float((found - exact).abs().max()) <= release_grid(1.0) * 0.51


def test_positions_do_not_depend_on_what_else_was_drawn():
    plain, mixed = streams(1)[0], streams(1)[0]
    mixed.words(5), mixed.laplace(3, 1.0)
    assert np.array_equal(mixed.normal(100), plain.normal(100))
    first = plain.skip_pairs(0)
    assert first == 7  # 50 pairs are 7 blocks of 8
    mixed.skip_pairs(3)
    assert not np.array_equal(mixed.normal(8), plain.normal(8))
