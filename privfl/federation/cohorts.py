"""Who trains in a round: rules that draw a cohort from the clients that can be reached."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import numpy_stream
from privfl.references import shipped
from privfl.validation import Settings, check_count, check_number, check_rate, said

Clients = NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """The cohort of one round: ``clients`` ascending, and how often each one's upload counts (``times``)."""

    clients: Clients
    multiplicity: NDArray[np.int64]

    def among(self, members: Sequence[int]) -> Selection:
        """The part of this cohort that is among ``members``."""
        stay = np.isin(self.clients, np.array(members, dtype=np.int64))
        return Selection(self.clients[stay], self.multiplicity[stay])


@dataclass(frozen=True)
class Cohort(Settings, ABC):
    """A rule that draws the cohort. ``rate`` < 1 only if its coins earn amplification: Poisson, and secret."""

    needs_sizes = False

    @property
    def rate(self) -> float:
        """The Poisson rate that may be claimed, 1 for every other rule."""
        return 1.0

    def min_separation(self, clients: int) -> int:
        """The fewest rounds from one participation of a client to its next, of ``clients``; 1 unless a rule says more.

        Noise that is correlated over the rounds rests on it.
        """
        return 1

    def max_participations(self, clients: int, rounds: int) -> int:
        """The most rounds, of ``rounds``, in which one of ``clients`` clients takes part."""
        return -(-rounds // self.min_separation(clients))

    def check_clients(self, clients: int) -> None:
        """Raise :class:`ConfigError` if this rule cannot go with ``clients`` clients."""

    @abstractmethod
    def expected(self, available: int) -> float:
        """The public (expected) number of clients drawn from ``available`` ones."""

    @abstractmethod
    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        """The cohort of ``round``; ``sizes`` [available] are weights for the rules that need them."""


def _once(clients: Clients) -> Selection:
    return Selection(clients, np.ones(len(clients), dtype=np.int64))


@dataclass(frozen=True)
class Everyone(Cohort):
    """Every client that can be reached."""

    def expected(self, available: int) -> float:
        return float(available)

    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        return _once(available)


@dataclass(frozen=True)
class FixedCohort(Cohort):
    """``size`` clients uniformly without replacement, or all if fewer can be reached; no amplification is claimed.

    Args:
        size: clients in a round, ≥ 1.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("the cohort's size", self.size)

    def check_clients(self, clients: int) -> None:
        if self.size > clients:
            raise ConfigError(f"the cohort's size is {self.size} of {clients} clients; lower it, or take Everyone()")

    def expected(self, available: int) -> float:
        return float(min(self.size, available))

    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        if self.size >= len(available):
            return _once(available)
        chosen = numpy_stream(seed, "cohort", round).choice(available, self.size, replace=False, shuffle=False)
        return _once(np.sort(chosen))


@dataclass(frozen=True)
class PoissonCohort(Cohort):
    """Each reachable client independently with public probability ``probability``.

    The coins come from the noise source, because a claim of amplification needs them secret; a round may have nobody.

    Args:
        probability: public probability that a client takes part in a round, in (0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        check_rate("the cohort's probability", self.probability)

    @property
    def rate(self) -> float:
        return self.probability

    def expected(self, available: int) -> float:
        return self.probability * available

    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        chosen = source.stream("cohort", round).poisson_sample(len(available), self.probability)
        return _once(available[chosen])


@dataclass(frozen=True)
class SizeWeightedCohort(Cohort):
    """``size`` draws *with replacement* in proportion to the clients' sizes (scheme I of Li et al., ICLR 2020).

    With ``FedAvg(weighting="uniform")`` the average is unbiased for the size-weighted mean. A client drawn twice trains
    once and counts twice. The server needs the sizes: exact, or as the size mechanism reports them.

    Args:
        size: draws in a round, ≥ 1.
    """

    size: int
    needs_sizes = True

    def __post_init__(self) -> None:
        check_count("the cohort's size", self.size)

    def expected(self, available: int) -> float:
        return float(self.size)

    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        weights = np.maximum(sizes, 0)
        if not (math.isfinite(float(weights.sum())) and weights.sum() > 0):
            weights = np.ones_like(weights)
        drawn = numpy_stream(seed, "cohort", round).choice(available, self.size, p=weights / weights.sum())
        clients, multiplicity = np.unique(drawn, return_counts=True)
        return Selection(clients, multiplicity.astype(np.int64))


@dataclass(frozen=True)
class Rotation(Cohort):
    """Everyone in turn: each client has its place in a cycle of ``period`` rounds, fixed at random for the whole run.

    Two participations of a client lie a multiple of ``period`` rounds apart, so at least ``period``. A client that
    cannot be reached in its round waits for the next cycle; it is never moved. The places of every ``period``
    consecutive client numbers are a random permutation, so that all rounds have as many clients up to one.

    The order is drawn from the experiment's seed and no amplification is claimed; noise that is correlated over the
    rounds (:mod:`privfl.privacy.mechanisms.correlated`) uses the separation instead.

    Args:
        period: rounds between two participations of a client, ≥ 1.
    """

    period: int

    def __post_init__(self) -> None:
        check_count("the cohort's period", self.period)

    def check_clients(self, clients: int) -> None:
        if self.period > clients:
            raise ConfigError(
                f"the cohort's period is {self.period} for {clients} clients, so that some rounds have nobody; "
                f"give at most {clients}"
            )

    def min_separation(self, clients: int) -> int:
        return self.period

    def expected(self, available: int) -> float:
        return available / self.period

    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        if not len(available):
            return _once(available)
        # The first rows are the same however many rows are drawn, so a client's place does not depend on the others.
        cycles = int(available.max()) // self.period + 1
        places = numpy_stream(seed, "rotation").random((cycles, self.period)).argsort(axis=1).ravel()
        return _once(available[places[available] == round % self.period])


@dataclass(frozen=True)
class CohortWithout(Cohort):
    """The ``cohort`` without the clients in ``left_out``, while every public number stays what it was; for audits."""

    cohort: Cohort
    left_out: frozenset[int]

    @property
    def needs_sizes(self) -> bool:  # type: ignore[override]
        return self.cohort.needs_sizes

    @property
    def rate(self) -> float:
        return self.cohort.rate

    def min_separation(self, clients: int) -> int:
        return self.cohort.min_separation(clients)

    def expected(self, available: int) -> float:
        return self.cohort.expected(available)

    def draw(
        self, available: Clients, round: int, seed: int, source: NoiseSource, sizes: NDArray[np.float64]
    ) -> Selection:
        drawn = self.cohort.draw(available, round, seed, source, sizes)
        return drawn.among([client for client in drawn.clients.tolist() if client not in self.left_out])


COHORTS: dict[str, type[Cohort]] = {
    "everyone": Everyone,
    "fixed": FixedCohort,
    "poisson": PoissonCohort,
    "rotation": Rotation,
    "size-weighted": SizeWeightedCohort,
}
"""Every cohort rule by the name that configuration files use."""


def keeps_its_word(cohort: Cohort) -> bool:
    """Whether what ``cohort`` says of its draw may carry a claim: only privfl's own rules, as they are, may.

    Of any other class, and of an object with a ``draw`` of its own, nobody knows that the draw does what the rate and
    the separation say.
    """
    if not vars(cohort).keys() <= {one.name for one in fields(cohort)}:
        return False
    return keeps_its_word(cohort.cohort) if type(cohort) is CohortWithout else shipped(type(cohort))


def expected_cohort(cohort: Cohort, clients: int) -> float:
    """The public (expected) number of clients that ``cohort`` draws of ``clients``.

    Raises:
        ConfigError: it says a number that no cohort has.
    """
    expected = cohort.expected(clients)
    check_number(f"the expected cohort of {type(cohort).__name__}", expected, 0, above=True)
    return float(expected)


def earned_rate(cohort: Cohort) -> float:
    """The Poisson rate that a claim may be amplified by."""
    return cohort.rate if keeps_its_word(cohort) else 1.0


def _numbers(part: Any) -> NDArray[np.int64]:
    """A copy of ``part``; raises :class:`TypeError` for what is no list of whole numbers."""
    found = np.array(part)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"{found.dtype}")
    return found.astype(np.int64)


def check_selection(selection: Selection, available: Clients, *, once: bool) -> Selection:
    """``selection`` as it is now, if it names clients that can be reached, each once; ``once``: each counts once, too.

    It is a copy: what is priced is who trains, whatever an object from outside says later.

    Raises:
        ConfigError: it does not; privfl's own rules always do.
    """
    try:
        clients, times = (_numbers(part) for part in (selection.clients, selection.multiplicity))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"the cohort drew {said(selection)}; let draw return Selection(clients, multiplicity), of whole numbers"
        ) from error
    sound = clients.shape == times.shape and bool((np.diff(clients) > 0).all() and np.isin(clients, available).all())
    if not sound or not bool((times >= 1).all()):
        raise ConfigError(
            f"the cohort drew {clients.tolist()[:8]}, {times.tolist()[:8]} times; give clients that can be reached, "
            "each once, ascending, and how often each one counts"
        )
    if once and not bool((times == 1).all()):
        raise ConfigError(
            f"the cohort lets client {int(clients[times > 1][0])} count {int(times.max())} times, and noise covers one "
            "upload of each; draw every client at most once"
        )
    return Selection(clients, times)
