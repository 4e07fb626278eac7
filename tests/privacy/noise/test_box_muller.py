"""Normal numbers from exact operations: near the true values, and the same on every device."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from privfl.privacy.noise.box_muller import REFINE_BELOW, _log, cosine_and_sine, pairs, radius

EDGES = [0, 1, -1, 2**33, -(2**33) + 1, 2**53 + 1, 2**60 - 1, 2**60, 2**61, 2**62, -(2**62), 2**63 - 1, -(2**63)]


def drawn(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)


@pytest.fixture(autouse=True)
def _many_digits():
    with mpmath.workprec(200):
        yield


def test_sine_and_cosine_err_by_less_than_a_last_place_of_one():
    words = torch.cat([drawn(2000), torch.tensor(EDGES)])
    for word, cosine, sine in zip(words.tolist(), *map(torch.Tensor.tolist, cosine_and_sine(words)), strict=True):
        angle = 2 * mpmath.pi * word / mpmath.mpf(2) ** 64
        assert abs(mpmath.cos(angle) - cosine) < 2.0**-51
        assert abs(mpmath.sin(angle) - sine) < 2.0**-51


def test_the_logarithm_errs_relatively_by_less_than_two_last_places():
    generator = torch.Generator().manual_seed(1)
    near_one = 1 - 2.0 ** -torch.linspace(1, 53, 500, dtype=torch.float64)
    small = 2.0 ** -torch.linspace(1, 116, 500, dtype=torch.float64)
    anywhere = torch.rand(1000, generator=generator, dtype=torch.float64) + 2.0**-60
    u = torch.cat([near_one, small, anywhere.clamp_max(1 - 2.0**-53)])
    for value, found in zip(u.tolist(), _log(u).tolist(), strict=True):
        exact = mpmath.log(mpmath.mpf(value))
        assert abs((found - exact) / exact) < 2.0**-51
    assert float(_log(torch.ones(1, dtype=torch.float64))) == 0


def test_they_agree_with_the_library_everywhere():
    words = drawn(1 << 17)
    cosine, sine = cosine_and_sine(words)
    angle = words.double() * (2 * np.pi * 2.0**-64)
    assert float((cosine - angle.cos()).abs().max()) < 2.0**-49
    assert float((sine - angle.sin()).abs().max()) < 2.0**-49


def test_small_radius_words_are_refined_to_a_continuous_uniform_number():
    """Words of zeros stand for U < 2⁻⁶⁴; given that, -log U - 64 log 2 is standard exponential."""
    length = radius(torch.zeros(100_000, dtype=torch.int64), drawn(100_000))
    assert stats.kstest((length**2 / 2 - 64 * np.log(2)).numpy(), "expon").pvalue > 1e-6
    below = torch.full((100_000,), 3, dtype=torch.int64)
    u = (radius(below, drawn(100_000)) ** 2 / -2).exp() * 2.0**63
    assert stats.kstest(u.numpy(), stats.uniform(2.5, 1).cdf).pvalue > 1e-6
    large = torch.tensor([int(REFINE_BELOW)])
    assert torch.equal(radius(large, drawn(1)), radius(large, drawn(1, 1)))


def test_pairs_are_normal_independent_and_bounded():
    one, other = pairs(drawn(200_000), drawn(200_000, 1), drawn(200_000, 2))
    for values in (one, other):
        assert stats.kstest(values.numpy(), "norm").pvalue > 1e-6
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(200_000)
    assert float(radius(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))) < 13
