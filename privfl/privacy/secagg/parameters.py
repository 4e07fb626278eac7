"""How many neighbours and which threshold secure aggregation needs for a stated threat model.

On a random k-regular graph of n clients with threshold t, some of them corrupt and some dropping out, what must not
happen depends on whom the server is taken for.

**The server follows the protocol** (Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, section 3):

1. the honest clients that stay are not connected, so that the server learns the sums of parts. Two gaps of k/2 lost or
   corrupt clients in a row must open on the circle; there are n(n − k − 1)/2 pairs of places for them;
2. some client has t corrupt neighbours, who know its secrets.

**The server deviates** (active). It may choose who drops out, keep letters back and tell its stories, after it has seen
the graph, so only the corrupt clients' places are left to chance. Where one list of survivors at most can be opened
(:func:`~privfl.privacy.secagg.rules.confirmations`), no part of it opens if
t > k/2 + 1 + c for every client, c being its corrupt neighbours; the proof: ``docs/secure-aggregation-proof.md``. That
also covers 2, and 1 needs no probability.

**Either way** too few may stay: fewer than t of some client's neighbours, so that the sum cannot be unmasked.

What must stay secret does so except with probability 2^−security, and a session fails with probability at most
2^−failure; a client's corrupt or staying neighbours are hypergeometric, and a union bound covers the n clients. What is
certain to hold on the complete graph needs no probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError

Adversary = Literal["semi-honest", "active"]

LEAST_THRESHOLD = 2
"""With 1, every share would be the secret itself."""
MANY = 4096
"""Numbers from which on their factorials are looked up in a table."""

_MOST_LOSS = 0.9
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ThreatModel:
    """What a session has to withstand.

    Args:
        corrupt: share of the clients, in [0, 1), that pass what they know to the server.
        dropout: share of the clients, in [0, 1), that may go silent on the way.
        adversary: ``"semi-honest"``: server and corrupt clients follow the protocol; ``"active"``: they need not.
        security_bits: the vectors stay secret except with probability 2^−security_bits.
        failure_bits: a session within ``dropout`` fails with probability at most 2^−failure_bits.

    Raises:
        ConfigError: a share is outside [0, 1), a number of bits outside 1 … 200, or too few honest clients stay:
            corrupt + dropout > 0.9, with an active adversary corrupt + 2·dropout > 0.9.
    """

    corrupt: float
    dropout: float
    adversary: Adversary = "semi-honest"
    security_bits: float = 40
    failure_bits: float = 20

    def __post_init__(self) -> None:
        for name in ("corrupt", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a share of the clients in [0, 1).")
        for name in ("security_bits", "failure_bits"):
            if not 1 <= getattr(self, name) <= 200:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number from 1 to 200.")
        if self.adversary not in get_args(Adversary):
            raise ConfigError(f"adversary is {self.adversary!r}; give one of {', '.join(get_args(Adversary))}.")
        weight = 2 if self.adversary == "active" else 1
        if self.corrupt + weight * self.dropout > _MOST_LOSS + _ROUNDING:
            sum_of = "corrupt + 2·dropout" if weight == 2 else "corrupt + dropout"
            raise ConfigError(
                f"{sum_of} is {self.corrupt + weight * self.dropout:g} under an adversary that is {self.adversary}: "
                f"keep it at or below {_MOST_LOSS}, because too few honest clients would stay."
            )

    def corrupt_of(self, clients: int) -> int:
        """How many of ``clients`` may be corrupt."""
        return _part(self.corrupt, clients)

    def staying_of(self, clients: int) -> int:
        """How many of ``clients`` stay at least."""
        return clients - _part(self.dropout, clients)


def find(clients: int, threat: ThreatModel, least_threshold: int = LEAST_THRESHOLD) -> tuple[int, int]:
    """The smallest (degree, threshold) that withstand ``threat``.

    The degree is the smallest even one for which a threshold exists on the random k-regular graph, and the threshold
    the smallest for it. Where no even degree up to n − 2 will do, the graph is complete (degree n − 1) and the
    threshold the smallest that :func:`check_complete` accepts.

    For a server that follows the protocol these are the published figures, with one exception. Google's finder raises
    a threshold of 1 to 2 only after the search, which for 10 clients of whom none are corrupt and 33 % drop out gives
    degree 4 and threshold 2, although a client is left with fewer than 2 of its 4 neighbours once in 30 times. Here the
    failure bound holds for the threshold returned (degree 6); ``least_threshold=1`` gives the published degrees in all
    cases. For an active server they are larger than those published for a "semi-malicious" one, which keeps to the
    protocol while keys and shares are exchanged.

    Args:
        clients: n.
        threat: what to withstand.
        least_threshold: 2, or 1 if a share may be the secret itself.

    Raises:
        ConfigError: there are fewer than 2 clients, or not even the complete graph withstands the threat model.
    """
    if clients < 2:
        raise ConfigError(f"a secure sum needs 2 clients or more, not {clients}.")
    degree = 2 if threat.adversary == "active" else _first_connected(clients, threat)
    while degree <= clients - 2:
        lowest, highest = _thresholds(clients, degree, threat)
        lowest = max(lowest, least_threshold)
        if lowest <= highest:
            return degree, lowest
        # One neighbour more moves either bound by at most one, so until the gap can be closed nothing is missed.
        degree += (lowest - highest + 1) // 2 * 2
    threshold = max(threat.staying_of(clients), _least_secure(clients, threat), least_threshold)
    if threshold > threat.staying_of(clients):
        raise ConfigError(
            f"{threat.staying_of(clients)} of {clients} clients stay, but the threshold would have to be {threshold} "
            f"({threat.adversary}, {threat.corrupt_of(clients)} corrupt): lower corrupt or dropout, or add clients."
        )
    return clients - 1, threshold


def check_complete(clients: int, threshold: int, threat: ThreatModel) -> None:
    """Return if ``threshold`` withstands ``threat`` on the complete graph of ``clients``, whoever is corrupt or lost.

    Besides being secure, the threshold must not be below the number of clients that stay: a sum is then never revealed
    over fewer than the threat model speaks of.

    Raises:
        ConfigError: it does not.
    """
    least = max(threat.staying_of(clients), _least_secure(clients, threat), LEAST_THRESHOLD)
    if not least <= threshold <= clients:
        raise ConfigError(f"the threshold {threshold} for {clients} clients must lie in {least} to {clients}.")


def _least_secure(clients: int, threat: ThreatModel) -> int:
    corrupt = threat.corrupt_of(clients)
    return (clients + corrupt) // 2 + 1 if threat.adversary == "active" else corrupt + 1


def _first_connected(clients: int, threat: ThreatModel) -> int:
    """The smallest even degree at which the honest clients that stay are connected; the probability falls with it.

    It is n(n − k − 1)/2 times the probability that k given clients are among the lost or corrupt ones. Corrupt clients
    who drop out are counted twice, which is on the safe side.
    """
    lost = min(clients, threat.corrupt_of(clients) + clients - threat.staying_of(clients))
    degrees = np.arange(2, clients - 1, 2, dtype=np.float64)
    reachable = degrees[degrees <= lost]
    logarithms = (
        math.log(clients / 2)
        + np.log(clients - reachable - 1)
        + _log_choose(clients - reachable, lost - reachable)
        - _log_choose(clients, lost)
    )
    return 2 * (1 + int(np.count_nonzero(logarithms >= -(threat.security_bits + 1) * math.log(2))))


def _thresholds(clients: int, degree: int, threat: ThreatModel) -> tuple[int, int]:
    """The smallest secure and the largest attainable threshold at this degree."""
    corrupt = most_corrupt(clients, threat.corrupt_of(clients), degree, threat.security_bits + 1)
    at_most = np.cumsum(_chances(clients, threat.staying_of(clients), degree))
    highest = int(np.argmax(at_most >= 2.0**-threat.failure_bits / clients))
    return least_sparse(degree, corrupt) if threat.adversary == "active" else corrupt + 1, highest


def most_corrupt(clients: int, corrupt: int, degree: int, security_bits: float) -> int:
    """The number of corrupt neighbours that no client has more of, except with probability 2^−security_bits.

    ``corrupt`` of the clients are so, whoever chose them, as long as they were chosen before the random circle was.
    """
    at_least = np.cumsum(_chances(clients, corrupt, degree)[::-1])[::-1]  # P[neighbours ≥ i], from the small end
    # The first i with P[corrupt neighbours > i] below the bound; i = degree always is.
    return int(np.argmax(np.append(at_least[1:], 0) <= 2.0**-security_bits / clients))


def least_sparse(degree: int, corrupt: int) -> int:
    """The smallest threshold above degree/2 + 1 + ``corrupt``: an active server then opens no part of a sum."""
    return degree // 2 + 2 + corrupt


def _chances(clients: int, marked: int, degree: int) -> NDArray[np.float64]:
    """The probability that 0, 1, … ``degree`` of a client's neighbours are among the ``marked`` clients."""
    found = np.arange(degree + 1, dtype=np.float64)
    possible = (found <= marked) & (degree - found <= clients - marked)
    logarithms = np.full(degree + 1, -np.inf)
    found = found[possible]
    logarithms[possible] = (
        _log_choose(marked, found) + _log_choose(clients - marked, degree - found) - _log_choose(clients, degree)
    )
    chances: NDArray[np.float64] = np.exp(logarithms)
    return chances


