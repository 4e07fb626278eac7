"""Noise streams are ChaCha20, depend on (key, labels) alone, have the laws they claim, and releases lie on the grid.

Statistical tests fix the key; each states a false-alarm rate of at most 1e-6 over keys (a p-value threshold, or five
standard errors, 6e-7 two-sided, divided by the number of comparisons where there are several).
"""

import hashlib
import hmac
import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from privfl.errors import ConfigError
from privfl.privacy.noise.source import (
    NoiseSource,
    NoiseStream,
    _log_uniform,
    add_gaussian_rows_,
    release_grid,
    round_to_grid,
)

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "local_randomizers.json").read_text())
FALSE_ALARM = 1e-6


def stream(*labels):
    return NoiseSource.from_key(20261121).stream("test", *labels)


# --- the key stream --------------------------------------------------------------------------------------------------


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3, in plain integers."""
    words = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    words += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    words += [counter, *(int.from_bytes(nonce[i : i + 4], "little") for i in range(0, 12, 4))]
    x = words.copy()

    def half(a, b, c, turn):
        x[a] = (x[a] + x[b]) & 0xFFFFFFFF
        x[c] ^= x[a]
        x[c] = (x[c] << turn | x[c] >> (32 - turn)) & 0xFFFFFFFF

    def quarter(a, b, c, d):
        half(a, b, d, 16), half(c, d, b, 12), half(a, b, d, 8), half(c, d, b, 7)

    for _ in range(10):
        quarter(0, 4, 8, 12), quarter(1, 5, 9, 13), quarter(2, 6, 10, 14), quarter(3, 7, 11, 15)
        quarter(0, 5, 10, 15), quarter(1, 6, 11, 12), quarter(2, 7, 8, 13), quarter(3, 4, 9, 14)
    return b"".join(((a + b) & 0xFFFFFFFF).to_bytes(4, "little") for a, b in zip(x, words, strict=True))


def test_the_twin_gives_the_published_chacha20_block():
    row = ORACLES["chacha20_block"]
    block = chacha20_block(bytes.fromhex(row["key"]), row["counter"], bytes.fromhex(row["nonce"]))
    assert block.hex() == row["expected"]


def test_the_stream_of_the_zero_key_is_test_vectors_1_and_2_of_rfc_8439_appendix_a1():
    words = NoiseStream(bytes(32)).words(16).tobytes().hex()
    assert words[:128] == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert words[128:] == (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_any_key_gives_the_twins_key_stream_however_it_is_cut_into_calls():
    key = hashlib.sha256(b"any key").digest()
    expected = b"".join(chacha20_block(key, counter, bytes(12)) for counter in range(6))
    cut = NoiseStream(key)
    assert b"".join(cut.words(n).tobytes() for n in (1, 0, 30, 17)) == expected


def test_long_requests_continue_the_same_key_stream_across_chunks():
    whole, parts = NoiseStream(bytes(32)), NoiseStream(bytes(32))
    assert np.array_equal(whole.words(100_000), np.concatenate([parts.words(1), parts.words(99_999)]))


# --- sources and labels ----------------------------------------------------------------------------------------------


def hkdf_sha256(key: bytes, info: bytes) -> bytes:
    """RFC 5869 with an empty salt and 32 bytes of output."""
    return hmac.digest(hmac.digest(bytes(32), key, "sha256"), info + b"\x01", "sha256")


def test_child_keys_are_hkdf_of_the_root_key_and_the_tagged_labels():
    source = NoiseSource.from_key(bytes(range(32)))
    info = b"privfl noise" + b"s\x00\x00\x00\x04size" + b"i\x00\x00\x00\x02-3"
    child = hkdf_sha256(bytes(range(32)), info)
    assert np.array_equal(source.stream("size", -3).words(8), NoiseStream(child).words(8))


def test_a_stream_that_nobody_draws_from_derives_no_key():
    asked = []

    def derive():
        asked.append(1)
        return bytes(range(32))

    stream, other = NoiseStream(derive), NoiseStream(bytes(range(32)))
    assert not asked
    assert np.array_equal(stream.words(3), other.words(3))
    assert np.array_equal(stream.normal(5), other.normal(5))
    assert stream.key == other.key
    assert asked == [1]


def test_noise_depends_on_key_and_labels_only_not_on_the_order_or_number_of_streams():
    first, second = NoiseSource.from_key(7), NoiseSource.from_key(7)
    forwards = {client: first.stream("update", 3, client).normal(5) for client in range(4)}
    backwards = {client: second.stream("update", 3, client).normal(5) for client in reversed(range(4))}
    assert all(np.array_equal(forwards[client], backwards[client]) for client in range(4))


def test_labels_that_read_alike_give_different_streams():
    source = NoiseSource.from_key(0)
    labels = [("ab", "c"), ("a", "bc"), ("abc",), (1,), ("1",), (1, 1), (11,), (-1,), ("",), ("", "")]
    assert len({source.stream(*label).words(2).tobytes() for label in labels}) == len(labels)


def test_numpy_integers_are_the_same_labels_as_integers():
    source = NoiseSource.from_key(0)
    assert np.array_equal(source.stream(np.int64(5)).words(4), source.stream(5).words(4))


def test_keys_from_the_operating_system_differ_and_are_not_reproducible():
    one, two = NoiseSource.from_os(), NoiseSource.from_os()
    assert one.key != two.key
    assert not one.reproducible
    assert not np.array_equal(one.stream("x").words(4), two.stream("x").words(4))


def test_a_fixed_key_is_marked_as_reproducible():
    assert NoiseSource.from_key(5).reproducible
    assert NoiseSource.from_key(5) == NoiseSource.from_key((5).to_bytes(32, "big"))


def test_experiment_seeds_do_not_reach_the_noise():
    def draw():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the legacy global state is what must not matter
        return NoiseSource.from_os().stream("x").normal(4)

    assert not np.array_equal(draw(), draw())


def test_a_source_survives_a_checkpoint():
    source = NoiseSource.from_os()
    restored = NoiseSource.from_state(json.loads(json.dumps(source.state())))
    assert restored == source
    assert np.array_equal(restored.stream("a", 1).words(4), source.stream("a", 1).words(4))


def test_a_source_shows_no_key_and_can_be_sent_to_a_worker():
    source = NoiseSource.from_key(123456789)
    assert repr(source) == "NoiseSource(reproducible=True)"
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize("key", [b"short", -1, 1 << 256])
def test_impossible_keys_are_refused(key):
    with pytest.raises(ConfigError, match="noise key"):
        NoiseSource.from_key(key)


@pytest.mark.parametrize("labels", [(), (1.5,), (None,), (b"bytes",)])
def test_impossible_labels_are_refused(labels):
    with pytest.raises(ConfigError, match=r"noise (stream|label)"):
        NoiseSource.from_key(0).stream(*labels)


# --- laws ------------------------------------------------------------------------------------------------------------


def test_uniform_numbers_are_53_bit_and_uniform():
    values = stream("uniform").uniform(200_000)
    assert values.dtype == np.float64
    assert np.array_equal(values * 2**53, np.floor(values * 2**53))
    assert stats.kstest(values, "uniform").pvalue > FALSE_ALARM
    assert (values * 2**53 % 2).mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(values.size))  # last bit


def test_no_normal_numbers_are_none_also_in_a_thread_that_drew_none_yet():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(stream("nothing").normal, 0).result().shape == (0,)


def test_normal_numbers_are_normal_by_kolmogorov_smirnov_moments_and_tail():
    n = 2_000_001
    values = stream("normal").normal(n)
    assert values.shape == (n,)
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:  # E z^p and Var z^p
        assert abs(np.mean(values**power) - moment) < 5.3 * math.sqrt(variance / n)  # 1.2e-7 each, 5e-7 together
    for sigma in (3, 4, 5):
        assert stats.binomtest(int(np.sum(np.abs(values) > sigma)), n, 2 * stats.norm.sf(sigma)).pvalue > 3e-7


def test_the_two_numbers_of_a_box_muller_pair_are_independent():
    """Correlations of the values and of their squares between the cosine and the sine halves, 5 standard errors."""
    cosine, sine = stream("pairs").normal(1 << 15).reshape(2, -1)
    for f in (np.asarray, np.square, np.abs):
        assert abs(np.corrcoef(f(cosine), f(sine))[0, 1]) < 5 / math.sqrt(cosine.size)
    assert stats.kstest(np.arctan2(sine, cosine) / (2 * math.pi) % 1, "uniform").pvalue > FALSE_ALARM


def test_consecutive_chunks_and_neighbouring_streams_are_uncorrelated():
    a, b = stream("round", 1, 2).normal(1 << 16), stream("round", 2, 1).normal(1 << 16)
    for x, y in [(a, b), (a[: 1 << 15], a[1 << 15 :]), (a[:-1], a[1:])]:
        assert abs(np.corrcoef(x, y)[0, 1]) < 5.3 / math.sqrt(x.size)


def test_the_logarithm_is_refined_below_the_smallest_53_bit_number():
    """Words of zeros stand for U < 2⁻⁵³; given that, −log U − 53 log 2 is standard exponential."""
    (refined,) = _log_uniform([stream("tail")], np.zeros((1, 100_000)))
    assert np.all(np.isfinite(refined))
    assert stats.kstest(-refined - 53 * math.log(2), "expon").pvalue > FALSE_ALARM


@pytest.mark.parametrize("size", [1, 6, 5386, (1 << 15) + 3, 70_001])
def test_rows_get_the_bits_that_each_stream_alone_would_give(size):
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(0))
    deviations = [1.0, 0.3, 0.0, 7.0, 1e-3]
    alone = rows.clone()
    for place, deviation in enumerate(deviations):
        stream("row", place).add_gaussian_(alone[place], deviation)
    together = add_gaussian_rows_([stream("row", place) for place in range(5)], rows.clone(), deviations)
    assert torch.equal(together, alone)
    assert torch.equal(together[2], rows[2])
    assert not torch.equal(together[3], rows[3])


def test_laplace_numbers_have_the_laplace_law_and_a_fair_sign():
    values = stream("laplace").laplace(500_000, 2.5)
    assert stats.kstest(values, stats.laplace(scale=2.5).cdf).pvalue > FALSE_ALARM
    assert np.corrcoef(np.sign(values), np.abs(values))[0, 1] == pytest.approx(0, abs=5 / math.sqrt(values.size))
    assert not stream("laplace").laplace(10, 0.0).any()


@pytest.mark.parametrize("p", [1e-4, 0.3, 0.5, 0.999])
def test_bernoulli_coins_have_their_probability(p):
    coins = stream("coin", str(p)).bernoulli(p, 400_000)
    assert coins.dtype == np.bool_
    assert stats.binomtest(int(coins.sum()), coins.size, p).pvalue > FALSE_ALARM


def test_bernoulli_is_exact_at_the_ends_and_takes_one_probability_per_coin():
    s = stream("ends")
    assert not s.bernoulli(0.0, 10_000).any()
    assert s.bernoulli(1.0, 10_000).all()
    mixed = s.bernoulli(np.tile([0.0, 0.25, 1.0], 30_000), 90_000).reshape(-1, 3)
    assert not mixed[:, 0].any()
    assert mixed[:, 2].all()
    assert stats.binomtest(int(mixed[:, 1].sum()), 30_000, 0.25).pvalue > FALSE_ALARM


def test_bernoulli_compares_whole_64_bit_words():
    """The coin is word < ⌈p·2⁶⁴⌉, so it resolves probabilities of 2⁻⁶⁴."""
    words = stream("words").words(1000)
    p = 0.3
    expected = [int(word) < math.ceil(p * 2**64) for word in words]
    assert stream("words").bernoulli(p, 1000).tolist() == expected


def test_bernoulli_rounds_probabilities_up_to_the_next_multiple_of_two_to_the_minus_64():
    """Words below 2⁵², so that a probability half a step above them is a float."""
    words = stream("up").words(100_000)
    small = words < 2**52
    assert small.sum() > 3
    exact = words.astype(np.float64) * 2.0**-64
    assert not stream("up").bernoulli(exact, words.size)[small].any()
    assert stream("up").bernoulli(np.where(small, exact + 2.0**-65, 0.0), words.size)[small].all()


@pytest.mark.parametrize(("low", "high"), [(1, 99), (-3, 3), (0, 255), (5, 5)])
def test_integers_are_uniform_between_both_ends(low, high):
    values = stream("integers", low, high).integers(low, high, 200_000)
    counts = np.bincount(values - low, minlength=high - low + 1)
    assert counts.size == high - low + 1
    if counts.size > 1:
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_integers_reject_words_that_would_favour_small_values():
    """Over three quarters of 2⁶⁴ a plain remainder would hit the lower third twice as often as the rest."""
    values = stream("wide").integers(-(2**62), 2**63 - 1, 60_000)
    thirds = np.floor((values.astype(np.float64) + 2.0**62) / 2.0**62).clip(0, 2).astype(np.int64)
    assert stats.chisquare(np.bincount(thirds, minlength=3)).pvalue > FALSE_ALARM
    assert stream("all").integers(-(2**63), 2**63 - 1, 3).dtype == np.int64


def test_a_poisson_sample_takes_each_row_independently_with_the_rate():
    rows, rate, rounds = 40, 0.3, 5000
    taken = np.zeros((rounds, rows), dtype=bool)
    for i in range(rounds):
        index = stream("poisson", i).poisson_sample(rows, rate)
        assert index.dtype == np.int64
        taken[i, index] = True
    five = stats.norm.isf(FALSE_ALARM / 2 / (rows + rows * (rows - 1) / 2 + 1))
    assert np.all(np.abs(taken.mean(0) - rate) < five * math.sqrt(rate * (1 - rate) / rounds))
    pairs = np.corrcoef(taken.T)[np.triu_indices(rows, 1)]
    assert np.all(np.abs(pairs) < five / math.sqrt(rounds))
    size_variance = rows * rate * (1 - rate)
    assert taken.sum(1).var() == pytest.approx(size_variance, abs=five * size_variance * math.sqrt(2 / rounds))


# --- Gaussian noise on tensors, and the grid -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_noise_is_added_in_place_with_its_standard_deviation(dtype):
    truth = torch.linspace(-3, 3, 200_001, dtype=dtype)
    tensor = truth.clone()
    assert stream("add").add_gaussian_(tensor, 0.7) is tensor
    assert stats.kstest(((tensor - truth).double() / 0.7).numpy(), "norm").pvalue > FALSE_ALARM


def test_the_release_is_the_sum_in_float64_rounded_to_the_grid_then_cast():
    truth = torch.randn(70_001, generator=torch.Generator().manual_seed(1))
    released = stream("exact").add_gaussian_(truth.clone(), 0.3)
    noise = stream("exact").normal(70_001)
    expected = np.rint((truth.double().numpy() + 0.3 * noise) / 2**-22) * 2**-22  # 0.3 lies between 2⁻² and 2⁻¹
    difference = np.abs(expected - released.double().numpy())
    assert difference.max() <= 2**-22  # the last place of the sum may tip a value to the next grid point
    assert np.mean(difference > 0) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("standard_deviation", [3e-5, 0.7, 1.0, 1234.5])
def test_every_released_value_is_a_multiple_of_the_grid(dtype, standard_deviation):
    tensor = torch.full((50_000,), standard_deviation / 3, dtype=dtype)
    released = stream("grid").add_gaussian_(tensor, standard_deviation).double().numpy()
    units = released / release_grid(standard_deviation)
    assert np.array_equal(units, np.rint(units))


def low_bits(values, grid):
    """The eight bits just below the grid and the eight just above it, of values as exact binary fractions."""
    units = np.floor(values / grid * 256).astype(np.int64)
    return units % 256, units // 256 % 256


def test_low_bits_tell_the_value_under_raw_noise_and_nothing_under_the_grid():
    """Mironov 2012: 1.5·2⁴⁰ + noise in float64 has no bits below 2⁻¹²; the grid leaves none from any input."""
    n, grid = 50_000, release_grid(2.0**8)  # σ = 2⁸, grid 2⁻¹²
    noise = 2.0**8 * stream("mironov").normal(n)
    assert not low_bits(1.5 * 2.0**40 + noise, grid)[0].any()
    assert np.mean(low_bits(0.0 + noise, grid)[0] != 0) > 0.9
    for value in (0.0, 1 / 3, 1.5 * 2.0**40):
        released = stream("mironov", 2).add_gaussian_(torch.full((n,), value, dtype=torch.float64), 2.0**8)
        below, above = low_bits(released.numpy(), grid)
        assert not below.any()
        assert stats.chisquare(np.bincount(above, minlength=256)).pvalue > FALSE_ALARM / 3


def test_the_grid_is_the_power_of_two_at_or_below_a_millionth_of_the_noise():
    assert release_grid(1.0) == release_grid(1.999) == 2**-20
    assert release_grid(2.0) == 2**-19
    assert round_to_grid(np.array([0.3]), 0.0)[0] == 0.3


def test_noise_of_standard_deviation_zero_leaves_the_tensor_untouched():
    tensor = torch.tensor([0.1, math.pi])
    assert torch.equal(stream().add_gaussian_(tensor.clone(), 0.0), tensor)


def test_tensors_of_any_shape_and_gradient_mode_take_noise():
    weight = torch.nn.Parameter(torch.zeros(3, 4))
    stream().add_gaussian_(weight, 1.0)
    assert weight.detach().count_nonzero() == 12
    assert stream().add_gaussian_(torch.zeros(0), 1.0).numel() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device and PRIVFL_TEST_GPU=1")
def test_a_cuda_tensor_gets_the_same_bits_as_a_cpu_tensor():
    truth = torch.linspace(-1, 1, 100_003)
    on_cpu = stream("device").add_gaussian_(truth.clone(), 0.5)
    on_cuda = stream("device").add_gaussian_(truth.cuda(), 0.5)
    assert on_cuda.is_cuda
    assert torch.equal(on_cuda.cpu(), on_cpu)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, 1e-305])
def test_impossible_scales_are_refused_and_the_tensor_is_untouched(bad):
    tensor = torch.zeros(3)
    with pytest.raises(ConfigError, match="standard deviation of the noise"):
        stream().add_gaussian_(tensor, bad)
    assert not tensor.any()
    with pytest.raises(ConfigError, match="Laplace scale"):
        stream().laplace(1, bad)


@pytest.mark.parametrize("tensor", [torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.int64)])
def test_tensors_of_other_types_are_refused(tensor):
    with pytest.raises(ConfigError, match="convert it to float32 or float64"):
        stream().add_gaussian_(tensor, 1.0)


def test_tensors_with_gaps_are_refused():
    with pytest.raises(ConfigError, match="contiguous"):
        stream().add_gaussian_(torch.zeros(4, 4).T[:2], 1.0)


def test_impossible_draws_are_refused():
    for p in (-0.1, 1.1, math.nan, np.array([0.5, 2.0])):
        with pytest.raises(ConfigError, match="outside"):
            stream().bernoulli(p, 2)
    with pytest.raises(ConfigError, match="no integers from 2 to 1"):
        stream().integers(2, 1, 1)
    with pytest.raises(ConfigError, match="must not be negative"):
        stream().uniform(-1)


def test_one_probability_for_all_coins_is_rounded_up_too():
    words = stream("up").words(100_000)
    places = np.flatnonzero(words < 2**52)
    assert len(places) > 3
    for place in places[:4]:
        just_above = float(words[place]) * 2.0**-64 + 2.0**-65
        assert stream("up").bernoulli(just_above, words.size)[place]
