"""Which client answered with which size, and when: the server's table of memoised answers."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privfl.errors import DataError, PrivacyError
from privfl.privacy.noise import NoiseSource
from privfl.privacy.size import SizeMechanism


@dataclass(frozen=True)
class _Answer:
    """A client's latest answer, the round it was given in, and how many the client has given."""

    count: int
    round: int
    response: int | float


@dataclass
class SizeResponses:
    """The table of answers: a fresh answer is drawn and charged, a memoised one is replayed and costs nothing.

    ``refresh="once"``: each client answers once and the answer is kept for ever, also if its true size changes later.
    The total cost stays ε and N̂ goes stale; a fresh draw at each change would cost ε per distinct size and show when
    the size changed. ``refresh="every_round"`` or every k rounds: each fresh answer costs ε again, and an observer who
    can link the answers of a client reads its size off their mode (8 answers suffice for 95 % at α = ½ and D = 99).

    The coins of a client's k-th answer come from the noise stream ``("size", client, k)``.
    """

    fresh: tuple[int, ...] = ()
    """The clients that answered afresh in the latest call of :meth:`answers`: the ones to charge."""
    _table: dict[int, _Answer] = field(default_factory=dict, repr=False)
    _mechanism: str | None = None

    def answers(
        self, round: int, clients: Sequence[int], sizes: ArrayLike, mechanism: SizeMechanism, source: NoiseSource
    ) -> NDArray[Any]:
        """The answers of ``clients`` in this round, and :attr:`fresh`.

        A second call for the same round replays, so that a round that is repeated after an interruption charges nobody
        twice.

        Args:
            round: the index of the round, not falling from call to call.
            clients: ids of the clients asked, each once.
            sizes: their true sizes, shape (clients,); read only for clients that answer afresh.
            mechanism: the randomiser; the same one as in earlier calls.
            source: the coins.

        Returns:
            The answers in the order of ``clients``, dtype as from :meth:`SizeMechanism.respond`.

        Raises:
            DataError: a client is listed twice, or ``clients`` and ``sizes`` differ in length.
            PrivacyError: the mechanism differs from the one that gave the answers in the table.
        """
        true, ids = np.asarray(sizes), [operator.index(client) for client in clients]
        if true.shape != (len(ids),):
            raise DataError(f"{len(ids)} clients come with sizes of shape {true.shape}: give one size per client.")
        if len(set(ids)) != len(ids):
            raise DataError("a client is asked for its size twice in one round: list each client once.")
        if self._mechanism not in (None, repr(mechanism)):
            raise PrivacyError(
                f"the table holds size answers of {self._mechanism}, not of {mechanism}: "
                "keep the mechanism of the run, or start a new table and pay for new answers."
            )
        self._mechanism = repr(mechanism)
        fresh = []
        for client, size in zip(ids, true, strict=True):
            if self.is_due(client, round, mechanism):
                count = self._table[client].count + 1 if client in self._table else 0
                response = mechanism.respond([size], source.stream("size", client, count))
                self._table[client] = _Answer(count, round, response[0].item())
                fresh.append(client)
        self.fresh = tuple(fresh)
        return np.array([self._table[client].response for client in ids])

    def is_due(self, client: int, round: int, mechanism: SizeMechanism) -> bool:
        """Whether the client answers afresh in this round."""
        if client not in self._table:
            return True
        if isinstance(mechanism.refresh, str):
            period = None if mechanism.refresh == "once" else 1
        else:
            period = mechanism.refresh
        return period is not None and round - self._table[client].round >= period

    def latest(self) -> dict[int, int | float]:
        """The latest answer of every client that has answered."""
        return {client: answer.response for client, answer in self._table.items()}

    def state(self) -> dict[str, Any]:
        """The table as JSON-able values, for a checkpoint."""
        return {
            "mechanism": self._mechanism,
            "fresh": list(self.fresh),
            "answers": [[client, a.count, a.round, a.response] for client, a in self._table.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SizeResponses:
        """The table that :meth:`state` described."""
        table = {client: _Answer(*answer) for client, *answer in state["answers"]}
        return cls(tuple(state["fresh"]), table, state["mechanism"])