def _log_choose(total: float | NDArray[np.float64], chosen: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """log of the binomial coefficient, by the standard library's log Γ: importing scipy takes longer than any use."""
    rest = np.subtract(total, chosen)
    logarithms: NDArray[np.float64] = np.asarray(_log_factorial(total) - _log_factorial(chosen) - _log_factorial(rest))
    return logarithms


def _log_factorial(number: float | NDArray[np.float64]) -> NDArray[np.float64]:
    numbers = np.asarray(number, dtype=np.float64)
    if numbers.size < MANY:
        logarithms = np.array([math.lgamma(one + 1) for one in numbers.ravel().tolist()], dtype=np.float64)
        return logarithms.reshape(numbers.shape)
    return _log_factorials(1 << int(numbers.max()).bit_length())[numbers.astype(np.int64)]


@lru_cache(maxsize=4)
def _log_factorials(count: int) -> NDArray[np.float64]:
    """Those of 0 to ``count`` − 1, which a search among many clients asks for again and again."""
    return np.fromiter((math.lgamma(one + 1) for one in range(count)), np.float64, count)


def _part(share: float, clients: int) -> int:
    """⌊share · clients⌋, where a share such as 0.29 of 100 means 29 although the product is a little below."""
    return math.floor((share + 1e-14) * clients)
