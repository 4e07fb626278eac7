"""A result says what was claimed, what was certified, and no more than both allow."""

import json
import math

import pytest

from audits.bounds.bound import Estimate, LowerBound
from audits.result import AuditResult
from privfl.errors import ConfigError


def bound(epsilon, confidence=0.975, delta=1e-5):
    return LowerBound(epsilon=epsilon, delta=delta, confidence=confidence, method="by hand")


def result(claim, *bounds, confidence=0.95, **more):
    return AuditResult(
        audit="a",
        unit="sample",
        observer="server",
        claim=claim,
        delta=1e-5,
        confidence=confidence,
        bounds=bounds,
        **more,
    )


def test_the_largest_bound_decides():
    found = result(3.0, bound(1.0), bound(2.0))
    assert found.bound.epsilon == 2.0
    assert found.looseness == 1.5
    assert not found.refuted
    assert "claim ÷ bound = 1.5" in found.verdict
    assert "does not prove" in found.verdict
    assert result(1.5, bound(1.0), bound(2.0)).refuted
    assert result(1.5, bound(1.0), bound(2.0)).looseness < 1


def test_an_estimate_refutes_nothing():
    estimate = Estimate(epsilon=9.0, delta=1e-5, method="by eye")
    found = result(3.0, bound(1.0), estimates=(estimate,))
    assert not found.refuted
    assert "estimate" in str(found)


def test_ends_of_the_scale():
    assert result(3.0, bound(0.0)).looseness == math.inf
    assert "the bound is 0" in result(3.0, bound(0.0)).verdict
    assert result(3.0, bound(math.inf)).refuted
    assert result(3.0, bound(math.inf)).looseness == 0
    nothing = result(math.inf, bound(math.inf))
    assert not nothing.refuted
    assert math.isnan(nothing.looseness)
    told = json.loads(json.dumps(nothing.to_json(), allow_nan=False))
    assert told["claim"] == "inf"
    assert told["looseness"] is None


def test_bounds_must_share_the_error_and_fit_the_claim():
    with pytest.raises(ConfigError, match="may fail with probability"):
        result(3.0, bound(1.0, 0.95), bound(1.0, 0.95))
    assert result(3.0, bound(1.0, 0.95)).refuted is False
    with pytest.raises(ConfigError, match="found no bound"):
        result(3.0)
    with pytest.raises(ConfigError, match="delta below"):
        result(3.0, bound(1.0, delta=1e-6))


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.5, math.nan, "0.95", None, True])
def test_a_confidence_is_a_number_between_zero_and_one(confidence):
    with pytest.raises(ConfigError, match=f"the confidence is {confidence!r}; give a number in"):
        result(3.0, bound(1.0), confidence=confidence)
