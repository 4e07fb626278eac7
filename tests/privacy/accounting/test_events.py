"""Events break down into the kinds that accountants price; nothing unsupported passes in silence."""

import json
import math
from contextlib import nullcontext, suppress

import attr
import dp_accounting as dp
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from privfl.errors import PrivacyError
from privfl.privacy.accounting.events import (
    EpsilonDeltaDpEvent,
    InfiniteLoss,
    SkellamDpEvent,
    decode,
    describe,
    elementary,
    encode,
)
from tests.privacy.accounting.accounting_oracles import ADD_REMOVE, REPLACE, ZERO_OUT, poisson, rows

EVERY_EVENT = [
    dp.NoOpDpEvent(),
    dp.NonPrivateDpEvent(),
    dp.GaussianDpEvent(1.5),
    dp.LaplaceDpEvent(2.0),
    DiscreteLaplaceDpEvent(0.5, 3),
    dp.RandomizedResponseDpEvent(0.5, 10),
    EpsilonDeltaDpEvent(1.0, 1e-6),
    dp.ZCDpEvent(0.1, 0.01),
    SkellamDpEvent(100.0, 3.0, 9.0),
    poisson(0.1, 1.0),
    dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)),
    dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(1.0)),
    dp.SelfComposedDpEvent(poisson(0.2, 2.0), 7),
    dp.ComposedDpEvent((dp.GaussianDpEvent(1.0), dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1.0), 3))),
    dp.SingleEpochTreeAggregationDpEvent(2.0, 16),
    dp.SingleEpochTreeAggregationDpEvent(2.0, (8, 16)),
    dp.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 20, 1.0),
    dp.GaussianDpEvent(math.inf),
]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=describe)
def test_every_event_survives_a_trip_through_json(event):
    assert decode(json.loads(json.dumps(encode(event), allow_nan=False))) == event


def test_lists_inside_events_come_back_as_tuples_so_that_events_can_be_keys():
    event = decode(encode(dp.ComposedDpEvent([dp.NoOpDpEvent(), dp.GaussianDpEvent(1.0)])))
    assert hash(event) == hash(dp.ComposedDpEvent((dp.NoOpDpEvent(), dp.GaussianDpEvent(1.0))))


@pytest.mark.parametrize("damaged", [{"kind": "os.system"}, {"kind": "gaussian"}, {}, {"kind": "gaussian", "sigma": 1}])
def test_only_the_vocabulary_is_decoded(damaged):
    with pytest.raises(PrivacyError, match="not a privacy event"):
        decode(damaged)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class MoreNoise(dp.LaplaceDpEvent):
    """Somebody's own."""


def test_of_an_event_outside_the_vocabulary_a_file_keeps_the_name():
    kept = decode(json.loads(json.dumps(encode(dp.ComposedDpEvent([MoreNoise(1.0)])))))
    assert describe(kept) == "MoreNoise"
    for event in (MoreNoise(1.0), kept):
        with pytest.raises(PrivacyError, match="no accountant supports MoreNoise"):
            elementary(event, ADD_REMOVE)


@pytest.mark.parametrize("wrap", [lambda event: dp.PoissonSampledDpEvent(0.1, event), lambda event: event])
def test_a_class_derived_from_a_known_event_is_not_taken_for_it(wrap):
    class Gaussian(dp.GaussianDpEvent):
        pass

    for event in (MoreNoise(1.0), Gaussian(1.0)):
        with pytest.raises(PrivacyError, match="no accountant supports"):
            elementary(wrap(event), ADD_REMOVE)


@pytest.mark.parametrize("row", rows("dp_accounting_support_matrix"), ids=lambda row: row["event"])
def test_support_is_that_of_dp_accounting_or_wider_by_a_stated_rule(row):
    events = {
        "SampledWithReplacement(Gaussian)": dp.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)),
        "SampledWithoutReplacement(Gaussian)": dp.SampledWithoutReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)),
        "SingleEpochTreeAggregation": dp.SingleEpochTreeAggregationDpEvent(1.0, 8),
        "PoissonSampled(RandomizedResponse)": dp.PoissonSampledDpEvent(0.1, dp.RandomizedResponseDpEvent(0.5, 4)),
        "PoissonSampled(Gaussian)": poisson(0.1, 1.0),
        "RandomizedResponse": dp.RandomizedResponseDpEvent(0.5, 4),
        "Laplace": dp.LaplaceDpEvent(1.0),
        "TruncatedSubsampledGaussian": dp.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
        "ZCDp": dp.ZCDpEvent(0.1),
    }
    promised = " ".join(row["supported"])
    for relation in (ADD_REMOVE, REPLACE, ZERO_OUT):
        by_dp_accounting = relation.name in promised or "all three" in promised
        with nullcontext() if by_dp_accounting else pytest.raises(PrivacyError), suppress(InfiniteLoss):
            elementary(events[row["event"]], relation)


