"""A bound says what it holds for; an estimate cannot pass for one."""

import json
import math

import pytest

from audits.bounds.bound import Estimate, LowerBound, shared_confidence
from privfl.errors import ConfigError


def bound(**changes):
    return LowerBound(**{"epsilon": 1.23456, "delta": 1e-5, "confidence": 0.999999, "method": "counts"} | changes)


def test_a_bound_refutes_smaller_claims_and_no_others():
    assert bound().refutes(1.2)
    assert not bound().refutes(1.23456)
    assert not bound().refutes(math.inf)


def test_an_infinite_bound_refutes_every_finite_claim():
    assert bound(epsilon=math.inf).refutes(1e300)
    assert not bound(epsilon=math.inf).refutes(math.inf)


def test_the_sentence_rounds_down_and_names_delta_confidence_method_and_assumption():
    said = str(bound(epsilon=2.9999, assumes="the noise is Gaussian"))
    assert said == "ε ≥ 2.999 at δ = 1e-05 with confidence 99.9999 % (counts), if the noise is Gaussian"
    assert "ε ≥ 0 " in str(bound(epsilon=0.0))
    assert "∞" in str(bound(epsilon=math.inf))


def test_everything_survives_json():
    data = json.loads(json.dumps(bound(epsilon=math.inf, details={"members": 5}).to_json()))
    assert data["kind"] == "lower bound"
    assert data["epsilon"] == "inf"
    assert data["details"] == {"members": 5}


def test_an_estimate_has_no_confidence_refutes_nothing_and_says_so():
    estimate = Estimate(epsilon=3.0, delta=1e-5, method="normal fit")
    assert not isinstance(estimate, LowerBound)
    assert not hasattr(estimate, "refutes")
    assert "confidence" not in estimate.to_json()
    assert estimate.to_json()["kind"] == "estimate"
    assert str(estimate) == "ε ≈ 3 at δ = 1e-05, an estimate that certifies nothing (normal fit)"


@pytest.mark.parametrize(
    "changes",
    [{"epsilon": -1.0}, {"epsilon": math.nan}, {"delta": 1.0}, {"delta": -0.1}, {"confidence": 1.0}, {"confidence": 0}],
)
def test_impossible_numbers_are_refused(changes):
    with pytest.raises(ConfigError):
        bound(**changes)


def test_a_claim_below_zero_is_refused():
    with pytest.raises(ConfigError):
        bound().refutes(-0.1)


def test_bounds_share_the_error_of_a_confidence_that_can_be_shared():
    assert shared_confidence(0.95, 1) == 0.95
    assert shared_confidence(0.94, 3) == pytest.approx(0.98)
    assert 3 * (1 - shared_confidence(1 - 2e-12, 3)) == pytest.approx(2e-12, rel=1e-3)
    with pytest.raises(ConfigError, match="9999, too near to 1 to be shared among 3 bounds"):
        shared_confidence(1 - 2**-53, 3)


@pytest.mark.parametrize("wrong", ["0.5", None, True])
def test_what_is_no_number_is_one_sentence(wrong):
    for name in ("epsilon", "delta", "confidence"):
        with pytest.raises(ConfigError, match=f"is {wrong!r}; give a number"):
            bound(**{name: wrong})
