"""Availability: which clients can be reached in a round (drop-out models of ReBaFL, arXiv 2303.06314, and a few more).

A set depends on the settings, the root seed, the round and the number of clients, and on nothing else: all methods of
a study meet the same drop-outs, and a resumed run asks for any round directly. No round is without clients: where the
independent draws leave nobody, they are redrawn until somebody answers, as in the paper's code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from privfl.errors import ConfigError, brief
from privfl.randomness import numpy_stream
from privfl.validation import Settings, check_count, check_number

STREAM = "availability"


@dataclass(frozen=True)
class Availability(Settings, ABC):
    """A rule that says which clients are active in each round; its fields are the rule's settings."""

    def active(self, round: int, clients: int, seed: int) -> np.ndarray:
        """The active clients of ``round`` (counted from 0) among 0 … ``clients`` − 1: ascending int64, never empty.

        Raises:
            ConfigError: ``_mask`` does not give one bool for each client.
        """
        check_count("round", round, 0)
        check_count("clients", clients)
        given = self._mask(round, clients, seed)
        mask = _array(given)
        if not (mask.dtype == np.bool_ and mask.shape == (clients,)):
            raise ConfigError(
                f"_mask of {type(self).__name__} gives {_in_words(given)} in round {round}; give an array of {clients} "
                "bools, one for each client"
            )
        return np.flatnonzero(mask).astype(np.int64, copy=False)

    @abstractmethod
    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        """Which clients are active, bool (clients,)."""


@dataclass(frozen=True)
class Always(Availability):
    """Every client is active in every round."""

    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        return np.ones(clients, dtype=bool)


