"""Discrete Gaussian and Skellam noise have exactly their laws, whatever decides a draw: table, exact coin or tail.

Statistical tests fix the key; each states a false-alarm rate of at most 1e-6 over keys (chi-square tests by their
p-value, moments by 5 standard errors, 6e-7 two-sided).
"""

import math
import random
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from privfl.errors import ConfigError
from privfl.privacy.noise.discrete import (
    _gaussian_table,
    _poisson_table,
    discrete_gaussian,
    skellam,
)
from privfl.privacy.noise.source import NoiseSource, NoiseStream

FALSE_ALARM = 1e-6
TABLES = {
    "Gaussian 2^-40": _gaussian_table(2.0**-40),
    "Gaussian 0.25": _gaussian_table(0.25),
    "Gaussian 13.7": _gaussian_table(13.7),
    "Gaussian 1e6": _gaussian_table(1e6),
    "Gaussian 1e12": _gaussian_table(1e12),
    "Gaussian 2^80": _gaussian_table(2.0**80),
    "Poisson 2^-41": _poisson_table(2.0**-41),
    "Poisson 0.125": _poisson_table(0.125),
    "Poisson 3": _poisson_table(3.0),
    "Poisson 200.5": _poisson_table(200.5),
    "Poisson 16383.9": _poisson_table(16383.9),
    "Poisson 16384.1": _poisson_table(16384.1),
    "Poisson 5e11": _poisson_table(5e11),
    "Poisson 2^47": _poisson_table(2.0**47),
}
CLOSE_BY = [name for name in TABLES if name not in ("Poisson 5e11", "Poisson 2^47")]


def stream(*labels):
    return NoiseSource.from_key(20261121).stream("discrete noise", *labels)


class Forged(NoiseStream):
    """A stream that yields given words first."""

    def __init__(self, words):
        super().__init__(bytes(32))
        self.forged = list(words)

    def words(self, n):
        taken, self.forged = self.forged[:n], self.forged[n:]
        return np.concatenate([np.array(taken, dtype=np.uint64), super().words(n - len(taken))])


# --- the laws --------------------------------------------------------------------------------------------------------


def gaussian_law(variance):
    reach = math.ceil(12 * math.sqrt(variance)) + 2
    numbers = np.arange(-reach, reach + 1)
    weights = np.exp(-(numbers.astype(np.float64) ** 2) / (2 * variance))
    return numbers, weights / weights.sum()


def skellam_law(variance):
    """The convolution of two Poisson laws from scipy."""
    mean = variance / 2
    counts = np.arange(
        max(0, math.floor(mean - 10 * math.sqrt(mean)) - 40), math.ceil(mean + 10 * math.sqrt(mean)) + 40
    )
    poisson = stats.poisson.pmf(counts, mean)
    return np.arange(-len(counts) + 1, len(counts)), np.convolve(poisson, poisson[::-1])


def p_value(drawn, numbers, probabilities, bins=200):
    """Chi-square of ``drawn`` against a law on ``numbers``, with neighbours gathered into bins of at least 1/bins."""
    expected, observed = [], []
    counts = np.zeros(len(numbers))
    values, how_often = np.unique(drawn, return_counts=True)
    assert values[0] >= numbers[0]
    assert values[-1] <= numbers[-1]
    counts[values - numbers[0]] = how_often
    mass = count = 0.0
    for probability, seen in zip(probabilities, counts, strict=True):
        mass, count = mass + probability, count + seen
        if mass >= 1 / bins:
            expected.append(mass)
            observed.append(count)
            mass = count = 0.0
    expected[-1] += 1 - sum(expected)
    observed[-1] += len(drawn) - sum(observed)
    return stats.chisquare(observed, np.array(expected) * len(drawn)).pvalue


@pytest.mark.parametrize("variance", [0.1, 0.25, 1.0, 13.7, 130.0**2, 1000.3**2])
def test_discrete_gaussian_numbers_have_their_law(variance):
    drawn = discrete_gaussian(stream("law"), 400_000, variance)
    assert p_value(drawn, *gaussian_law(variance)) > FALSE_ALARM