def test_a_refusal_names_the_sub_event_and_the_relation():
    event = dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.RandomizedResponseDpEvent(0.5, 10)])
    assert elementary(event, REPLACE)
    with pytest.raises(PrivacyError, match=r"randomised response over 10 values .* under ADD_OR_REMOVE_ONE"):
        elementary(event, ADD_REMOVE)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)), REPLACE),
        (dp.PoissonSampledDpEvent(0.1, poisson(0.1, 1.0)), ADD_REMOVE),
        (dp.SampledWithoutReplacementDpEvent(10, 2, dp.LaplaceDpEvent(1.0)), REPLACE),
        (dp.RepeatAndSelectDpEvent(dp.GaussianDpEvent(1.0), 1.0, 1.0), ADD_REMOVE)
        if hasattr(dp, "RepeatAndSelectDpEvent")
        else (dp.UnsupportedDpEvent(), ADD_REMOVE),
        (dp.GaussianDpEvent(-1.0), ADD_REMOVE),
        (dp.GaussianDpEvent(math.nan), ADD_REMOVE),
        (poisson(1.5, 1.0), ADD_REMOVE),
        (dp.RandomizedResponseDpEvent(1.2, 4), REPLACE),
        (dp.RandomizedResponseDpEvent(0.5, 2**1001), REPLACE),
        (EpsilonDeltaDpEvent(-1.0), REPLACE),
        (dp.ZCDpEvent(-0.1), REPLACE),
        (SkellamDpEvent(-1.0, 1.0, 1.0), ADD_REMOVE),
        (SkellamDpEvent(math.nan, 1.0, 1.0), ADD_REMOVE),
        (SkellamDpEvent(1.0, 2.0, 1.0), ADD_REMOVE),
        (SkellamDpEvent(1.0, 1.0, math.inf), ADD_REMOVE),
        (dp.PoissonSampledDpEvent(0.1, SkellamDpEvent(1.0, 1.0, 1.0)), ADD_REMOVE),
    ],
    ids=str,
)
def test_unsupported_and_malformed_events_are_refused(event, relation):
    with pytest.raises(PrivacyError):
        elementary(event, relation)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (dp.NoOpDpEvent(), ADD_REMOVE),
        (poisson(0.0, 1.0), ADD_REMOVE),
        (dp.GaussianDpEvent(math.inf), ADD_REMOVE),
        (dp.RandomizedResponseDpEvent(0.1, 1), REPLACE),
        (EpsilonDeltaDpEvent(0.0), REPLACE),
        (SkellamDpEvent(math.inf, 1.0, 1.0), ADD_REMOVE),
        (SkellamDpEvent(1.0, 0.0, 0.0), REPLACE),
        (dp.SelfComposedDpEvent(dp.NonPrivateDpEvent(), 0), ADD_REMOVE),
    ],
    ids=str,
)
def test_events_without_influence_are_nothing(event, relation):
    assert elementary(event, relation, 5) == {}


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (dp.NonPrivateDpEvent(), ADD_REMOVE),
        (dp.GaussianDpEvent(0.0), ADD_REMOVE),
        (poisson(0.1, 0.0), ADD_REMOVE),
        (dp.LaplaceDpEvent(0.0), REPLACE),
        (dp.RandomizedResponseDpEvent(0.0, 10), REPLACE),
        (dp.RandomizedResponseDpEvent(1e-310, 10), REPLACE),
        (EpsilonDeltaDpEvent(1.0, 1.0), REPLACE),
        (SkellamDpEvent(0.0, 1.0, 1.0), ADD_REMOVE),
        (dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.NonPrivateDpEvent()]), ADD_REMOVE),
    ],
    ids=str,
)
def test_events_without_noise_are_infinite(event, relation):
    with pytest.raises(InfiniteLoss):
        elementary(event, relation)


def test_nested_composition_multiplies_counts():
    inner = dp.SelfComposedDpEvent(dp.RandomizedResponseDpEvent(0.5, 10), 3)
    event = dp.ComposedDpEvent([inner, dp.SelfComposedDpEvent(inner, 4), dp.LaplaceDpEvent(1.0)])
    assert elementary(event, ZERO_OUT, 2) == {
        (dp.RandomizedResponseDpEvent(0.5, 10), ZERO_OUT): 30,
        (dp.LaplaceDpEvent(1.0), ADD_REMOVE): 2,
    }


def test_several_gaussian_answers_about_one_poisson_sample_count_as_one_more_precise_answer():
    inner = dp.ComposedDpEvent([dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 3), dp.GaussianDpEvent(2.0)])
    assert elementary(dp.PoissonSampledDpEvent(0.1, inner), ADD_REMOVE) == {(poisson(0.1, 1.0), ADD_REMOVE): 1}


def test_replacing_moves_a_sum_twice_as_far_as_removing():
    assert elementary(dp.GaussianDpEvent(1.0), REPLACE) == {(dp.GaussianDpEvent(0.5), ADD_REMOVE): 1}
    assert elementary(dp.LaplaceDpEvent(1.0), REPLACE) == {(dp.LaplaceDpEvent(0.5), ADD_REMOVE): 1}
    assert elementary(SkellamDpEvent(9.0, 2.0, 3.0), REPLACE) == {(SkellamDpEvent(9.0, 4.0, 6.0), ADD_REMOVE): 1}


@pytest.mark.parametrize("count", [-1, 0.5])
def test_counts_are_whole_and_not_negative(count):
    with pytest.raises(PrivacyError, match="whole number"):
        elementary(dp.GaussianDpEvent(1.0), ADD_REMOVE, count)
