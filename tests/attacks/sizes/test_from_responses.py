"""Fresh answers about a size are votes: their mode is the truth after the published number of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from attacks.sizes.from_responses import most_likely, posterior
from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.local_randomizers import DuchiSize, LaplaceSize, PiecewiseSize
from privfl.privacy.sizes.randomized_response import RandomizedResponse

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "size_responses.json").read_text())["rows"]


def answers(mechanism, size, count, number):
    stream = NoiseSource.from_key(7).stream("test", number)
    return mechanism.respond(np.full(count, size), stream)


@pytest.mark.parametrize("row", ORACLES, ids=lambda row: f"eps{row['epsilon']:.3g}-D{row['domain']}")
def test_the_mode_is_the_size_after_as_many_answers_as_the_specification_says(row):
    """95 % exact recovery, ties split, 2 000 clients: within five standard errors of 0.95 plus one answer's step."""
    mechanism = RandomizedResponse(epsilon=row["epsilon"], bound=row["domain"])
    clients, truth = 2000, row["domain"] // 3
    found = []
    for count in (row["answers"] - 1, row["answers"] + 1):
        drawn = answers(mechanism, truth, clients * count, count).reshape(clients, count)
        won = 0.0
        for votes in drawn:
            belief = posterior(votes, mechanism)
            best = belief > belief.max() * (1 - 1e-9)
            won += best[truth - 1] / best.sum()
        found.append(won / clients)
    assert found[0] - 5 * math.sqrt(0.05 * 0.95 / clients) < 0.95 < found[1] + 5 * math.sqrt(0.05 * 0.95 / clients)


def test_the_posterior_of_randomised_response_is_bayes_rule():
    """Against the product of the output law, α + (1 − α)/D for the truth and (1 − α)/D for every lie."""
    mechanism = RandomizedResponse(epsilon=2.0, bound=6)
    prior = np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1])
    votes = [2, 2, 5, 1, 6]
    lie = (1 - mechanism.alpha) / 6
    expected = [
        prior[n - 1] * math.prod(mechanism.alpha + lie if vote == n else lie for vote in votes) for n in range(1, 7)
    ]
    found = posterior(votes, mechanism, prior)
    assert found.tolist() == pytest.approx((np.array(expected) / sum(expected)).tolist(), rel=1e-12)
    assert most_likely(found, mechanism) == 2


def test_the_posterior_of_one_bit_and_of_laplace_answers_is_bayes_rule():
    duchi = DuchiSize(epsilon=1.5, bound=9)
    low, high = duchi.support()
    sizes = np.arange(1, 10)
    upper = 0.5 + duchi.range.to_unit(sizes) / (2 * duchi.magnitude)
    found = posterior([high, high, low], duchi)
    expected = binom.pmf(2, 3, upper)
    assert found.tolist() == pytest.approx((expected / expected.sum()).tolist(), rel=1e-9)
    laplace = LaplaceSize(epsilon=1.5, bound=9)
    drawn = np.array([3.2, 11.0])
    expected = np.exp(-np.abs(drawn[:, None] - sizes) / laplace.scale).prod(0)
    assert posterior(drawn, laplace).tolist() == pytest.approx((expected / expected.sum()).tolist(), rel=1e-9)


def test_no_answer_leaves_the_prior():
    mechanism = RandomizedResponse(epsilon=1.0, bound=4)
    assert posterior([], mechanism).tolist() == pytest.approx([0.25] * 4)
    assert posterior([], mechanism, np.array([1, 0, 0, 3.0])).tolist() == pytest.approx([0.25, 0, 0, 0.75])


def test_one_answer_is_right_as_often_as_it_is_true():
    """40 000 clients, five standard errors."""
    mechanism = RandomizedResponse(epsilon=3.0, bound=99)
    drawn = answers(mechanism, 30, 40_000, 0)
    rate = math.exp(3) / (math.exp(3) + 98)
    assert abs((drawn == 30).mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / 40_000)


def test_a_memoised_posterior_never_exceeds_what_epsilon_allows():
    """Odds of any two sizes move by at most e^ε, whatever is answered."""
    for mechanism in (RandomizedResponse(2.0, 20), LaplaceSize(2.0, 20), DuchiSize(2.0, 20)):
        for answer in answers(mechanism, 13, 50, 1):
            belief = posterior([answer], mechanism)
            assert belief.max() / belief.min() <= math.exp(2.0) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: posterior([0], RandomizedResponse(1.0, 5)), "outside"),
        (lambda: posterior([1.5], RandomizedResponse(1.0, 5)), "outside"),
        (lambda: posterior([1.0], PiecewiseSize(1.0, 5)), "closed likelihood"),
        (lambda: posterior([1], RandomizedResponse(1.0, 5), np.ones(4)), "prior"),
        (lambda: posterior([1], RandomizedResponse(1.0, 5), np.zeros(5)), "prior"),
    ],
)
def test_impossible_answers_are_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()
