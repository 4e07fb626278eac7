"""In which rounds one client may take part: what noise that is correlated over the rounds rests on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError

Array = NDArray[np.float64]


class Schedule(Protocol):
    """Who trains when, as far as correlated noise needs to know; every cohort rule is one."""

    def min_separation(self, clients: int) -> int:
        """The fewest rounds from one participation of a client to its next (1: it may be in two rounds running)."""
        ...

    def max_participations(self, clients: int, rounds: int) -> int:
        """The most rounds, of ``rounds``, in which one client takes part."""
        ...


@dataclass(frozen=True)
class ParticipationPattern:
    """In which rounds one client may take part: at most ``participations``, at least ``separation`` rounds apart.

    Raises:
        ConfigError: one of the three numbers is below 1.
    """

    rounds: int
    separation: int
    participations: int

    def __post_init__(self) -> None:
        if min(self.rounds, self.separation, self.participations) < 1:
            raise ConfigError(
                f"{self} is no pattern of participation; give rounds, separation and participations of at least 1"
            )
        most = -(-self.rounds // self.separation)
        object.__setattr__(self, "participations", min(self.participations, most))

    @classmethod
    def of(cls, schedule: Schedule, clients: int, rounds: int) -> ParticipationPattern:
        """The pattern that ``schedule`` keeps to among ``clients`` clients."""
        separation, participations = schedule.min_separation(clients), schedule.max_participations(clients, rounds)
        return cls(rounds, separation, participations)

    def apart(self, distance: int) -> bool:
        """Whether two participations of one client are never fewer than ``distance`` rounds apart."""
        return self.participations == 1 or self.separation >= distance

    def largest_total(self, weights: Array) -> float:
        """The largest sum of ``weights`` [rounds] ≥ 0 over the rounds of one client; exact, by dynamic programming.

        >>> pattern = ParticipationPattern(rounds=5, separation=2, participations=2)
        >>> pattern.largest_total(np.array([1.0, 4.0, 5.0, 4.0, 0.0]))
        8.0
        """
        nothing = np.zeros(self.participations + 1)
        later = deque([nothing] * self.separation, maxlen=self.separation)  # best totals from rounds t+1 … t+separation
        for weight in weights[::-1]:
            taken = np.concatenate([[0.0], weight + later[-1][:-1]])
            later.appendleft(np.maximum(later[0], taken))
        return float(later[0][-1])
