"""From a history of releases to ε: the number that a claim rests on, with an interval around it.

The claim is a pessimistic privacy loss distribution (PLD), never an approximation and never the central-limit ("GDP")
accountant, which under-reports. Beside it stands an interval that contains the exact ε of the composed worst cases.

==============================  ======================================================================================
input                           result
==============================  ======================================================================================
empty history, T = 0, q = 0     ε = 0
noise 0, a value without noise       ε = ∞
q = 1                           the plain Gaussian (or Laplace) mechanism
only plain Gaussian noise       closed form (Balle and Wang 2018)
delta = 0                       sum of the pure ε's, ∞ if any mechanism has none (Gaussian noise)
delta tiny (below about 1e-12)  Rényi, because the mass at infinity and the rounding of transforms exceed delta
delta < 0, delta >= 1, NaN      :class:`PrivacyError`
huge noise                      ε = 0 once the total variation distance is below delta; never negative
fixed cohorts, trees, zCDP      Rényi for the whole history, and so with Skellam noise
==============================  ======================================================================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from numpy.typing import NDArray

from privfl.errors import PrivacyError
from privfl.privacy.accounting.closed_form import gaussian_epsilon
from privfl.privacy.accounting.composition import Sum, compose
from privfl.privacy.accounting.events import (
    ADD_REMOVE,
    MOST_BUCKETS,
    REPLACE,
    History,
    InfiniteLoss,
    Kind,
    elementary,
)
from privfl.privacy.accounting.grouping import fewer_rates
from privfl.privacy.accounting.loss import known_roughly, pure_loss, variance_guess, width
from privfl.privacy.accounting.renyi import only_renyi, renyi_epsilon

_LONGEST_GRID = 2**18
"""Longest grid for one event; beyond it the grid is coarsened, which costs tightness and never soundness."""

_LEAST_DELTA = 1e-290
"""Below it the shares of delta that a loss distribution gives up for its window are no longer numbers."""

_NEGLIGIBLE = 1e-9
"""Losses of up to this altogether are added to ε: they are too small for a grid on which others show."""

_PRV_ERROR = 0.01
"""Half the width of the PRV interval, Opacus' default."""

_PRV_POINTS = 1e6
"""Longest grids, all kinds together, that are left to Opacus: about half a second."""


@dataclass(frozen=True)
class Bound:
    """ε of a history at some delta, and what is known about the exact value.

    ``epsilon`` is the claim, a guaranteed upper bound, found by ``accountant``. The exact ε of the composed worst
    cases lies in [``lower``, ``upper``], with ``estimate`` the best guess, according to ``interval_source``.
    """

    epsilon: float
    accountant: str
    lower: float
    estimate: float
    upper: float
    interval_source: str


def epsilon(
    history: History | Iterable[tuple[Kind, int]],
    delta: float,
    *,
    interval: bool = True,
    tolerance: float = 1e-4,
    opacus: bool = True,
) -> Bound:
    """The ε at ``delta`` of a history {(event, relation): how often}, under adaptive composition.

    An event that holds lists cannot be a key: give pairs ((event, relation), how often) instead of a mapping.

    ``tolerance`` is the relative looseness aimed at; the claim is sound whatever it is. Without ``interval`` only the
    claim is computed (``lower`` is then 0); without ``opacus`` the interval is the PLD's own, certified, for whoever
    cannot wait for the import of Opacus. More than 128 different sampling rates are rounded up to 128, chosen so that
    the cost is smallest, well under 1 % of ε. Raises :class:`PrivacyError` for an unsupported event or delta.
    """
    check_delta(delta)
    try:
        kinds = composed_kinds(history)
    except InfiniteLoss:
        return Bound(math.inf, "exact", math.inf, math.inf, math.inf, "an event without any guarantee")
    if not kinds:
        return Bound(0.0, "exact", 0.0, 0.0, 0.0, "nothing composed")
    pure = sum(count * pure_loss(kind) for kind, count in kinds.items())
    if delta == 0:
        source = "largest losses added" if math.isfinite(pure) else "an event that is not purely private"
        return Bound(pure, "pure", pure if math.isinf(pure) else 0.0, pure, pure, source)
    if pure <= _NEGLIGIBLE:  # the total variation distance of a purely private mechanism is at most ε/2
        claim = 0.0 if pure / 2 <= delta else pure
        return Bound(claim, "pure", 0.0, claim, claim, "largest losses added")
    tiny = {kind: count for kind, count in kinds.items() if count * pure_loss(kind) <= _NEGLIGIBLE / len(kinds)}
    rest = {kind: count for kind, count in kinds.items() if kind not in tiny}
    bound = _bound(fewer_rates(rest, 128), delta, interval, tolerance, opacus)
    if tiny:
        added = sum(count * pure_loss(kind) for kind, count in tiny.items())
        bound = replace(
            bound, epsilon=bound.epsilon + added, estimate=bound.estimate + added, upper=bound.upper + added
        )
    return _at_most(bound, pure) if pure < bound.epsilon else bound


