"""Tracing on prototypes follows the Gaussian closed form."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from attacks.prototypes.tracing import (
    PublicReference,
    expected_auc,
    separation,
)
from privfl.errors import ConfigError

SPECIFIED = json.loads((Path(__file__).parents[2] / "oracles" / "prototype_tracing.json").read_text())
WIDTH = SPECIFIED["dimension"]


def correlated(rows, rng):
    """Gaussian features whose units are correlated, of very different size, and not centred."""
    mixing = np.random.default_rng(7).normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)
    scales = np.logspace(-1, 1, WIDTH)
    return torch.from_numpy((rng.normal(size=(rows, WIDTH)) @ mixing + rng.normal(size=(rows, WIDTH))) * scales + 3)


def rank_auc(members, others):
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return (ranks.sum() - len(members) * (len(members) + 1) / 2) / (len(members) * len(others))


@pytest.fixture(scope="module")
def reference():
    return PublicReference.of(correlated(20_000, np.random.default_rng(1)))


@pytest.mark.parametrize("row", SPECIFIED["rows"], ids=lambda row: f"n={row['n']}")
def test_the_closed_form_is_the_specified_one(row):
    assert expected_auc(WIDTH, row["n"]) == pytest.approx(row["theory"], abs=10 ** -row["digits"])


@pytest.mark.parametrize("row", SPECIFIED["rows"], ids=lambda row: f"n={row['n']}")
def test_the_attack_reaches_the_closed_form_to_0_02(row, reference):
    """Averaged over enough prototypes that the standard error is below 0.003: 0.02 is more than 6 of them."""
    rng, count = np.random.default_rng(row["n"]), row["n"]
    areas, found = [], []
    for _ in range(max(40, 1200 // count)):
        members, others = correlated(count, rng), correlated(400, rng)
        inside, outside = (reference.scores(side, members.mean(0)).numpy() for side in (members, others))
        areas.append(rank_auc(inside, outside))
        found.append((inside >= np.quantile(outside, 0.9)).mean())
    assert np.mean(areas) == pytest.approx(row["theory"], abs=0.02)
    assert np.std(areas) / math.sqrt(len(areas)) < 0.02 / 6
    assert np.mean(found) == pytest.approx(norm.cdf(separation(WIDTH, count) + norm.ppf(0.1)), abs=0.05)


def test_the_statistic_is_a_whitened_inner_product():
    rng = np.random.default_rng(0)
    features, candidates, prototype = rng.normal(size=(50, 4)), rng.normal(size=(3, 4)), rng.normal(size=4)
    reference = PublicReference.of(torch.from_numpy(features))
    expected = [
        (candidate - features.mean(0)) @ reference.precision.numpy() @ (prototype - features.mean(0))
        for candidate in candidates
    ]
    found = reference.scores(torch.from_numpy(candidates), torch.from_numpy(prototype))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_covariance_is_the_sample_covariance_where_there_is_plenty_of_public_data(reference):
    features = correlated(20_000, np.random.default_rng(1))
    sample = torch.linalg.inv(torch.cov(features.T))
    relative = torch.linalg.matrix_norm(reference.precision - sample) / torch.linalg.matrix_norm(sample)
    assert float(relative) < 0.05


def test_the_effective_dimension_is_that_of_the_features_left_after_whitening(reference):
    assert reference.effective_dimension(correlated(2000, np.random.default_rng(2))) == pytest.approx(WIDTH, rel=0.05)
    # Under the identity as precision it is (Σλ)²/Σλ² of the covariance's eigenvalues λ.
    plain = PublicReference(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    deviations = torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64)
    rows = torch.from_numpy(np.random.default_rng(3).normal(size=(4000, 3))) * deviations
    assert plain.effective_dimension(rows) == pytest.approx((9 + 1 + 1) ** 2 / (81 + 1 + 1), rel=0.1)


def test_scales_of_the_units_do_not_matter():
    rng = np.random.default_rng(5)
    public, candidates = correlated(60, rng), correlated(5, rng)
    scales = torch.logspace(-3, 3, WIDTH, dtype=torch.float64)
    found = PublicReference.of(public).scores(candidates, candidates.mean(0))
    again = PublicReference.of(public * scales).scores(candidates * scales, candidates.mean(0) * scales)
    torch.testing.assert_close(again, found)


def test_a_unit_that_is_dead_in_public_is_left_out():
    features = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 6)))
    others = [0, 1, 3, 4, 5]
    expected = PublicReference.of(features[:, others]).scores(features[:, others], features[:10, others].mean(0))
    candidates = features.clone()
    features[:, 2] = 0
    torch.testing.assert_close(PublicReference.of(features).scores(candidates, candidates[:10].mean(0)), expected)


def test_what_is_impossible_is_refused():
    with pytest.raises(ConfigError, match="at least two rows"):
        PublicReference.of(torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="do not vary"):
        PublicReference.of(torch.ones(5, 3))
    reference = PublicReference.of(torch.eye(3))
    with pytest.raises(ConfigError, match="has 3 features"):
        reference.scores(torch.zeros(2, 4), torch.zeros(3))
    with pytest.raises(ConfigError, match="N ≥ 2"):
        reference.effective_dimension(torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="positive numbers"):
        separation(128, 0)