@pytest.mark.parametrize("variance", [0.02, 0.25, 1.0, 13.7, 130.0**2, 180.0**2, 300.3**2])
def test_skellam_numbers_have_their_law(variance):
    drawn = skellam(stream("law"), 400_000, variance)
    assert p_value(drawn, *skellam_law(variance)) > FALSE_ALARM


@pytest.mark.parametrize("draw", [discrete_gaussian, skellam])
def test_wide_noise_is_normal_in_its_high_digits_and_uniform_in_its_low_ones(draw):
    """At σ = 10⁶ the laws differ from the normal law by about 10⁻¹², far below what 400,000 draws can see."""
    drawn = draw(stream("wide"), 400_000, 1e12)
    assert stats.kstest(drawn / 1e6, stats.norm.cdf).pvalue > FALSE_ALARM
    for modulus in (2, 64, 8192, 1000):
        assert stats.chisquare(np.bincount(drawn % modulus, minlength=modulus)).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("draw", "fourth"), [(discrete_gaussian, 3.0), (skellam, 3 + 1 / 49)])
def test_moments_are_those_of_the_law_and_odd_ones_vanish(draw, fourth):
    """Standard errors by the moments of the normal law: those of Skellam noise of variance 49 differ by 3 %."""
    drawn = draw(stream("moments"), 400_000, 49.0) / 7
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, fourth, 96)):
        assert abs(np.mean(drawn**power) - moment) < 5 * math.sqrt(1.1 * spread / len(drawn))


def test_sums_of_skellam_numbers_are_skellam():
    total = sum(skellam(stream("share", client), 200_000, 13.7 / 4) for client in range(4))
    assert p_value(total, *skellam_law(13.7)) > FALSE_ALARM


def twin_of_canonne_kamath_and_steinke(generator, variance):
    """One discrete Gaussian number by the paper's algorithms 1 to 3, with coins of rational probability only."""

    def coin(probability):
        return generator.randrange(probability.denominator) < probability.numerator

    def exponential_coin(rate):  # True with probability exp(-rate)
        while rate > 1:
            if not exponential_coin(Fraction(1)):
                return False
            rate -= 1
        step = 1
        while coin(rate / step):
            step += 1
        return step % 2 == 1

    scale = math.isqrt(math.floor(variance)) + 1
    while True:
        low = generator.randrange(scale)
        if not exponential_coin(Fraction(low, scale)):
            continue
        high = 0
        while exponential_coin(Fraction(1)):
            high += 1
        size, negative = low + scale * high, coin(Fraction(1, 2))
        if size == 0 and negative:
            continue
        if exponential_coin((size - variance / scale) ** 2 / (2 * variance)):
            return -size if negative else size


def test_a_twin_that_draws_one_number_at_a_time_with_fractions_agrees():
    generator = random.Random(20261121)
    twin = np.array([twin_of_canonne_kamath_and_steinke(generator, Fraction(9, 2)) for _ in range(20_000)])
    drawn = discrete_gaussian(stream("twin"), 20_000, 4.5)
    table = np.stack([np.bincount(x.clip(-6, 6) + 6, minlength=13) for x in (twin, drawn)])
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
    assert p_value(twin, *gaussian_law(4.5)) > FALSE_ALARM


# --- exactness -------------------------------------------------------------------------------------------------------


def exact_chance(table, entry, offset):
    """The probability with which a proposal is kept, from the law's weight in 60 digits."""
    with localcontext(Context(prec=60)):
        return Fraction(table.law.weight(offset)) * Fraction(table.scale) * table.block / table.entries[entry]


def inside(table):
    return len(table.entries) - len(table.tails)


@pytest.mark.parametrize("name", CLOSE_BY)
def test_float64_knows_every_probability_far_better_than_the_margin_assumes(name):
    table = TABLES[name]
    generator = np.random.default_rng(1)
    entries = generator.choice(inside(table), size=min(inside(table), 60), replace=False)
    offsets = (entries + table.first) * table.block + generator.integers(table.block, size=len(entries))
    floats = np.exp(table.law.log_weights(offsets.astype(np.float64)) + table.shifts[entries])
    for entry, offset, value in zip(entries.tolist(), offsets.tolist(), floats.tolist(), strict=True):
        chance = exact_chance(table, entry, offset)
        assert abs(Fraction(value) - chance) < Fraction(1, 2**44)
        assert chance <= 1


