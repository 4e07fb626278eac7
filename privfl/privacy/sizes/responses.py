"""Which client answered with which size, and when: the server's table of memoised answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privfl.errors import DataError, PrivacyError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.privacy.sizes.own_mechanisms import answer_alone
from privfl.references import of_privfl

Integers = NDArray[np.int64]

BLOCK = 1024
"""Clients whose coins are drawn together."""


@dataclass(eq=False)
class SizeResponses:
    """The table of answers: a fresh answer is drawn and charged, a memoised one is replayed and costs nothing.

    ``refresh="once"``: each client answers once and the answer is kept for ever, also if its true size changes later.
    The total cost stays ε and N̂ goes stale; a fresh draw at each change would cost ε per distinct size and show when
    the size changed. ``refresh="every_round"`` or every k rounds: each fresh answer costs ε again, and an observer who
    can link the answers of a client reads its size off their mode (8 answers suffice for 95 % at α = ½ and D = 99).

    The coins of a client's k-th answer are those of place ``client % 1024`` among 1024 answers drawn from the noise
    stream ``("size", client // 1024, k)``. They depend on the client and on k alone: a mechanism draws as many coins
    for each place whatever the sizes are, and the coins of clients that are not asked are thrown away. A mechanism from
    outside privfl need not keep to that: it is asked for each client alone, with the coins of the stream
    ``("size", "alone", client, k)``, so that nobody's size and nobody's coins move another one's answer.
    """

    fresh: tuple[int, ...] = ()
    """The clients that answered afresh in the latest call of :meth:`answers`: the ones to charge."""
    charged: dict[int, int] = field(default_factory=dict)
    """The round in which each client was charged last, where answers may be on their way that are not in the table."""

    def __post_init__(self) -> None:
        self._mechanism: str | None = None
        self._clients: Integers = np.empty(0, dtype=np.int64)  # ascending; the arrays below have one entry for each
        self._given: Integers = np.empty(0, dtype=np.int64)
        self._rounds: Integers = np.empty(0, dtype=np.int64)
        self._latest: NDArray[Any] = np.empty(0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SizeResponses) and self.state() == other.state()

    def answers(
        self,
        round: int,
        clients: Sequence[int] | Integers,
        sizes: ArrayLike,
        mechanism: SizeMechanism,
        source: NoiseSource,
    ) -> NDArray[Any]:
        """The answers of ``clients`` in this round, and :attr:`fresh`.

        A second call for the same round replays, so that a round that is repeated after an interruption charges nobody
        twice.

        Args:
            round: the index of the round, not falling from call to call.
            clients: numbers of the clients asked, from 0 on, each once.
            sizes: their true sizes, shape (clients,); read only for clients that answer afresh.
            mechanism: the randomiser; the same one as in earlier calls.
            source: the coins.

        Returns:
            The answers in the order of ``clients``, dtype as from :meth:`SizeMechanism.respond`.

        Raises:
            DataError: a client is listed twice or is not a number from 0 on, or ``clients`` and ``sizes`` differ in
                length.
            PrivacyError: the mechanism differs from the one that gave the answers in the table.
        """
        true, ids = np.asarray(sizes), _numbers(clients)
        if true.shape != (len(ids),):
            raise DataError(f"{len(ids)} clients come with sizes of shape {true.shape}: give one size per client.")
        if (np.diff(np.sort(ids)) == 0).any():
            raise DataError("a client is asked for its size twice in one round: list each client once.")
        if self._mechanism not in (None, repr(mechanism)):
            raise PrivacyError(
                f"the table holds size answers of {self._mechanism}, not of {mechanism}: "
                "keep the mechanism of the run, or start a new table and pay for new answers."
            )
        self._mechanism = repr(mechanism)
        due = self.due(ids, round, mechanism)
        self.fresh = tuple(ids[due].tolist())
        if self.fresh:
            kept = self._latest.dtype if len(self._clients) else None
            self._make_room(ids[due])
            place = np.searchsorted(self._clients, ids[due])
            drawn = _draw(ids[due], self._given[place], true[due], mechanism, source)
            kind = drawn.dtype if kept is None else np.promote_types(drawn.dtype, kept)
            self._latest = self._latest.astype(kind, copy=False)
            self._latest[place] = drawn
            self._given[place] += 1
            self._rounds[place] = round
        return self._latest[np.searchsorted(self._clients, ids)]

    def due(self, clients: Sequence[int] | Integers, round: int, mechanism: SizeMechanism) -> NDArray[np.bool_]:
        """Which of ``clients`` answer afresh in this round, bool (clients,)."""
        ids = _numbers(clients)
        due = ~self._known(ids)
        if due.all():
            return due
        if mechanism.refresh != "once":
            place = np.minimum(np.searchsorted(self._clients, ids), len(self._clients) - 1)
            due |= round - self._rounds[place] >= _period(mechanism)
        return due

    def owing(self, clients: Sequence[int] | Integers, round: int, mechanism: SizeMechanism) -> NDArray[np.bool_]:
        """Which of ``clients``, who are due, may draw a new answer for a request in this round, bool (clients,).

        The table of a client knows all that it has drawn, also what never arrived here. So nobody draws a new answer
        who may have drawn one less than the mechanism's period before. What nobody pays for twice is charged at the
        first request that may have come through: no choice of requests that do would let a client draw more often.
        """
        last = [self.charged.get(client) for client in _numbers(clients).tolist()]
        if mechanism.refresh == "once":
            return np.array([one is None for one in last], dtype=bool)
        return np.array([one is None or round - one >= _period(mechanism) for one in last], dtype=bool)

    def latest(self) -> tuple[Integers, NDArray[Any]]:
        """The clients that have answered, ascending, and the latest answer of each."""
        return self._clients, self._latest

    def of_round(self, round: int) -> tuple[Integers, NDArray[Any]]:
        """The clients whose latest answer is of ``round``, ascending, and that answer of each."""
        fresh = self._rounds == round
        return self._clients[fresh], self._latest[fresh]

    def state(self) -> dict[str, Any]:
        """The table as JSON-able values, for a checkpoint."""
        charged = [np.array([*self.charged], dtype=np.int64), np.array([*self.charged.values()], dtype=np.int64)]
        return {
            "mechanism": self._mechanism,
            "fresh": _pack(np.array(self.fresh, dtype=np.int64)),
            "clients": _pack(self._clients),
            "given": _pack(self._given),
            "rounds": _pack(self._rounds),
            "latest": _pack(self._latest),
            **({"charged": [_pack(column) for column in charged]} if self.charged else {}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SizeResponses:
        """The table that :meth:`state` described."""
        table = cls(tuple(_unpack(state["fresh"]).tolist()))
        table._mechanism = state["mechanism"]
        table._clients, table._given = _unpack(state["clients"]), _unpack(state["given"])
        table._rounds, table._latest = _unpack(state["rounds"]), _unpack(state["latest"])
        if "charged" in state:
            table.charged = dict(zip(*(_unpack(column).tolist() for column in state["charged"]), strict=True))
        return table

    def _known(self, ids: Integers) -> NDArray[np.bool_]:
        """Which of the clients ``ids`` have answered before."""
        place = np.searchsorted(self._clients, ids)
        known = place < len(self._clients)
        known[known] = self._clients[place[known]] == ids[known]
        return known

    def _make_room(self, ids: Integers) -> None:
        """Give the clients among ``ids`` that never answered a place in the table."""
        new = np.sort(ids[~self._known(ids)])
        if len(new):
            place = np.searchsorted(self._clients, new)
            self._clients = np.insert(self._clients, place, new)
            self._given, self._rounds, self._latest = (
                np.insert(column, place, 0) for column in (self._given, self._rounds, self._latest)
            )


def _period(mechanism: SizeMechanism) -> int:
    """After how many rounds an answer is drawn anew, where it is."""
    return 1 if mechanism.refresh == "every_round" else int(mechanism.refresh)


def _numbers(clients: Sequence[int] | Integers) -> Integers:
    ids = np.asarray(clients).reshape(-1)
    if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0):
        raise DataError(f"clients {ids[:3].tolist()} … are asked for their sizes: clients are whole numbers from 0 on.")
    return ids.astype(np.int64)


def _draw(
    clients: Integers, given: Integers, sizes: NDArray[Any], mechanism: SizeMechanism, source: NoiseSource
) -> NDArray[Any]:
    """Fresh answers of ``clients``, the ``given``-th of each (from 0)."""
    if not of_privfl(mechanism):
        asked = zip(clients.tolist(), given.tolist(), sizes.tolist(), strict=True)
        return np.concatenate([answer_alone(mechanism, n, source.stream("size", "alone", c, k)) for c, k, n in asked])
    blocks, places = clients // BLOCK, clients % BLOCK
    order = np.lexsort((given, blocks))
    changes = (np.diff(blocks[order]) != 0) | (np.diff(given[order]) != 0)
    parts = []
    for together in np.split(order, np.flatnonzero(changes) + 1):
        everyone = np.full(BLOCK, mechanism.range.lo, dtype=sizes.dtype)
        everyone[places[together]] = sizes[together]
        stream = source.stream("size", int(blocks[together[0]]), int(given[together[0]]))
        parts.append(mechanism.respond(everyone, stream)[places[together]])
    answers = np.concatenate(parts)
    answers[order] = answers.copy()
    return answers


def _pack(values: NDArray[Any]) -> list[str]:
    """The type and the bytes of a column as text: whole numbers as int64, written in as few bytes as they need."""
    small = values
    if values.dtype.kind == "i" and values.min(initial=0) >= 0:
        small = values.astype(np.min_scalar_type(int(values.max(initial=0))))
    little = small.astype(small.dtype.newbyteorder("<"))
    return [little.dtype.str, base64.b64encode(little.tobytes()).decode()]


def _unpack(packed: Sequence[str]) -> NDArray[Any]:
    kind, text = packed
    values = np.frombuffer(base64.b64decode(text), dtype=np.dtype(kind))
    return values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)
