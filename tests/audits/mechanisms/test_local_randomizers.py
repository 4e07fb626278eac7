"""Audits of one answer, and of a series: near the truth where it can be computed, and never beyond it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from audits.bounds.counts import epsilon_from_counts
from audits.bounds.output_events import epsilon_from_answers
from audits.mechanisms.local_randomizers import (
    audit_repeated_answers,
    audit_size_mechanism,
    claimed_epsilon,
    epsilon_from_support,
    epsilon_from_table,
    neighbours,
)
from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS, DuchiSize, LaplaceSize, PiecewiseSize
from privfl.privacy.sizes.randomized_response import RandomizedResponse

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "audit_targets.json").read_text())
SURE = 1 - 1e-6  # the false-alarm rate of every verdict here is 1e-6
GRR = RandomizedResponse(epsilon=3.0, bound=99)


@pytest.mark.parametrize(("trials", "bound"), [(10**3, 2.03), (10**4, 2.67), (10**5, 2.89), (10**6, 2.97)])
def test_expected_counts_of_randomised_response_certify_the_published_bounds(trials, bound):
    truth = GRR.alpha + GRR.lie_probability / 99
    hits, alarms = round(trials * truth), round(trials * GRR.lie_probability / 99)
    found = epsilon_from_counts(hits, trials, alarms, trials, delta=0, confidence=0.99, sides="tpr_only")
    assert found.epsilon == pytest.approx(bound, abs=0.005)


@pytest.mark.parametrize("row", ORACLES["ldp_audit_expected"]["rows"], ids=lambda row: f"{row['k']}-{row['n']}")
def test_bounds_equal_ldp_auditors(row):
    for confidence, key in [(0.99, "each_side_0.005"), (0.995, "ldp_audit_alpha0.01_each_side_0.0025")]:
        counts = (row["tp"], row["n"], row["fp"], row["n"])
        found = epsilon_from_counts(*counts, delta=0, confidence=confidence, sides="tpr_only")
        assert found.epsilon == pytest.approx(row[key], abs=1e-9)


def test_a_table_is_bounded_as_by_a_loop_over_all_its_cells():
    counts = np.random.default_rng(1).multinomial(500, [[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    level = 0.01 / (2 * 9)
    best = 0.0
    for a in range(3):
        for b in range(3):
            for r in range(3):
                low = beta.ppf(level, counts[a, r], 500 - counts[a, r] + 1)
                high = beta.ppf(1 - level, counts[b, r] + 1, 500 - counts[b, r])
                best = max(best, math.log(low / high))
    assert best > 0.5
    assert epsilon_from_table(counts, confidence=0.99).epsilon == pytest.approx(best, abs=1e-9)
    some = neighbours([1, 2, 9], "sample")
    assert some.sum() == 2
    assert epsilon_from_table(counts, some, confidence=0.99).epsilon < best


@pytest.mark.parametrize("unit", ["client", "sample"])
@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_correct_mechanisms_are_not_refuted_and_audited_closely(name, unit):
    mechanism = SIZE_MECHANISMS[name](epsilon=3.0, bound=40)
    result = audit_size_mechanism(mechanism, answers=20_000, unit=unit, confidence=SURE, source=NoiseSource.from_key(5))
    assert not result.refuted
    assert result.claim == pytest.approx(claimed_epsilon(mechanism, unit))
    if unit == "client":
        assert result.claim == pytest.approx(3.0)
        assert result.looseness < 1.4
    else:
        assert result.claim == pytest.approx({"laplace": 3 / 39, "duchi": mechanism_sample_epsilon()}.get(name, 3.0))


def mechanism_sample_epsilon():
    return math.log(1 + (math.exp(3) - 1) / 39)


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_a_claim_of_less_than_is_spent_is_refuted(name):
    spends = SIZE_MECHANISMS[name](epsilon=3.0, bound=40)
    result = audit_size_mechanism(spends, answers=20_000, confidence=SURE, source=NoiseSource.from_key(6))
    assert replace(result, claim=2.0).refuted
    assert "refuted with confidence 99.9999 %" in replace(result, claim=2.0).verdict


def test_memoised_answers_tell_no_more_than_one_and_fresh_ones_more():
    once, often = (
        audit_repeated_answers(replace(GRR, refresh=refresh), rounds=8, confidence=SURE, source=NoiseSource.from_key(7))
        for refresh in ("once", "every_round")
    )
    assert once.claim == pytest.approx(3.0)
    assert once.bound.epsilon <= 3.0
    assert often.claim == pytest.approx(24.0)
    assert 3.0 < often.bound.epsilon <= often.claim
    assert often.settings["fresh"] == 8
    assert once.settings["fresh"] == 1


def test_fresh_answers_that_were_charged_once_are_refuted(monkeypatch):
    def lazy(cost_of):
        return lambda mechanism, unit, answers=1, delta=0.0: cost_of(mechanism, unit, 1, delta)

    monkeypatch.setattr("audits.mechanisms.local_randomizers.claimed_epsilon", lazy(claimed_epsilon))
    often = replace(GRR, refresh="every_round")
    result = audit_repeated_answers(often, rounds=8, confidence=SURE, source=NoiseSource.from_key(8))
    assert result.claim == pytest.approx(3.0)
    assert result.refuted


def test_the_composed_claim_is_the_ledgers():
    assert claimed_epsilon(RandomizedResponse(3.0, 99), "client", 100, 1e-5) == pytest.approx(101.72, abs=0.01)


def test_an_empty_cell_counts_only_once_there_were_enough_answers():
    full, missing = [100, 100, 800], [0, 500, 500]
    counts = np.array([full, missing])
    needed = math.ceil(math.log(6 / 0.01) / 0.05)
    assert needed == 128
    found = epsilon_from_support(counts, least_probability=0.05, confidence=0.99)
    assert found.epsilon == math.inf
    assert found.details["missing"] == [[1, 0]]
    assert found.assumes
    few = np.array([full, [0, 60, 67]])
    assert epsilon_from_support(few, least_probability=0.05, confidence=0.99).epsilon == 0
    # the published figure: about 2,700 answers at D = 99, ε = 3, 1e-6
    trials = epsilon_from_support(np.ones((99, 99)), least_probability=GRR.lie_probability / 99, confidence=SURE)
    assert trials.details["trials_needed"] == pytest.approx(2717, abs=20)


def refuted(mechanism, answers=6000, unit="client"):
    source = NoiseSource.from_key(9)
    return audit_size_mechanism(mechanism, answers=answers, unit=unit, confidence=SURE, source=source).refuted


def test_randomised_response_that_lies_one_short_is_refuted(monkeypatch):
    assert not refuted(GRR)

    def short(self, truths, stream):
        lies = stream.integers(self.range.lo, self.range.hi - 1, truths.size)
        return np.where(stream.bernoulli(self.lie_probability, truths.size), lies, truths)

    monkeypatch.setattr(RandomizedResponse, "randomise", short)
    assert refuted(GRR)


def test_randomised_response_that_lies_too_seldom_is_refuted(monkeypatch):
    right = RandomizedResponse.lie_probability.fget
    monkeypatch.setattr(RandomizedResponse, "lie_probability", property(lambda self: right(self) / 2))
    claim = 3.0  # the ledger would read the same broken number
    result = audit_size_mechanism(GRR, answers=6000, confidence=SURE, source=NoiseSource.from_key(9))
    assert replace(result, claim=claim).refuted


@pytest.mark.parametrize(
    "mechanism", [GRR, LaplaceSize(2.0, 50), PiecewiseSize(2.0, 50)], ids=lambda m: type(m).__name__
)
def test_truths_that_are_not_clipped_are_refuted(mechanism, monkeypatch):
    monkeypatch.setattr(type(mechanism.range), "clip", lambda self, sizes: sizes)
    assert refuted(mechanism)


def test_half_the_noise_is_refuted(monkeypatch):
    mechanism = LaplaceSize(2.0, 50)
    right = LaplaceSize.scale.fget
    source = NoiseSource.from_key(10)
    honest = audit_size_mechanism(mechanism, confidence=SURE, source=source)
    monkeypatch.setattr(LaplaceSize, "scale", property(lambda self: right(self) / 2))
    broken = audit_size_mechanism(mechanism, confidence=SURE, source=source)
    assert not honest.refuted
    assert replace(broken, claim=honest.claim).refuted


def test_a_bit_without_its_floor_is_refuted(monkeypatch):
    mechanism = DuchiSize(2.0, 50)
    assert not refuted(mechanism)
    monkeypatch.setattr(DuchiSize, "_upper_probability", lambda self, truths: (self.range.to_unit(truths) + 1) / 2)
    assert refuted(mechanism)


def test_noise_on_a_line_is_audited_to_its_closed_form():
    scale = 0.5  # ε = 2 between the inputs 0 and 1
    answers = np.arange(2)[:, None] + np.random.default_rng(3).laplace(scale=scale, size=(2, 200_000))
    found = epsilon_from_answers(answers, ~np.eye(2, dtype=bool), delta=0, confidence=SURE)
    assert 1.8 < found.epsilon <= 2.0


def test_a_mechanism_without_protection_claims_nothing():
    result = audit_size_mechanism(LaplaceSize(math.inf, 50), answers=1000, source=NoiseSource.from_key(1))
    assert result.claim == math.inf
    assert not result.refuted
    assert "Nothing is claimed" in str(result)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: audit_size_mechanism(GRR, answers=3), "an audit with 3 answers"),
        (lambda: audit_size_mechanism(GRR, confidence=1.0), "the confidence is 1.0"),
        (lambda: audit_repeated_answers(GRR, rounds=0), "0 rounds of 20000 clients"),
        (lambda: epsilon_from_table(np.ones((1, 3)), confidence=0.9), "table of shape (1, 3)"),
        (lambda: epsilon_from_support(np.ones((2, 2)), least_probability=0, confidence=0.9), "least probability"),
        (lambda: epsilon_from_answers(np.ones((2, 3)), np.eye(2) < 1, delta=0, confidence=0.9), "too few"),
        (lambda: epsilon_from_answers(np.ones((2, 9)), np.eye(2) > 1, delta=0, confidence=0.9), "no pair"),
    ],
)
def test_impossible_audits_are_one_sentence(call, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        call()


class Honestly(RandomizedResponse):
    """Changes how it answers, and states no cost of its own."""

    def randomise(self, truths, stream):
        return super().randomise(truths, stream)


def test_a_claim_is_what_a_statement_says_of_the_class():
    for unit in ("client", "sample"):
        assert claimed_epsilon(Honestly(epsilon=3.0, bound=10), unit) == math.inf
        assert claimed_epsilon(RandomizedResponse(epsilon=3.0, bound=10), unit) <= 3.0


class Truthfully(RandomizedResponse):
    """Never lies, and claims to."""

    def randomise(self, truths, stream):
        return truths


@pytest.mark.parametrize("bound", [1024, 10**9])
def test_randomised_response_over_many_sizes_is_audited_without_a_table_of_them(bound):
    right, wrong = (kind(epsilon=3.0, bound=bound) for kind in (RandomizedResponse, Truthfully))
    for unit in ("client", "sample"):
        assert not audit_size_mechanism(right, answers=400, unit=unit, confidence=SURE).refuted
    found = audit_size_mechanism(wrong, answers=1000, confidence=SURE)
    assert ("event" in found.bound.method) == (bound > 1024)
    assert found.bound.epsilon > 3
    assert audit_repeated_answers(right, rounds=3, clients=400, confidence=SURE).bound.epsilon < 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"answers": 4.5}, "answers is 4.5; give a whole number"),
        ({"unit": "clients"}, "unit is 'clients'; did you mean 'client'"),
        ({"confidence": "0.95"}, "confidence is '0.95'; give a number"),
        ({"confidence": 95}, "the confidence is 95"),
        ({"mechanism": 3.0}, "mechanism is 3.0; give a SizeMechanism"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        audit_size_mechanism(**{"mechanism": GRR, **change})
    with pytest.raises(ConfigError, match=r"rounds is 2\.5; give a whole number"):
        audit_repeated_answers(GRR, rounds=2.5)
