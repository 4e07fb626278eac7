"""What passed a client's door in one round: with noise, clipped, or as it is with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dp_accounting import DpEvent, GaussianDpEvent

from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal

BARE_GRADIENT = "gradients are computed without a mechanism (no DP-SGD)"
BARE_TOTAL = "sums over samples are sent without a mechanism"
BARE_SIZE = "the exact number of the client's samples is sent"
NO_NOISE_ON_TOTAL = "sums over samples are clipped but the noise multiplier is 0"
NO_NOISE = "gradients are clipped but the noise multiplier is 0"


@dataclass
class DoorLog:
    """What passed one client's door in one round."""

    noisy: Counter[DpEvent] = field(default_factory=Counter)
    """Gradients and totals that left with noise: event → count."""
    clipped: Counter[float] = field(default_factory=Counter)
    """Gradients that left clipped, to be noised on the sum: sampling rate → count."""
    bare: dict[str, None] = field(default_factory=dict)
    """Why a value left as it is, in one sentence each."""

    def note_private(self, dpsgd: DPSGD, client: int, rate: float, count: int = 1) -> None:
        """Note ``count`` ≥ 1 clipped gradients at ``rate``, with the noise that ``dpsgd`` gives ``client``."""
        multiplier = dpsgd.noise(client)
        if dpsgd.noise_at == "server":
            self.clipped[rate] += count
        elif multiplier > 0:
            self.noisy[dpsgd.event(multiplier, rate)] += count
        else:
            self.bare[NO_NOISE] = None

    def note_total(self, mechanism: NoisyTotal | None) -> None:
        """Note one sum over samples that left through ``mechanism``, or as it is."""
        if mechanism is None:
            self.bare[BARE_TOTAL] = None
        elif mechanism.noise_multiplier > 0:
            self.noisy[GaussianDpEvent(mechanism.noise_multiplier)] += 1
        else:
            self.bare[NO_NOISE_ON_TOTAL] = None


class Logged(Protocol):
    """A client's place at a door, with its log."""

    log: DoorLog


def note_bare(slots: Iterable[Logged], reason: str) -> None:
    """Note for every client of ``slots`` why a value leaves as it is."""
    for slot in slots:
        slot.log.bare[reason] = None