@pytest.mark.parametrize("name", ["Poisson 5e11", "Poisson 2^47"])
def test_the_series_of_wide_poisson_laws_is_right_where_products_can_reach_it(name):
    law = TABLES[name].law
    offsets = [-200_000, -3, 1, 200_000]
    with localcontext(Context(prec=60)):
        exact = [float(law.weight(offset).ln()) for offset in offsets]
    assert law.log_weights(np.array(offsets, dtype=np.float64)) == pytest.approx(exact, rel=1e-13, abs=2**-46)


def test_the_series_of_wide_poisson_laws_is_right_in_the_tails():
    """By Stirling's series in 60 digits: its terms beyond the fourth are below 10⁻⁵⁰ here."""
    law = TABLES["Poisson 5e11"].law
    offsets = np.array([-7_000_000.0, -700_001.0, 31_234_567 / 5, 7_100_000.0]).round()
    with localcontext(Context(prec=60)):
        mean = Decimal(law.mean)

        def log_probability(count):
            series = 1 / (12 * count) - 1 / (360 * count**3) + 1 / (1260 * count**5) - 1 / (1680 * count**7)
            return count * mean.ln() - (count * count.ln() - count + count.ln() / 2 + series)

        top = log_probability(Decimal(law.mode))
        exact = [float(log_probability(law.mode + Decimal(offset)) - top) for offset in offsets.tolist()]
    assert np.abs(law.log_weights(offsets) - exact).max() < 2**-44


@pytest.mark.parametrize("name", ["Gaussian 0.25", "Gaussian 13.7", "Poisson 0.125", "Poisson 3", "Poisson 200.5"])
def test_what_table_and_coin_give_together_is_the_law_to_the_last_digit(name):
    table = TABLES[name]
    size = inside(table)
    given = [table.entries[entry] * exact_chance(table, entry, entry + table.first) for entry in range(size)]
    offsets = np.arange(table.first, table.first + size)
    if name.startswith("Gaussian"):
        numbers, law = gaussian_law(table.law.variance)
        expected = law[offsets - numbers[0]]
    else:
        expected = stats.poisson.pmf(offsets + table.law.mode, table.law.mean)
    assert np.array([float(one / sum(given)) for one in given]) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("name", CLOSE_BY)
def test_entries_cover_the_word_and_look_ups_agree_with_the_search(name):
    table = TABLES[name]
    assert 2**64 * (1 - 2**-19) < sum(table.entries) < 2**64
    words = stream("words").words(2000)
    found = table.pick[(words >> np.uint64(48)).astype(np.int64)]
    searched = np.searchsorted(table.ends, words, side="right")
    assert np.array_equal(found[found >= 0], searched[found >= 0])
    assert (found >= 0).mean() > 0.8


@pytest.mark.parametrize(("following", "kept"), [(0, True), (2**64 - 1, False)])
def test_a_coin_that_64_bits_cannot_decide_takes_more_bits(following, kept):
    table = TABLES["Gaussian 1e6"]
    entry, offset = 200, (200 + table.first) * table.block + 3
    chance = exact_chance(table, entry, offset)
    pick, coin = int(table.ends[entry]) - 1, math.floor(chance * 2**64)
    forged = Forged([pick, coin, 3, following])
    offsets, which = table._propose(forged, 1)
    assert not forged.forged, "the word that follows was needed"
    assert (offsets.tolist(), which.tolist()) == ([offset], [kept])


def test_a_coin_just_outside_the_tie_is_decided_without_more_bits():
    table = TABLES["Gaussian 13.7"]
    entry = 3
    chance = exact_chance(table, entry, entry + table.first)
    for coin, kept in ((math.floor(chance * 2**64) - 1, True), (math.floor(chance * 2**64) + 1, False)):
        forged = Forged([int(table.ends[entry]) - 1, coin, 7])
        assert table._propose(forged, 1)[1].tolist() == [kept]
        assert forged.forged == [7]