def check_delta(delta: float) -> None:
    """Raise :class:`PrivacyError` unless 0 <= delta < 1."""
    if not 0 <= delta < 1:
        raise PrivacyError(f"delta is {delta}: choose a number from 0 up to but not including 1, for instance 1e-5.")


def composed_kinds(history: History | Iterable[tuple[Kind, int]]) -> dict[Kind, int]:
    """The elementary kinds of a whole history, all plain Gaussian noise merged into one kind (exactly)."""
    kinds: dict[Kind, int] = {}
    precision = 0.0
    for (event, relation), count in history.items() if isinstance(history, Mapping) else history:
        for kind, number in elementary(event, relation, count).items():
            if isinstance(kind[0], dp.GaussianDpEvent):
                precision += number / kind[0].noise_multiplier ** 2
            else:
                kinds[kind] = kinds.get(kind, 0) + number
    if precision:
        kinds[dp.GaussianDpEvent(precision**-0.5), ADD_REMOVE] = 1
    return kinds


def _bound(kinds: Mapping[Kind, int], delta: float, interval: bool, tolerance: float, opacus: bool) -> Bound:
    (event, _), *others = kinds
    if isinstance(event, dp.GaussianDpEvent) and not others:
        exact = gaussian_epsilon(event.noise_multiplier, delta) * (1 + 1e-9)
        return Bound(exact, "PLD", exact * (1 - 2e-9), exact, exact, "closed form")
    if delta < _LEAST_DELTA or any(only_renyi(kind) for kind in kinds):
        claim = renyi_epsilon(kinds, delta)
        return Bound(claim, "RDP", 0.0, claim, claim, "upper bound only")
    claim, label, step = pld_epsilon(kinds, delta, tolerance)
    if label == "PLD" and interval and math.isfinite(claim) and not any(known_roughly(kind) for kind in kinds):
        independent = prv_interval(kinds, delta, claim) if opacus else None
        return independent or _certified_interval(kinds, delta, claim, step)
    return Bound(claim, label, 0.0, claim, claim, "upper bound only")


def pld_epsilon(kinds: Mapping[Kind, int], delta: float, tolerance: float) -> tuple[float, str, float]:
    """(ε, "PLD" or "RDP", grid step) of elementary kinds, with the grid refined until it costs ``tolerance`` of ε.

    Connecting the dots moves each loss within its cell of width h, adding at most h²/8 to its mean and h²/4 to its
    variance, hence about n·h²·(1 + λ)/8 to ε, where λ is the slope -d ln(delta)/dε.
    """
    number, variance = sum(kinds.values()), sum(count * variance_guess(kind) for kind, count in kinds.items())
    guess = variance / 2 + math.sqrt(2 * variance * math.log(1 / delta))
    slope = math.sqrt(2 * math.log(1 / delta) / variance)
    lattice = _lattice(kinds)
    finest, step, claim = _finest_step(kinds), math.inf, math.inf
    sums: tuple[Sum, ...] = ()
    while True:
        wanted = max(_power_of_two(math.sqrt(8 * tolerance * guess / (number * (1 + slope)))), finest)
        if lattice is None and wanted >= step:
            break
        step = lattice or wanted
        try:
            sums = compose(kinds, step, delta)
        except OverflowError:
            finest, step = 4 * step, math.inf
            continue
        claim, slope = max(one.epsilon(delta - one.escaped) for one in sums)
        guess = max(claim, 1e-2)
        if lattice or math.isinf(claim) or number * step**2 * (1 + slope) / 8 <= 1.5 * tolerance * guess:
            break
    # A tiny delta drowns in what escaped the distribution; Rényi has no such floor.
    if math.isinf(claim) or any(one.escaped > delta / 10 for one in sums):
        renyi = renyi_epsilon(kinds, delta)
        if renyi < claim:
            return renyi, "RDP", step
    return claim, "PLD", step


