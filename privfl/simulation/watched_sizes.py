"""Sizes of a run in one process, whose mechanism may keep nothing of a client's size for the server's side of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfl.privacy.accounting.release import everywhere, unprotected
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.known_sizes import SIZE, Sizes
from privfl.references import called, of_privfl
from privfl.simulation.every_state import EveryState


class WatchedSizes(Sizes):
    """Sizes whose answers are compared with what a mechanism from outside keeps of them.

    The same object randomises at the clients and estimates at the server, which is to know the answers alone.
    """

    def ask(self, round: int, clients: NDArray[np.int64], source: NoiseSource) -> None:
        """See :meth:`Sizes.ask`; what the mechanism keeps costs every claim."""
        if self.mechanism is None or of_privfl(self.mechanism):
            super().ask(round, clients, source)
            return
        before = EveryState(self.mechanism).digest
        super().ask(round, clients, source)
        after = EveryState(self.mechanism)
        if after.digest != before:
            kept = unprotected(
                f"the size mechanism {called(self.mechanism)} changed while clients answered, so that the server's "
                "side of it may know more than their answers; let it keep nothing"
            )
            self.ledger.record(everywhere(SIZE, kept), None)
