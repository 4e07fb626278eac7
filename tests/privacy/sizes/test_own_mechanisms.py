"""A size mechanism from outside privfl is asked for each client alone, and believed if it draws from the stream."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import pure_cost
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.mechanism import SizeMechanism, size_release
from privfl.privacy.sizes.own_mechanisms import KEYS, why_not_random
from privfl.privacy.sizes.responses import SizeResponses

SOURCE = NoiseSource.from_key(5)
COUNTER = [0.0]


@dataclass(frozen=True)
class Own(SizeMechanism):
    """Laplace noise."""

    def randomise(self, truths, stream):
        return truths + stream.laplace(len(truths), 2 * self.range.half_width / self.epsilon)

    def response_variance(self, truths):
        return np.full(len(truths), 8 * (self.range.half_width / self.epsilon) ** 2)

    def support(self):
        return -math.inf, math.inf

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class Relative(Own):
    """Sizes relative to the largest one, plus noise."""

    def randomise(self, truths, stream):
        return super().randomise(truths / truths.max() * self.range.hi, stream)

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class OneNoise(Own):
    """The same noise for everybody who is asked at once."""

    def randomise(self, truths, stream):
        return truths + stream.laplace(1, 2 * self.range.half_width / self.epsilon)

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class FixedCoins(Own):
    """Coins from a generator with a seed of its own."""

    def randomise(self, truths, stream):
        return truths + np.random.default_rng(0).laplace(0, self.range.hi / self.epsilon, len(truths))

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class DrawnInVain(FixedCoins):
    """The same, after a draw from the stream that nobody uses."""

    def randomise(self, truths, stream):
        stream.uniform(len(truths))
        return super().randomise(truths, stream)

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class Counted(Own):
    """An answer that also follows from how many were given."""

    def randomise(self, truths, stream):
        COUNTER[0] += 1
        return super().randomise(truths, stream) + COUNTER[0]

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class Rare(Own):
    """Randomised response."""

    def randomise(self, truths, stream):
        lies = self.range.uniform(len(truths), stream)
        rare = self.range.domain / (math.expm1(self.epsilon) + self.range.domain)
        return np.where(stream.bernoulli(rare, len(truths)), lies, truths)

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class Returns(Own):
    """What a test wants it to."""

    what: str = ""

    def randomise(self, truths, stream):
        noisy = super().randomise(truths, stream)
        return {
            "list": noisy.tolist(),
            "scalar": float(noisy[0]),
            "two": np.concatenate([noisy, noisy]),
            "2-D": noisy[:, None],
            "text": noisy.astype(str),
            "objects": noisy.astype(object),
            "nothing": None,
            "no number": noisy * math.nan,
            "ragged": [[1], [1, 2]],
        }[self.what]

    def client_cost(self):
        return pure_cost(self.epsilon)


def claim(mechanism):
    return size_release(mechanism).cost("client", "server")


def answers(mechanism, sizes, source=SOURCE):
    return SizeResponses().answers(0, np.arange(len(sizes)), sizes, mechanism, source)


@pytest.mark.parametrize("kind", [Own, Relative, OneNoise, Rare])
def test_nobodys_size_moves_the_answer_of_another_client(kind):
    small = answers(kind(1.0, 1000), np.array([20] * 50))
    large = answers(kind(1.0, 1000), np.array([1000] + [20] * 49))
    assert np.array_equal(small[1:], large[1:])


def test_no_two_clients_share_their_noise():
    assert len(set(answers(OneNoise(1.0, 100), np.full(50, 20)))) == 50


@pytest.mark.parametrize("kind", [Own, Relative, OneNoise, Rare])
def test_a_client_asked_alone_answers_as_among_others(kind):
    mechanism, sizes = kind(1.0, 100, refresh="every_round"), np.arange(1, 31)
    together, table = SizeResponses(), SizeResponses()
    for round in range(3):
        expected = together.answers(round, np.arange(30), sizes, mechanism, SOURCE)
        assert table.answers(round, [17], sizes[[17]], mechanism, SOURCE)[0] == expected[17]


@pytest.mark.parametrize("kind", [Own, Relative, OneNoise, Rare])
def test_answers_from_the_coins_of_the_stream_cost_what_is_stated(kind):
    assert claim(kind(1.0, 100)) == pure_cost(1.0)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FixedCoins, "draws nothing from the stream"),
        (DrawnInVain, f"gives the same answers under {KEYS} keys"),
        (Counted, "answers otherwise when it is asked again under the same coins"),
    ],
)
def test_answers_from_other_coins_claim_nothing_and_the_reason_names_the_class(kind, said):
    cost = claim(kind(1.0, 100))
    assert cost.event is None
    assert said in cost.reason
    assert kind.__name__ in cost.reason


def test_an_answer_that_is_seldom_a_lie_is_still_found_to_be_random():
    assert why_not_random(Rare(8.0, 100)) == ""


def test_no_trial_is_made_where_nothing_is_claimed_anyway():
    assert "inf" in claim(FixedCoins(math.inf, 100)).reason


def test_a_list_of_numbers_is_an_answer():
    assert np.array_equal(answers(Returns(1.0, 100, what="list"), [5, 9]), answers(Own(1.0, 100), [5, 9]))


@pytest.mark.parametrize("what", ["scalar", "two", "2-D", "text", "objects", "nothing", "no number", "ragged"])
def test_answers_that_are_no_numbers_are_refused_in_a_sentence(what):
    for ask in (claim, lambda mechanism: answers(mechanism, [5])):
        with pytest.raises(ConfigError, match="return an array with one finite number for each size"):
            ask(Returns(1.0, 100, what=what))


def test_whole_answers_that_follow_broken_ones_keep_both():
    @dataclass(frozen=True)
    class Mixed(Own):
        def randomise(self, truths, stream):
            noisy = super().randomise(truths, stream)
            return noisy if truths[0] < 10 else np.rint(noisy).astype(np.int64)

    table, mechanism = SizeResponses(), Mixed(1.0, 100)
    first = table.answers(0, [0], [5], mechanism, SOURCE)
    table.answers(0, [1], [50], mechanism, SOURCE)
    assert table.answers(0, [0], [5], mechanism, SOURCE)[0] == first[0] != round(first[0])
