"""What one message costs: the vocabulary in which mechanisms speak to the ledger.

A *release* is one message that carries something derived from a client's data. For each cell of the statement, that is
each pair (unit that is protected, observer who looks), it says what the message costs: a ``DpEvent`` of dp_accounting,
nothing at all (the observer never sees it, not even through later results), or "unprotected" with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dp_accounting import DpEvent, NeighboringRelation, RandomizedResponseDpEvent

Unit = Literal["sample", "client"]
"""What is protected: ``sample`` is one example of one client, ``client`` is everything that one client holds."""

Observer = Literal["server", "public"]
"""Who looks: ``server`` is honest but curious and sees every message, ``public`` sees the released models."""

UNITS: tuple[Unit, ...] = ("sample", "client")
OBSERVERS: tuple[Observer, ...] = ("server", "public")

SIZE_RESPONSE = "size response"
"""The release of a client's answer about its size."""
BARE_TRAINING = "what training computes on the data is sent without a mechanism (no DP-SGD)"
NO_CLIENT_NOISE = "updates carry no noise that covers everything one client holds"
"""Why updates have no price that are what their algorithm makes of the data, and came about as they should."""


@dataclass(frozen=True)
class Cost:
    """What one message costs one unit before one observer.

    ``event`` under the neighbouring ``relation`` dominates the message for the unit's own neighbouring relation (for
    ``sample``: one example of one client is added or removed; for ``client``: a client's contribution is left out).
    ``event`` ``None`` means unprotected (ε = ∞), and then ``reason`` says why in one sentence.
    """

    event: DpEvent | None
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    reason: str = ""

    def __post_init__(self) -> None:
        if self.event is None and not self.reason:
            raise ValueError("an unprotected cost needs the reason why it is unprotected")


def unprotected(reason: str) -> Cost:
    """The cost of a message that reveals a value as it is: ε = ∞, because of ``reason``."""
    return Cost(event=None, reason=reason)


@dataclass(frozen=True)
class Release:
    """One kind of message: its name and its cost in each of the four cells.

    A cell that is absent from ``costs`` means that the observer learns nothing from this message.
    """

    name: str
    costs: tuple[tuple[tuple[Unit, Observer], Cost], ...]

    @classmethod
    def of(cls, name: str, costs: Mapping[tuple[Unit, Observer], Cost]) -> Release:
        """Build from a mapping of (unit, observer) to :class:`Cost`."""
        return cls(name, tuple(sorted(costs.items(), key=lambda item: item[0])))

    def cost(self, unit: Unit, observer: Observer) -> Cost | None:
        """The cost in one cell, ``None`` if the observer learns nothing from this message."""
        return dict(self.costs).get((unit, observer))


def everywhere(name: str, cost: Cost) -> Release:
    """A release with the same ``cost`` in all four cells."""
    return Release.of(name, {(unit, observer): cost for unit in UNITS for observer in OBSERVERS})


def pure_cost(epsilon: float) -> Cost:
    """The cost of any ε-differentially private answer: binary randomised response at ε dominates it.

    Kairouz, Oh and Viswanath, "The composition theorem for differential privacy", ICML 2015, theorem 3.4 with δ = 0.
    """
    tail = math.exp(-epsilon)  # 0 for a huge ε, and then nothing is claimed
    event: DpEvent = RandomizedResponseDpEvent(noise_parameter=2.0 * tail / (1.0 + tail), num_buckets=2)
    return Cost(event, NeighboringRelation.REPLACE_ONE)
