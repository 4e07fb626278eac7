"""An engine whose clients are elsewhere: the seam at which a federation over a network takes the place of a loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from privfl.engine.aggregation import Aggregator
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import Phase
from privfl.privacy.noise.source import NoiseSource


class RemoteEngine(LoopEngine, ABC):
    """Evaluates models here and asks for uploads elsewhere: ``train`` sends the broadcast and yields what returns."""

    left: list[str]
    """What code at clients left behind while it trained, so that they refused to send; whoever reads it empties it."""
    repeats: bool
    """Whether a client has signed that a round is repeated, under noise of the server's; whoever reads it resets it."""

    @abstractmethod
    def secure_aggregator(
        self, phase: Phase, members: list[int], weights: Sequence[float], like: Tensor, source: NoiseSource
    ) -> Aggregator:
        """What adds the uploads of ``members``, whose ``weights`` are as the server knows them, up without seeing them.

        Raises:
            ConfigError: no secure sum over these members is safe.
        """
