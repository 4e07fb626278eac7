"""The vocabulary of the ledger: which events exist, how they read in words, in JSON, and as elementary kinds.

Events are those of dp_accounting, plus :class:`EpsilonDeltaDpEvent` for mechanisms known only by their (ε, δ), and
:class:`SkellamDpEvent`.
``elementary`` breaks a composed event into the kinds that an accountant can price, and settles the degenerate cases.

================================================  =====================================================================
event                                             elementary kind
================================================  =====================================================================
``NoOp``, count 0, rate 0, infinite noise         nothing (ε = 0)
``NonPrivate``, noise 0, (ε, δ) with δ = 1        infinite
``Gaussian(z)``, REPLACE_ONE                      ``Gaussian(z/2)``: a replaced contribution moves the sum by twice C
``Laplace(b)``, REPLACE_ONE                       ``Laplace(b/2)``, for the same reason
``Skellam``, REPLACE_ONE                          ``Skellam`` with both bounds doubled, for the same reason
``Poisson(1, e)``                                 ``e``
``Poisson(q, T × Gaussian(z))``                   ``Poisson(q, Gaussian(z/√T))``: T answers about one sample
``RandomizedResponse`` with one bucket            nothing: the answer does not depend on the input; p = 1 is not
                                                  that, because the true p may have been rounded to 1
REPLACE_SPECIAL (zero-out), additive noise        ADD_OR_REMOVE_ONE: the two have the same loss distributions
``SampledWithoutReplacement(N, m, Gaussian(z))``  itself; z is the ratio to the *replace-one* sensitivity, which is
                                                  twice the norm bound C of a contribution
================================================  =====================================================================
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import attr
import dp_accounting as dp
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from privfl.errors import PrivacyError

Kind = tuple[DpEvent, NeighboringRelation]
"""An event and the relation under which its loss distribution is to be built."""

History = Mapping[Kind, int]
"""How often each kind happened to one unit before one observer."""

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL


@attr.s(frozen=True, slots=True, auto_attribs=True)
class EpsilonDeltaDpEvent(DpEvent):  # type: ignore[misc]
    """A mechanism of which only (ε, δ)-differential privacy is known, for instance a pure-ε local randomiser.

    It is accounted by its worst case: with probability δ everything leaks, otherwise binary randomised response with
    parameter ε (Kairouz, Oh and Viswanath 2015). The guarantee must hold for the relation of the row it is used in.
    """

    epsilon: float
    delta: float = 0.0


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SkellamDpEvent(DpEvent):  # type: ignore[misc]
    """Symmetric Skellam noise on an integer vector (Agarwal, Kairouz and Liu, NeurIPS 2021).

    ``variance`` is that of the noise on each number, i.e. both Poisson means together; ``l2_norm`` and ``l1_norm``
    bound how far one contribution moves the vector, in the units of the noise. All moves must be integer vectors.
    """

    variance: float
    l2_norm: float
    l1_norm: float


MOST_BUCKETS = 2**1000
"""Randomised response over more values has probabilities that float64 cannot hold."""


@attr.s(frozen=True, slots=True, auto_attribs=True)
class UnknownDpEvent(DpEvent):  # type: ignore[misc]
    """What a file keeps of an event outside the vocabulary: its ``name``. No accountant supports it either."""

    name: str


class InfiniteLoss(Exception):
    """Raised inside the package when a history contains an event without any guarantee."""


def elementary(event: DpEvent, relation: NeighboringRelation, count: int = 1) -> dict[Kind, int]:
    """The elementary kinds of ``count`` times ``event``, with their numbers (see the table above).

    Raises :class:`PrivacyError` naming the sub-event that no accountant supports under ``relation``, and
    :class:`InfiniteLoss` if the event has no guarantee at all.
    """
    if count != int(count) or count < 0:
        raise PrivacyError(f"an event cannot happen {count} times: the count must be a whole number from 0 on.")
    kinds: dict[Kind, int] = {}
    if count:
        _collect(event, relation, int(count), kinds)
    return kinds


def _collect(event: DpEvent, relation: NeighboringRelation, count: int, kinds: dict[Kind, int]) -> None:
    if type(event) not in _NAMES:  # a class derived from one that is known may mean anything
        raise _refusal(event, relation)
    match event:
        case dp.NoOpDpEvent():
            return
        case dp.NonPrivateDpEvent():
            raise InfiniteLoss
        case dp.SelfComposedDpEvent(event=inner, count=times):
            for kind, number in elementary(inner, relation, times).items():
                kinds[kind] = kinds.get(kind, 0) + count * number
            return
        case dp.ComposedDpEvent(events=inner):
            for part in inner:
                _collect(part, relation, count, kinds)
            return
    leaf = _leaf(event, relation)
    if leaf is not None:
        kinds[leaf] = kinds.get(leaf, 0) + count


def _leaf(event: DpEvent, relation: NeighboringRelation) -> Kind | None:
    additive = ADD_REMOVE if relation is ZERO_OUT else relation
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise) | dp.LaplaceDpEvent(noise_multiplier=noise):
            effective = _noise(event, noise) / (2 if relation is REPLACE else 1)
            return None if math.isinf(effective) else (type(event)(effective), ADD_REMOVE)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return _poisson(event, rate, inner, relation)
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=buckets):
            if relation is ADD_REMOVE:
                raise _refusal(event, relation)
            if not 0 <= noise <= 1 or not 1 <= buckets <= MOST_BUCKETS:
                raise PrivacyError(
                    f"randomised response over {buckets} values with noise parameter {noise} cannot be "
                    "accounted: give a probability from 0 to 1 and from 1 to 2^1000 values."
                )
            if buckets == 1:
                return None
            if noise / buckets < sys.float_info.min:  # so small a number is stored with fewer digits, or as 0
                raise InfiniteLoss
            return event, relation
        case EpsilonDeltaDpEvent(epsilon=eps, delta=delta):
            if not eps >= 0 or not 0 <= delta <= 1:
                raise PrivacyError(f"{describe(event)} is malformed: epsilon >= 0 and 0 <= delta <= 1.")
            if math.isinf(eps) or delta == 1:
                raise InfiniteLoss
            return None if eps == delta == 0 else (event, REPLACE)
        case dp.ZCDpEvent(rho=rho, xi=xi):
            if not (rho >= 0 and xi >= 0):
                raise PrivacyError(f"{describe(event)} is malformed: rho >= 0 and xi >= 0.")
            if math.isinf(rho + xi):
                raise InfiniteLoss
            return None if rho == xi == 0 else (event, REPLACE)
        case SkellamDpEvent(variance=variance, l2_norm=l2_norm, l1_norm=l1_norm):
            return _skellam(event, variance, l2_norm, l1_norm, relation)
        case dp.SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample, event=inner):
            noise = _gaussian_noise(inner)
            if relation is not REPLACE or noise is None:
                raise _refusal(event, relation)
            if not 0 <= sample <= size or size < 1:
                raise PrivacyError(f"{describe(event)} is malformed: the sample must fit the data set.")
            if sample == 0 or math.isinf(_noise(inner, noise)):
                return None
            return dp.SampledWithoutReplacementDpEvent(size, sample, dp.GaussianDpEvent(noise)), REPLACE
        case dp.SingleEpochTreeAggregationDpEvent(noise_multiplier=noise, step_counts=steps):
            if relation is not ZERO_OUT:
                raise _refusal(event, relation)
            frozen = steps if isinstance(steps, int) else tuple(steps)
            _noise(event, noise)
            return dp.SingleEpochTreeAggregationDpEvent(noise, frozen), ZERO_OUT
        case DiscreteLaplaceDpEvent(noise_parameter=parameter, sensitivity=sensitivity):
            if additive is not ADD_REMOVE:
                raise _refusal(event, relation)
            if math.isinf(_noise(event, parameter)):
                raise InfiniteLoss
            return None if sensitivity == 0 else (event, ADD_REMOVE)
        case dp.TruncatedSubsampledGaussianDpEvent():
            if math.isinf(_noise(event, event.noise_multiplier)):
                return None
            nothing = 0 in (event.sampling_probability, event.truncated_batch_size, event.dataset_size)
            return None if nothing else (event, additive)
        case _:
            raise _refusal(event, relation)


def _poisson(event: DpEvent, rate: float, inner: DpEvent, relation: NeighboringRelation) -> Kind | None:
    if not 0 <= rate <= 1:
        raise PrivacyError(f"the sampling rate is {rate}: a probability lies between 0 and 1.")
    laplace = type(inner) is dp.LaplaceDpEvent
    noise = inner.noise_multiplier if laplace else _gaussian_noise(inner)
    if noise is None or (laplace and relation is REPLACE and rate < 1):
        raise _refusal(event, relation)
    if rate == 0 or math.isinf(noise):
        return None
    _noise(inner, noise)
    base = dp.LaplaceDpEvent(noise) if laplace else dp.GaussianDpEvent(noise)
    if rate == 1:
        return _leaf(base, relation)
    return dp.PoissonSampledDpEvent(float(rate), base), relation if relation is REPLACE else ADD_REMOVE


def _skellam(event: DpEvent, variance: float, l2: float, l1: float, relation: NeighboringRelation) -> Kind | None:
    if not 0 <= l2 <= l1 < math.inf:
        raise PrivacyError(f"{describe(event)} is malformed: 0 <= l2_norm <= l1_norm < inf.")
    if l2 == 0 or math.isinf(_noise(event, variance)):
        return None
    moves = 2.0 if relation is REPLACE else 1.0
    return SkellamDpEvent(float(variance), moves * l2, moves * l1), ADD_REMOVE


def _gaussian_noise(event: DpEvent) -> float | None:
    """The noise multiplier of one Gaussian answer worth the whole ``event``, ``None`` if it is not all Gaussian."""
    if type(event) is dp.GaussianDpEvent:
        return _noise(event, event.noise_multiplier)
    parts: list[tuple[DpEvent, int]]
    if type(event) is dp.SelfComposedDpEvent:
        parts = [(event.event, event.count)]
    elif type(event) is dp.ComposedDpEvent:
        parts = [(part, 1) for part in event.events]
    else:
        return None
    precision = 0.0
    for part, count in parts:
        noise = _gaussian_noise(part)
        if noise is None:
            return None
        precision += count / noise**2
    return precision**-0.5 if precision else math.inf


def _noise(event: DpEvent, noise: float) -> float:
    if math.isnan(noise) or noise < 0:
        raise PrivacyError(f"{describe(event)} has noise {noise}: it must be a number from 0 on.")
    if noise == 0:
        raise InfiniteLoss
    return float(noise)


def _refusal(event: DpEvent, relation: NeighboringRelation) -> PrivacyError:
    return PrivacyError(f"no accountant supports {describe(event)} under {relation.name}: account it another way.")


def describe(event: DpEvent) -> str:
    """The event in words, for people who read a statement."""
    match event if type(event) in _NAMES else None:
        case dp.NoOpDpEvent():
            return "nothing"
        case dp.NonPrivateDpEvent():
            return "a value without noise"
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return f"Gaussian noise {noise:.4g}"
        case dp.LaplaceDpEvent(noise_multiplier=noise):
            return f"Laplace noise {noise:.4g}"
        case DiscreteLaplaceDpEvent(noise_parameter=parameter, sensitivity=sensitivity):
            return f"discrete Laplace noise (parameter {parameter:.4g}, sensitivity {sensitivity})"
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=buckets):
            return f"randomised response over {buckets} values (random with probability {noise:.4g})"
        case EpsilonDeltaDpEvent(epsilon=eps, delta=delta):
            return f"a ({eps:.4g}, {delta:.4g})-private mechanism"
        case dp.ZCDpEvent(rho=rho, xi=xi):
            return f"({xi:.4g}, {rho:.4g})-zCDP" if xi else f"{rho:.4g}-zCDP"
        case SkellamDpEvent(variance=variance, l2_norm=norm):
            return f"Skellam noise of variance {variance:.4g} on a vector that one contribution moves by {norm:.4g}"
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return f"{describe(inner)} on a Poisson sample of rate {rate:.4g}"
        case dp.SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample, event=inner):
            return f"{describe(inner)} on {sample} of {size} drawn without replacement"
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return f"{count} times {describe(inner)}"
        case dp.ComposedDpEvent(events=parts):
            return " and ".join(describe(part) for part in parts) or "nothing"
        case dp.SingleEpochTreeAggregationDpEvent(noise_multiplier=noise, step_counts=steps):
            return f"tree aggregation of {steps} steps with noise {noise:.4g}"
        case dp.TruncatedSubsampledGaussianDpEvent():
            return (
                f"Gaussian noise {event.noise_multiplier:.4g} on a Poisson sample of rate "
                f"{event.sampling_probability:.4g}, cut to {event.truncated_batch_size} of {event.dataset_size}"
            )
        case UnknownDpEvent(name=name):
            return name
        case _:
            return str(type(event).__name__)


_CODEC: dict[str, Callable[..., DpEvent]] = {
    "no-op": dp.NoOpDpEvent,
    "non-private": dp.NonPrivateDpEvent,
    "gaussian": dp.GaussianDpEvent,
    "laplace": dp.LaplaceDpEvent,
    "discrete-laplace": DiscreteLaplaceDpEvent,
    "randomized-response": dp.RandomizedResponseDpEvent,
    "epsilon-delta": EpsilonDeltaDpEvent,
    "zcdp": dp.ZCDpEvent,
    "skellam": SkellamDpEvent,
    "poisson": dp.PoissonSampledDpEvent,
    "without-replacement": dp.SampledWithoutReplacementDpEvent,
    "self-composed": dp.SelfComposedDpEvent,
    "composed": dp.ComposedDpEvent,
    "tree": dp.SingleEpochTreeAggregationDpEvent,
    "truncated-poisson-gaussian": dp.TruncatedSubsampledGaussianDpEvent,
    "unknown": UnknownDpEvent,
}
_NAMES = {event: name for name, event in _CODEC.items()}


def encode(event: DpEvent) -> dict[str, Any]:
    """The event as plain JSON data; of one outside the vocabulary, which nobody can price, its name is kept."""
    if type(event) not in _NAMES:
        event = UnknownDpEvent(describe(event))
    return {"kind": _NAMES[type(event)]} | {
        field.name: _to_json(getattr(event, field.name)) for field in attr.fields(type(event))
    }


def decode(data: Mapping[str, Any]) -> DpEvent:
    """The event that :func:`encode` wrote; sequences come back as tuples, so that every event can be a key."""
    fields = {name: _from_json(value) for name, value in data.items() if name != "kind"}
    try:
        return _CODEC[data["kind"]](**fields)
    except (KeyError, TypeError) as error:
        raise PrivacyError(f"{dict(data)!r} is not a privacy event: the saved ledger is damaged or foreign.") from error


def _to_json(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return encode(value)
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return decode(value)
    if isinstance(value, list | tuple):
        return tuple(_from_json(item) for item in value)
    return float(value) if value in ("inf", "nan", "-inf") else value
