"""The terms of a secure sum: honest survivors, norms of what clients send, and what cannot be."""

import math

import pytest

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.distributed_sum import DistributedSum


def test_the_l1_norm_of_integers_is_at_most_their_squared_l2_norm_and_root_d_times_it():
    few, many = DistributedSum(10**6, 2.0**30, 9, 9), DistributedSum(10**6, 1.0, 9, 9)
    assert few.l1_norm == pytest.approx(1000 * few.l2_norm)
    assert many.l1_norm == pytest.approx(many.l2_norm**2)
    assert many.l2_norm < 1000


@pytest.mark.parametrize(
    "arguments",
    [(0, 1.0, 5, 3), (1, 0.0, 5, 3), (1, math.nan, 5, 3), (1, math.inf, 5, 3), (1, 1.0, 5, 6), (1, 1.0, 5, 0)],
    ids=str,
)
def test_sums_that_cannot_be_are_refused(arguments):
    with pytest.raises(ConfigError):
        DistributedSum(*arguments)


@pytest.mark.parametrize("beta", [0.0, 1.0, math.nan])
def test_a_beta_that_is_no_probability_is_refused(beta):
    with pytest.raises(ConfigError):
        DistributedSum(1, 1.0, 5, 3, beta)
