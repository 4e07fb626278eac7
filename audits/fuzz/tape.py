"""The instrument: what is noised, what the coins say and what leaves, noted in one world and played back in another.

A tape that records changes nothing: it keeps every value that is about to be noised, its noise's deviation, the stream
that the noise comes from, and what was released. A tape that plays another one back gives, at every noise of a *forced*
kind, what the other world released. Whatever still differs between the worlds has passed the noise by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Observer
from privfl.privacy.accounting.statement import Statement
from privfl.privacy.door.log import DoorLog

Array = NDArray[np.float64]
Labels = tuple[int | str, ...]
Place = tuple[int, Labels, int]
"""Where noise was added: session of the run, labels of the stream, which of its uses."""


@dataclass(frozen=True)
class Coins:
    """One Poisson draw: at what ``rate``, of how many, and which were in."""

    place: Place
    rate: float
    count: int
    drawn: frozenset[int]


@dataclass(frozen=True)
class Noised:
    """One value that was noised.

    Args:
        kind: ``door``, ``totals``, ``channel``, ``server``, ``correlated``, ``share``, ``size``, ``report`` or the
            first label of a stream that nobody here knows.
        key: of the noise's stream.
        value: before the noise, float64.
        deviation: of the noise; what stands for it where the noise is not Gaussian.
        released: after it.
        coins: the latest draw from the same stream.
        facts: what else the kind needs.
    """

    place: Place
    kind: str
    key: bytes
    value: Array
    deviation: float
    released: Array
    coins: Coins | None = None
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """Of the stream that the noise comes from."""
        return self.place[1]


@dataclass(frozen=True)
class Seen:
    """One thing that left, and before whom."""

    where: str
    observers: tuple[Observer, ...]
    values: tuple[Array, ...]


@dataclass
class Tape:
    """What happened in one world; ``played`` is another world's tape, whose releases of the kinds ``forced`` count.

    ``left_out`` is a client whose uploads never arrive in a usable form: its contribution is left out.
    """

    played: Tape | None = None
    forced: frozenset[str] = frozenset()
    left_out: int | None = None
    noised: dict[Place, Noised] = field(default_factory=dict)
    coins: dict[Place, Coins] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    logs: list[tuple[int, DoorLog]] = field(default_factory=list)
    """What passed the door of each client, each time that it trained."""
    senders: set[tuple[int, int]] = field(default_factory=set)
    """Round and client of everybody who trained."""
    answered: set[tuple[int, int, bytes]] = field(default_factory=set)
    """Fresh answers with a size: client, which of its answers, under which key."""
    keys: dict[tuple[int, Labels], bytes] = field(default_factory=dict)
    """Of the streams, by session and labels: the other world takes them over, though its data make it another run."""
    ledger: Ledger | None = None
    statement: Statement | None = None
    reproducible: bool | None = None
    """What the statement says of the noise."""
    fixed_key_used: bool = False
    session: int = 0
    paused: bool = False
    """While an engine is tried on random public rows, nothing is noted."""
    strange: list[str] = field(default_factory=list)
    """What could not be played back, since the worlds are built differently there."""
    _uses: Counter[tuple[int, Labels]] = field(default_factory=Counter)
    _latest: dict[Labels, Coins] = field(default_factory=dict)

    def next_place(self, labels: Labels) -> Place:
        """Where the next use of the stream ``labels`` stands."""
        use = self._uses[self.session, labels]
        self._uses[self.session, labels] += 1
        return self.session, labels, use

    def note(
        self, stream: Any, kind: str, value: Array, deviation: float, released: Array, **facts: float
    ) -> Array | None:
        """Note a noised value; what the other world released there, if that is to be played back."""
        if self.paused:
            return None
        labels: Labels = getattr(stream, "fuzz_labels", ("unknown",))
        key: bytes = getattr(stream, "fuzz_key", b"")
        place = self.next_place((kind, *labels) if kind in ("report", "correlated") else labels)
        other = None
        if self.played is not None and kind in self.forced:
            found = self.played.noised.get(place)
            if found is None:
                self.strange.append(f"noise at {place} is added in one world only")
            elif found.released.shape != released.shape:
                self.strange.append(f"what is noised at {place} has another shape in the other world")
            else:
                other = found.released
        self.noised[place] = Noised(
            place, kind, key, value, deviation, released if other is None else other, self._latest.get(labels), facts
        )
        return other

    def draw(self, stream: Any, count: int, rate: float, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Note a Poisson draw, and make it agree with the other world's on what both worlds hold."""
        if self.paused:
            return drawn
        labels: Labels = getattr(stream, "fuzz_labels", ("unknown",))
        place = self.next_place(("coins", *labels))
        if self.played is not None and (other := self.played.coins.get(place)) is not None:
            common = min(count, other.count)
            kept = [one for one in other.drawn if one < common]
            beyond = [int(one) for one in drawn if one >= common]
            drawn = np.array(sorted(kept + beyond), dtype=np.int64)
        coins = Coins(place, rate, count, frozenset(drawn.tolist()))
        self.coins[place] = self._latest[labels] = coins
        return drawn

    def see(self, where: str, observers: tuple[Observer, ...], *values: Any) -> None:
        """Note that ``values`` reached the ``observers``."""
        where = where if not self.session else f"session {self.session}, {where}"
        self.seen.append(Seen(where, observers, tuple(map(_array, values))))


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        return np.array(value.detach().cpu().double().numpy())
    return np.array(value, dtype=np.float64)


BOTH: tuple[Observer, ...] = ("server", "public")


@contextmanager
def replaced(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """The attributes of objects, classes or modules in ``changes``, replaced for a while."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in reversed(before):
            setattr(owner, name, old)


def view(values: Tensor) -> Array:
    """A copy in float64."""
    return np.array(values.detach().double().numpy()).reshape(-1)


def give(target: Tensor, values: Array) -> None:
    """Overwrite ``target`` in place."""
    with torch.no_grad():
        target.copy_(torch.from_numpy(values).view(target.shape).to(target.dtype))