def _lattice(kinds: Mapping[Kind, int]) -> float | None:
    """The step on which the losses of a single randomised response lie exactly, so that nothing is rounded."""
    (event, relation), *others = kinds
    exact = isinstance(event, dp.RandomizedResponseDpEvent) and relation is REPLACE
    return pure_loss((event, relation)) if exact and not others else None


def _finest_step(kinds: Mapping[Kind, int]) -> float:
    return _power_of_two(max(width(kind) for kind in kinds) / _LONGEST_GRID)


def _power_of_two(value: float) -> float:
    return float(2.0 ** math.floor(math.log2(value)))


def prv_interval(kinds: Mapping[Kind, int], delta: float, claim: float) -> Bound | None:
    """The interval by privacy random variables (Gopi, Lee and Wutschitz 2021) from Opacus: code that is not ours.

    Opacus' accountant returns the upper end alone; its public parts, put together as it does, give all three numbers.
    ``None`` where it does not apply: other mechanisms than Poisson-sampled and plain Gaussian noise, many rates, a
    delta too small for it.
    """
    rows = []
    for event, relation in kinds:
        rate, inner = (
            (event.sampling_probability, event.event) if isinstance(event, dp.PoissonSampledDpEvent) else (1.0, event)
        )
        if not isinstance(inner, dp.GaussianDpEvent) or relation is not ADD_REMOVE:
            return None
        rows.append((rate, inner.noise_multiplier))
    counts, number, escaped = list(kinds.values()), sum(kinds.values()), delta / 1000
    points = 2 * (1.2 * claim + 5) / _PRV_ERROR * math.sqrt(number / 2 * math.log(12 / escaped))
    if len(rows) > 6 or number > 20_000 or points * len(rows) > _PRV_POINTS:
        return None
    from privfl.opacus_parts import (
        Domain,
        PoissonSubsampledGaussianPRV,
        TruncatedPrivacyRandomVariable,
        compose_heterogeneous,
        discretize,
    )

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            losses = [PoissonSubsampledGaussianPRV(rate, noise_multiplier) for rate, noise_multiplier in rows]
            reach = _reach(rows, counts, escaped)
            mesh = _PRV_ERROR / np.sqrt(number * np.log(12 / escaped) / 2)
            grid = Domain.create_aligned(-reach, reach, mesh)
            truncated = [TruncatedPrivacyRandomVariable(loss, grid.t_min, grid.t_max) for loss in losses]
            composed = compose_heterogeneous([discretize(loss, grid) for loss in truncated], counts)
            lower, estimate, upper = composed.compute_epsilon(delta, escaped, _PRV_ERROR)
    except (ValueError, RuntimeError, ArithmeticError, MemoryError):
        return None
    if not (math.isfinite(lower) and lower <= estimate <= upper):
        return None
    return Bound(claim, "PLD", max(0.0, float(lower)), max(0.0, float(estimate)), max(0.0, float(upper)), "PRV")


def _reach(rows: Sequence[tuple[float, float]], counts: Sequence[int], escaped: float) -> float:
    """How far the grid must reach: Opacus' ``compute_safe_domain_size``, bit for bit.

    That one computes the Rényi divergences of a step twice for every call, which took most of a statement's time.
    """
    from privfl.opacus_parts import RDPAccountant, get_privacy_spent

    def spent(divergences: NDArray[np.float64], delta: float) -> float:
        return float(get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=divergences, delta=delta)[0])

    steps = [_divergences(*row) for row in rows]
    whole = sum((step * count for step, count in zip(steps, counts, strict=True)), start=np.zeros_like(steps[0]))
    single = escaped / (8 * sum(counts))
    return max(spent(whole, escaped / 4), *(spent(step, single) for step in steps), _PRV_ERROR) + 3


