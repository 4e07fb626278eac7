"""Sizes that clients tell over a network: the server's table, without the sizes themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfl.deploy.link import Link, Request
from privfl.deploy.messages import Message
from privfl.errors import ConfigError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.known_sizes import Sizes
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.privacy.sizes.responses import SizeResponses

LARGEST = 2.0**53
"""Whole numbers below it are exact; no answer is larger."""


class AskedSizes(Sizes):
    """Sizes as clients answer them: each draws its own answer, and the server only writes it down.

    A client that does not answer before the first round is an error, because weights and rates rest on the answers; one
    that does not answer later keeps its last one.
    """

    def __init__(
        self,
        clients: int,
        mechanism: SizeMechanism | None,
        ledger: Ledger,
        responses: SizeResponses,
        link: Link,
        *,
        hidden: bool,
    ) -> None:
        """See :class:`Sizes`; ``link`` is whom to ask."""
        super().__init__(np.ones(clients, dtype=np.int64), mechanism, ledger, responses, hidden=hidden)
        self._link, self._exact = link, mechanism is None and not hidden

    def begin(self, source: NoiseSource) -> None:
        """Ask every client before training.

        Raises:
            ConfigError: somebody does not answer.
        """
        if self._exact:
            self.tell_exact()
            self.ledger.record(self.cost, None)
        else:
            super().begin(source)

    def tell_exact(self) -> None:
        """Learn the exact sizes, which clients tell as often as they are asked.

        Raises:
            ConfigError: somebody does not answer.
        """
        if self._exact:
            answers = self._asked(0, list(range(len(self._true))))
            self._required(answers, len(self._true))
            for client, answer in answers.items():
                self._true[client] = int(answer)
            self._known = self._true.astype(np.float64)

    def ask(self, round: int, clients: NDArray[np.int64], source: NoiseSource) -> None:
        """Collect the answers of ``clients`` in ``round`` and charge everybody who may draw a fresh one.

        Whoever is asked has answered as far as a claim may assume, also where the answer comes too late to be used.
        """
        assert self.mechanism is not None
        due, owing = self.due(round, clients), self.owing(round, clients)
        if len(owing):
            self.ledger.record(self.cost, owing)
            self.responses.charged |= dict.fromkeys(owing.tolist(), round)
        answers = self._asked(round, due.tolist())
        known, _ = self.responses.latest()
        silent = [client for client in due.tolist() if client not in answers]
        self._required(answers, len(due), {client for client in silent if client not in set(known.tolist())})
        heard = np.array([client for client in clients.tolist() if client not in silent], dtype=np.int64)
        if len(heard):
            given = np.array([answers.get(client, 0.0) for client in heard.tolist()])
            as_given: Any = _AsGiven(self.mechanism)
            self._known[heard] = self.responses.answers(round, heard, given, as_given, source)

    def owing(self, round: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of ``clients`` would be charged for asking them in ``round``: not who may still repeat an answer."""
        due = self.due(round, clients)
        return due if self.mechanism is None else due[self.responses.owing(due, round, self.mechanism)]

    def _asked(self, round: int, clients: list[int]) -> dict[int, float]:
        """The answers that can be used."""
        heard = self._link.ask(dict.fromkeys(clients, Request({"kind": "size", "round": round})))
        answers = {}
        for client, message in heard.items():
            value = message.meta.get("size") if isinstance(message, Message) else None
            if isinstance(value, int | float) and abs(value) < LARGEST and self._possible(float(value)):
                answers[client] = float(value)
        return answers

    def _possible(self, answer: float) -> bool:
        if self.mechanism is None:
            return 1 <= answer <= self._link.federation.task.examples and answer == int(answer)
        low, high = self.mechanism.support()
        return low <= answer <= high

    def _required(self, answers: dict[int, float], asked: int, unknown: set[int] | None = None) -> None:
        missing = set(range(asked)) - set(answers) if unknown is None else unknown
        if missing:
            raise ConfigError(
                f"client {min(missing)} did not tell its size within {self._link.federation.seconds:g} s "
                f"({len(missing)} of {asked} did not), and weights rest on it; start it, and go on with --resume"
            )


class _AsGiven:
    """Stands for the mechanism where answers come that clients have drawn already."""

    def __init__(self, mechanism: SizeMechanism) -> None:
        self.range, self.refresh, self._name = mechanism.range, mechanism.refresh, repr(mechanism)

    def __repr__(self) -> str:
        return self._name

    def respond(self, answers: NDArray[Any], stream: object) -> NDArray[Any]:
        """The answers."""
        return answers
