"""One link of an upload's chain: what it does at the client and at the server, and what it claims for that."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from torch import Tensor

from privfl.privacy.accounting.release import Cost, unprotected
from privfl.privacy.mechanisms.distributed_sum import DistributedSum
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.validation import Settings

Tensors = dict[str, Tensor]
Kind = Literal["bound", "transform", "noise", "sum"]
AddsAt = Literal["client", "share", "server", "nowhere"]


@dataclass(frozen=True)
class Cover:
    """What one round's noise on updates costs whoever it covers: the public if the server adds it, else the server too.

    Args:
        client: cost to a client whose upload is in the sum; ``sample`` to one example of it.
        amplified: what every available client is charged instead before the public, because a Poisson cohort was drawn
            with secret coins; only where the mechanism says :attr:`Mechanism.amplified`.
    """

    client: Cost
    sample: Cost
    amplified: DpEvent | None = None

    @classmethod
    def nothing(cls, reason: str) -> Cover:
        """No protection, because of ``reason``."""
        return cls(unprotected(reason), unprotected(reason))

    @classmethod
    def gaussian(cls, event: GaussianDpEvent, secret_rate: float = 1.0) -> Cover:
        """Gaussian noise on bounded updates; one example of a client may swing its update through twice the bound.

        ``secret_rate`` < 1 if the cohort is a Poisson sample at that rate, drawn with secret coins.
        """
        amplified = PoissonSampledDpEvent(secret_rate, event) if secret_rate < 1 else None
        return cls(Cost(event), Cost(event, NeighboringRelation.REPLACE_ONE), amplified)


@dataclass(frozen=True)
class ServerNoise:
    """What noise at the server is drawn from.

    ``stream`` serves this round alone, and all of privfl's own links one after the other, so that none repeats
    another's noise; ``source`` is for noise that is correlated over rounds, under labels of its own. Links from outside
    get a stream and a source of their own, the one that adds the noise the same source in every round, others a new
    one. From these neither privfl's noise nor the cohort's coins can be drawn again
    (:mod:`privfl.privacy.channel.link_noise`).
    """

    stream: NoiseStream
    source: NoiseSource


@dataclass(frozen=True)
class ChannelRun:
    """What a mechanism may know of a run before it begins.

    Args:
        length: how many numbers an update has.
        expected: public (expected) size of a cohort.
        pattern: in which rounds one client may take part.
        bound: L2 norm that no update exceeds where noise is added, in the first round; ∞ without a bound.
        lengthening: by what factor the rounding of a secure sum may lengthen an update, ≥ 1.
        clip: the chain's bound.
    """

    length: int
    expected: float
    pattern: ParticipationPattern
    bound: float
    lengthening: float
    clip: Mechanism | None

    def update_multiplier(self, noise_multiplier: float) -> float:
        """The noise on updates over their bound with which they and the bound's own numbers cost so much together."""
        return noise_multiplier if self.clip is None else self.clip.update_multiplier(noise_multiplier, self.expected)


@dataclass(frozen=True)
class ChannelRound(ChannelRun):
    """What a mechanism may know of a round. ``bound`` is that of this round, and is enforced where noise is added.

    Args:
        number: of the round, from 0.
        noised: whether a link of the chain adds noise.
        secret_rate: at which the cohort was drawn, if who takes part stays secret; else 1.
        shares: the terms of the secure sum, if noise is added to it in shares.
        reachable: public (expected) cohort among the clients that can be reached in this round.
    """

    number: int
    noised: bool
    secret_rate: float = 1.0
    shares: DistributedSum | None = None
    reachable: float = 1.0


@dataclass(frozen=True)
class Mechanism(Settings, ABC):
    """One link of ``privacy.update``; a frozen dataclass whose fields are its settings.

    To write one, say its ``kind`` and override what it does. At the client the links act in their order; at the server
    noise comes first, then the bound, then transforms in reverse, so that all they see is noisy. The channel keeps the
    very tensor that noise is added to within :meth:`norm_bound`, whatever the links before it did, and treats an update
    that comes back in another shape or not finite as broken.

    A claim counts only as its class states it: a subclass that changes anything of the class that states :meth:`cover`
    (of a noise) or :meth:`norm_bound` (of a bound), and does not state it anew, claims nothing; the statement says so.

    Attributes:
        kind: ``"bound"`` limits what one client may add, ``"transform"`` (top-k, quantisation) changes updates and
            claims nothing, ``"noise"`` adds noise, ``"sum"`` adds up securely. At most one bound, noise and sum each.
        adds_at: of a noise, where it is added: by every ``"client"`` on its own, by clients in a ``"share"`` each, or
            by the ``"server"``; may be a property.
        nonexpansive: whether ‖f(u) − f(v)‖ ≤ ‖u − v‖ for the update that leaves, so that noise sized for what goes in
            covers what comes out.
        splits_noise: of a noise at the server, whether it uses :meth:`ChannelRun.update_multiplier` and so covers
            what a moving bound learns.
        side_values: of a bound: numbers that clients send beside the update, by name, with their largest magnitude.
            Nothing is claimed unless the class that sends them says in :meth:`update_multiplier` what covers them.
        server_state: names under which :meth:`at_server` leaves what later rounds need; clients are told them.
    """

    kind: ClassVar[Kind]
    nonexpansive: ClassVar[bool] = False
    splits_noise: ClassVar[bool] = False
    side_values: ClassVar[Mapping[str, float]] = {}
    server_state: ClassVar[tuple[str, ...]] = ()

    @property
    def adds_at(self) -> AddsAt:
        """Where noise is added."""
        return "nowhere"

    @property
    def amplified(self) -> bool:
        """Whether :meth:`cover` rests on the cohort's draw staying secret where that is a Poisson sample."""
        return False

    def for_run(self, run: ChannelRun) -> Mechanism:
        """This link for one run: noise that is correlated over rounds is planned here, once.

        Where a noise returns another link than itself, no round has a larger bound than ``run``.

        Raises:
            ConfigError: it does not go with the run.
        """
        return self

    def norm_bound(self, server: Tensors) -> float:
        """Of a bound: the L2 norm > 0 that no update exceeds after it, given the server's state.

        Asked once a round. What clips, and what noise is sized for, is ``round.bound``, which noise that is planned for
        the whole run keeps at its first value or below.
        """
        return math.inf

    def update_multiplier(self, noise_multiplier: float, cohort: float) -> float:
        """Of a bound: the noise left for updates, over the bound, when its own :attr:`side_values` take their part."""
        return noise_multiplier

    def noisy_magnitude(self, bound: float) -> float | None:
        """Of noise that clients add: a magnitude that none of its numbers is likely to exceed, for a secure sum."""
        return None

    def side_report(self, update: Tensor, round: ChannelRound) -> Mapping[str, float]:
        """The :attr:`side_values` of one client, whose ``update`` comes to this link; a broken upload reports zeros."""
        return {}

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """The update as it leaves this link, of the same shape; may be changed in place.

        ``noise`` serves this client in this round alone; a link from outside that adds no noise has one of its own.
        """
        return update

    def at_server(self, total: Tensors, noise: ServerNoise, round: ChannelRound) -> None:
        """Change the sums over the cohort, by field, in place; take side values out, and leave the server's state."""
        return

    def broadcast(self, round: ChannelRound) -> Mapping[str, float]:
        """Numbers that clients are told before they train, by name."""
        return {}

    def cover(self, round: ChannelRound) -> Cover | None:
        """Of noise: what it costs; ``None`` claims nothing."""
        return None