@lru_cache(maxsize=256)
def _divergences(rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """The Rényi divergences of one sampled Gaussian step at Opacus' orders, which all rounds and runs share."""
    from privfl.opacus_parts import RDPAccountant, compute_rdp

    found: NDArray[np.float64] = compute_rdp(
        q=rate, noise_multiplier=noise_multiplier, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS
    )
    found.flags.writeable = False
    return found


def _certified_interval(kinds: Mapping[Kind, int], delta: float, claim: float, step: float) -> Bound:
    """Lower bound from the PLD itself, by how far connecting the dots can have moved the composed loss."""
    number, lattice = sum(kinds.values()), _lattice(kinds)
    fine = _power_of_two(max(0.002 * claim, 1e-3) / math.sqrt(number / 2 * math.log(1000 / delta)))
    try:
        trial = lattice or min(step, max(fine, 4 * _finest_step(kinds)))
        sums = compose(kinds, trial, delta)
    except OverflowError:
        trial, sums = step, compose(kinds, step, delta)
    excess = 0.0 if lattice else rounding_excess(number, trial, delta)
    estimate = min(claim, max(one.epsilon(delta)[0] for one in sums))
    lower = max(one.epsilon(delta * 1.001 + one.escaped + one.surplus)[0] for one in sums) - excess
    return Bound(claim, "PLD", min(max(lower, 0.0), estimate), estimate, claim, "PLD with certified rounding")


def rounding_excess(number: int, step: float, delta: float) -> float:
    """How far connecting the dots moves a sum of losses at most, except with probability delta/1000.

    A loss in a cell of width h goes to one of the cell's ends at random, keeping the mean of exp(-loss). By Hoeffding's
    lemma its mean grows by at most h²/8, by his inequality n losses then gain more than n·h²/8 + h·√(n/2·ln(1/β)) with
    probability at most β. Hence ε_exact(delta) >= ε_grid(delta + β) - that excess; here β = delta/1000.
    """
    return number * step**2 / 8 + step * math.sqrt(number / 2 * math.log(1000 / delta))


def randomized_response_total(epsilon_per_answer: float, domain: int, answers: int, delta: float) -> Bound:
    """ε at ``delta`` of ``answers`` fresh k-ary randomised responses about one value, each of ``epsilon_per_answer``.

    Two neighbouring values agree on all but two of the ``domain`` answers, so for large domains the total grows far
    slower than ``answers * epsilon_per_answer`` (a trinomial convolution, exact up to the rounding of transforms).
    """
    if not epsilon_per_answer > 0 or not 2 <= domain <= MOST_BUCKETS or answers < 0:
        raise PrivacyError(
            f"{answers} answers with epsilon {epsilon_per_answer} over {domain} values: give a positive epsilon, from "
            "2 to 2^1000 values and at least 0 answers."
        )
    odds = math.exp(-epsilon_per_answer)  # P(another given value) / P(true value)
    noise = domain * odds / (1 + (domain - 1) * odds)
    bound = epsilon({(dp.RandomizedResponseDpEvent(noise, domain), REPLACE): answers}, delta)
    largest = answers * epsilon_per_answer
    if answers and (delta == 0 or largest < bound.epsilon):  # the event knows its loss from a rounded probability only
        return _at_most(bound, largest)
    return bound


def _at_most(bound: Bound, largest: float) -> Bound:
    """The claim that the ``largest`` loss of the history gives, where that is below the other one."""
    if math.isinf(bound.epsilon) or not bound.lower < largest:
        return Bound(largest, "pure", 0.0, largest, largest, "largest losses added")
    estimate = min(bound.estimate, largest)
    return replace(bound, epsilon=largest, accountant="pure", estimate=estimate, upper=largest)