@pytest.mark.parametrize("name", CLOSE_BY)
def test_tails_begin_where_the_table_ends_and_never_promise_too_much(name):
    table = TABLES[name]
    last = (table.first + inside(table)) * table.block
    starts = {tail.sign: tail.start for tail in table.tails}
    assert starts.pop(1) == last
    assert starts in ({}, {-1: table.first * table.block - 1})
    for tail in table.tails:
        for halvings in (1, 2, 5):
            nearest = tail.start + tail.sign * (halvings - 1) * tail.length
            with localcontext(Context(prec=60, Emin=-(10**15))):
                chance = table.law.weight(nearest) * Decimal(table.scale) * tail.length * 2**halvings
            assert 0 <= chance <= 1


@pytest.mark.parametrize("name", ["Gaussian 13.7", "Gaussian 1e6", "Poisson 200.5"])
def test_a_number_from_the_tail_has_the_probability_of_the_law(name):
    table = TABLES[name]
    for number, tail in enumerate(table.tails):
        entry = inside(table) + number
        zeros, place = 1, tail.length // 2
        offset = tail.start + tail.sign * (zeros * tail.length + place)
        with localcontext(Context(prec=60)):
            # (law of the offset) / (weight 1 of the tail · one half per length · a place in it), all in units of 2^-64
            chance = Fraction(table.law.weight(offset)) * Fraction(table.scale) * tail.length * 4
        for coin, kept in (
            (max(math.floor(chance * 2**64) - 1, 0), True),
            (math.floor(chance * 2**64) + 1, False),
        ):
            words = [int(table.ends[entry - 1]), coin, *([0] if table.block > 1 else []), 2**62, place]
            offsets, which = table._propose(Forged(words), 1)
            assert offsets.tolist() == [offset]
            assert which.tolist() == [kept]


def test_words_that_the_table_leaves_over_are_never_kept():
    table = TABLES["Gaussian 13.7"]
    for coin in (0, 2**63, 2**64 - 1):
        assert table._propose(Forged([2**64 - 1, coin]), 1)[1].tolist() == [False]


# --- streams and edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [discrete_gaussian, skellam])
@pytest.mark.parametrize("variance", [0.3, 1e8])
def test_noise_is_fixed_by_its_stream_and_streams_are_independent(draw, variance):
    first, again, other = (draw(stream(label), 100_000, variance) for label in ("a", "a", "b"))
    assert first.dtype == np.int64
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(len(first))


@pytest.mark.parametrize("draw", [discrete_gaussian, skellam])
def test_no_variance_is_no_noise_and_no_number_is_no_draw(draw):
    assert draw(stream("zero"), 3, 0.0).tolist() == [0, 0, 0]
    assert draw(stream("zero"), 0, 2.0).tolist() == []
    assert not draw(stream("tiny"), 1000, 2.0**-40).any()


@pytest.mark.parametrize("draw", [discrete_gaussian, skellam])
@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf, 2.0**-41, 2.0**81])
def test_variances_that_no_sampler_serves_are_refused(draw, variance):
    with pytest.raises(ConfigError, match="variance"):
        draw(stream("refused"), 3, variance)


def test_skellam_noise_beyond_the_reach_of_exact_products_is_refused():
    with pytest.raises(ConfigError, match="coarser"):
        skellam(stream("refused"), 3, 2.0**49)


@pytest.mark.parametrize("draw", [discrete_gaussian, skellam])
def test_a_negative_number_of_values_is_refused(draw):
    with pytest.raises(ConfigError, match="-1"):
        draw(stream("refused"), -1, 1.0)


@pytest.mark.parametrize(("draw", "variance"), [(discrete_gaussian, 2.0**80), (skellam, 2.0**48)])
def test_the_widest_noise_has_its_variance(draw, variance):
    """20,000 draws: five standard errors of a normal law's sample variance are 5 %."""
    assert np.mean(draw(stream("widest"), 20_000, variance).astype(float) ** 2) / variance == pytest.approx(1, abs=0.05)