@dataclass(frozen=True)
class PerCluster(Availability):
    """Client i is active with ``probabilities[i mod number of clusters]``, independently of the others.

    The draw is held for ``period`` rounds: it changes in rounds that are a multiple of ``period``. Redrawing an empty
    set raises a client's frequency, to p/(1 − (1−p)^clients) if all probabilities are p.

    Args:
        probabilities: probability of being active for each cluster, in [0, 1].
        period: rounds for which a draw is held, ≥ 1.
    """

    probabilities: tuple[float, ...]
    period: int = 1

    def __post_init__(self) -> None:
        for probability in self.probabilities:
            check_number("an entry of probabilities", probability, 0, 1)
        if not any(self.probabilities):
            raise ConfigError(f"probabilities is {self.probabilities}: at least one cluster must sometimes be active.")
        check_count("period", self.period)

    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        probabilities = np.resize(np.asarray(self.probabilities, dtype=np.float64), clients)
        if not probabilities.any():
            raise ConfigError(
                f"the first {clients} entries of probabilities are 0, so none of {clients} clients can ever be "
                "active: raise one of them."
            )
        return _independent(probabilities, numpy_stream(seed, STREAM, round // self.period))


@dataclass(frozen=True)
class Bernoulli(Availability):
    """Each client is active with ``probability`` in (0, 1], independently of others and of other rounds.

    Args:
        probability: probability of being active in a round, in (0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        check_number("probability", self.probability, 0, 1, above=True)

    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        return _independent(np.full(clients, float(self.probability)), numpy_stream(seed, STREAM, round))


@dataclass(frozen=True)
class Persistent(Availability):
    """As :class:`Bernoulli`, redrawn in rounds that are a multiple of ``period`` and held in between.

    Args:
        probability: probability of being active, in (0, 1].
        period: rounds for which a draw is held, ≥ 1.
    """

    probability: float
    period: int

    def __post_init__(self) -> None:
        check_number("probability", self.probability, 0, 1, above=True)
        check_count("period", self.period)

    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        return Bernoulli(self.probability)._mask(round // self.period, clients, seed)


@dataclass(frozen=True)
class FixedFraction(Availability):
    """A fresh uniform draw of max(1, round(``fraction`` · clients)) clients in every round; fraction in (0, 1].

    Args:
        fraction: share of the clients that is active in a round, in (0, 1].
    """

    fraction: float

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, 0, 1, above=True)

    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        number = max(1, int(np.rint(self.fraction * clients)))
        mask = np.zeros(clients, dtype=bool)
        mask[numpy_stream(seed, STREAM, round).choice(clients, number, replace=False)] = True
        return mask


@dataclass(frozen=True)
class Markov(Availability):
    """Each client is a two-state chain: active ones ``go_offline``, others ``come_back`` with these probabilities.

    The chain is stationary from round 0: a client is active with come_back / (go_offline + come_back), for stretches of
    1/go_offline rounds on average. Where the chain leaves nobody, the answer is a stationary draw that is not empty;
    the chain itself goes on undisturbed.

    Any round is found without replaying the run. One uniform u per client and round drives the chain: a u below
    min(1 − go_offline, come_back) means active, one above the larger of the two offline, whatever came before, and
    a u in between keeps the last state (or reverses it, if come_back is the larger one). So it is enough to walk back
    to the latest deciding u of every client, about ln(clients) / (go_offline + come_back) rounds for rates below 1/2.

    Args:
        go_offline: probability that an active client is offline in the next round, in [0, 1].
        come_back: probability that an offline client is active in the next round, in (0, 1].
    """

    go_offline: float
    come_back: float

    def __post_init__(self) -> None:
        check_number("go_offline", self.go_offline, 0, 1)
        check_number("come_back", self.come_back, 0, 1, above=True)

    def _mask(self, round: int, clients: int, seed: int) -> np.ndarray:
        stationary = self.come_back / (self.go_offline + self.come_back)
        low, high = sorted((1 - self.go_offline, self.come_back))
        alternates = self.come_back > 1 - self.go_offline
        mask = np.zeros(clients, dtype=bool)
        open_clients = np.arange(clients)
        for past in range(round, -1, -1):
            u = numpy_stream(seed, STREAM, past).random(clients)[open_clients]
            flipped = alternates and (round - past) % 2 == 1
            if past == 0:
                mask[open_clients] = (u < stationary) != flipped
                break
            decided = (u < low) | (u >= high)
            mask[open_clients[decided]] = (u[decided] < low) != flipped
            open_clients = open_clients[~decided]
            if not len(open_clients):
                break
        if not mask.any():
            mask = _independent(np.full(clients, stationary), numpy_stream(seed, STREAM, round, 1))
        return mask


def reachable(rule: Availability, round: int, clients: int, seed: int) -> np.ndarray:
    """The clients that ``rule``, which may be anybody's, names for ``round``: int64, ascending, each once.

    Raises:
        ConfigError: it names nobody, clients that do not exist, or anything but whole numbers.
    """
    given = rule.active(round, clients, seed)
    named = _array(given)
    whole = named.ndim == 1 and named.dtype.kind in "iu" and len(named)
    if not (whole and named.min() >= 0 and named.max() < clients):
        mask = "; np.flatnonzero makes them of bools" if named.dtype.kind == "b" else ""
        raise ConfigError(
            f"{type(rule).__name__} says that clients {_in_words(given)} can be reached in round {round}; give at "
            f"least one number from 0 to {clients - 1}, as whole numbers in one row{mask}"
        )
    return np.unique(named).astype(np.int64)


def _array(given: object) -> np.ndarray:
    """``given`` as an array and of no subclass; an empty one where it is none."""
    try:
        return np.array(given)
    except ValueError:  # lists of unequal length
        return np.empty(0)


def _in_words(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"{brief(str(given.reshape(-1)[:8].tolist()))} ({given.dtype} of shape {given.shape})"
    return brief(repr(given))


def _independent(probabilities: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Independent coins, redrawn until one shows; at least one probability is above 0.

    After a first empty draw the redraw is done at once, from the law given that it is not empty: the place of the first
    active client, then free coins behind it. The same law, and it ends for tiny probabilities too.
    """
    mask: np.ndarray = rng.random(len(probabilities)) < probabilities
    if not mask.any():
        nobody_before = np.concatenate(([1.0], np.cumprod(1 - probabilities)[:-1]))
        first_here = probabilities * nobody_before
        first = rng.choice(len(probabilities), p=first_here / first_here.sum())
        mask = rng.random(len(probabilities)) < probabilities
        mask[:first] = False
        mask[first] = True
    return mask


AVAILABILITY: dict[str, type[Availability]] = {
    "always": Always,
    "bernoulli": Bernoulli,
    "persistent": Persistent,
    "per-cluster": PerCluster,
    "fixed-fraction": FixedFraction,
    "markov": Markov,
}
