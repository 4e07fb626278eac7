"""What the server knows about the clients' sizes, and what it cost them to tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Release, everywhere, unprotected
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.mechanism import SizeMechanism, size_release
from privfl.privacy.sizes.responses import SizeResponses

SIZE = "size"
EXACT_SIZE = everywhere(SIZE, unprotected("every client's exact number of samples is sent"))
EXACT_SUM = everywhere(SIZE, unprotected("the exact sum of a cohort's sizes is opened with every secure sum"))


class Sizes:
    """The sizes of all clients as the server knows them: exact, or as a mechanism reports them.

    Only :meth:`ask` makes clients answer, and it charges every fresh answer; all else reads what was answered. Sizes
    that are ``hidden`` reach the server as sums, inside secure sums; clients weigh their uploads themselves then.
    """

    def __init__(
        self,
        true: NDArray[np.int64],
        mechanism: SizeMechanism | None,
        ledger: Ledger,
        responses: SizeResponses,
        *,
        hidden: bool = False,
    ) -> None:
        """``responses``: the answers so far, of an interrupted run or none."""
        self.mechanism, self.ledger, self.responses, self.hidden = mechanism, ledger, responses, hidden
        self._true = true
        self._known = true.astype(np.float64)
        clients, answers = responses.latest()
        self._known[clients] = answers

    @property
    def cost(self) -> Release:
        """What one client's answer costs."""
        if self.mechanism is None:
            return EXACT_SUM if self.hidden else EXACT_SIZE
        return size_release(self.mechanism)

    def begin(self, source: NoiseSource) -> None:
        """Ask every client before training."""
        if self.mechanism is None:
            self.ledger.record(self.cost, None)
        else:
            self.ask(0, np.arange(len(self._true)), source)

    def ask(self, round: int, clients: NDArray[np.int64], source: NoiseSource) -> None:
        """Collect the answers of ``clients`` in ``round`` and charge those that are fresh."""
        assert self.mechanism is not None
        true = self._true[clients]
        self._known[clients] = self.responses.answers(round, clients, true, self.mechanism, source)
        if self.responses.fresh:
            self.ledger.record(self.cost, np.array(self.responses.fresh))

    def due(self, round: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of ``clients`` would answer afresh in ``round``."""
        if self.mechanism is None:
            return np.empty(0, dtype=np.int64)
        return clients[self.responses.due(clients, round, self.mechanism)]

    def owing(self, round: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of ``clients`` would be charged for asking them in ``round``."""
        return self.due(round, clients)

    def sent(self, round: int) -> dict[int, float]:
        """What clients answered in ``round``, as it left them."""
        if self.mechanism is None:
            return dict(enumerate(self._true.tolist())) if round == 0 else {}
        clients, answers = self.responses.of_round(round)
        return dict(zip(clients.tolist(), answers.tolist(), strict=True))

    def weights(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sizes of ``clients`` as weights: answers are brought back into their public range."""
        if self.mechanism is None:
            return self._known[clients]
        return np.clip(self._known[clients], self.mechanism.range.lo, self.mechanism.range.hi)

    def total(self, clients: NDArray[np.int64]) -> float:
        """Number of samples of ``clients``: the exact sum, or the mechanism's estimate."""
        if self.mechanism is None:
            return float(self._known[clients].sum())
        return self.mechanism.estimate(self._known[clients]).value
