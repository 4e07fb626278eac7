"""What one client's upload of one round costs in each cell of the statement, given its chain and its door's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privfl.privacy.accounting.release import (
    NO_CLIENT_NOISE,
    OBSERVERS,
    UNITS,
    Cost,
    Observer,
    Release,
    pure_cost,
    unprotected,
)
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.log import DoorLog
from privfl.privacy.mechanisms.mechanism import Cover

POOLED = "whoever trains on pooled data holds the data"
BARE_UPDATE = "the server receives every client's update without noise; noise is added only to their sum"
BARE_SUM = "the server opens the sum of the updates without noise; noise is added only after that"
BARE_GRADIENTS = "the server receives clipped gradients without noise; noise is added only to their sum"
BARE_GRADIENT_SUM = "the server opens the sum of clipped gradients without noise; noise is added only after that"
NO_NOISE_ON_GRADIENTS = "gradients are clipped but the noise multiplier is 0"


@dataclass(frozen=True)
class Charges:
    """The prices of one channel in one round.

    Args:
        reports: ε of each field that is a randomised report.
        others: whether an upload holds any other field.
        dpsgd: DP-SGD at the door.
        cover: of the noise on updates, ``None`` without.
        covered: who sees no more than what that noise covers.
        secure: whether updates are added up before anybody sees them.
        uncovered_gradients: why noise on the sum of gradients does not cover what the chain makes of them; empty if it
            does.
    """

    reports: tuple[float, ...]
    others: bool
    dpsgd: DPSGD | None
    cover: Cover | None
    covered: tuple[Observer, ...]
    secure: bool
    uncovered_gradients: str = ""

    def releases(self, log: DoorLog, *, server_holds_data: bool, remembered: bool) -> list[tuple[Release, int]]:
        """What one client's uploads of one round cost, with how often each."""
        bare = unprotected(POOLED)
        counted = [
            (Release.of("update", {(unit, observer): bare if server_holds_data and observer == "server" else cost}), 1)
            for cost in map(pure_cost, self.reports)
            for unit in UNITS
            for observer in OBSERVERS
        ]
        if not self.others and not remembered:
            return counted
        for unit in UNITS:
            for observer in OBSERVERS:
                if server_holds_data and observer == "server":
                    costs: Sequence[tuple[Cost, int]] = [(bare, 1)]
                else:
                    costs = self._sample_costs(log, observer) if unit == "sample" else self._client_costs(observer)
                counted += [(Release.of("update", {(unit, observer): cost}), count) for cost, count in costs]
        return counted

    def poisson_cohort_releases(self) -> list[Release]:
        """What one round costs *every* available client, chosen or not: the amplified claim of a Poisson cohort."""
        if self.cover is None or self.cover.amplified is None:
            return []
        return [Release.of("update", {("client", "public"): Cost(self.cover.amplified)})]

    def _sample_costs(self, log: DoorLog, observer: Observer) -> list[tuple[Cost, int]]:
        reasons = list(log.bare)
        if log.clipped and self.dpsgd is not None and self.dpsgd.noise(0) == 0:
            reasons.append(NO_NOISE_ON_GRADIENTS)
        elif log.clipped and observer == "server":
            reasons.append(BARE_GRADIENT_SUM if self.secure else BARE_GRADIENTS)
        elif log.clipped and self.uncovered_gradients:
            reasons.append(self.uncovered_gradients)
        if not reasons:
            assert self.dpsgd is not None or not log.clipped
            costs = [(Cost(event), count) for event, count in log.noisy.items()]
            for rate, count in log.clipped.items():
                assert self.dpsgd is not None
                costs.append((Cost(self.dpsgd.event(self.dpsgd.noise(0), rate)), count))
            return costs
        if self.cover is not None and observer in self.covered:
            return [(self.cover.sample, 1)]
        return [(unprotected(reason), 1) for reason in reasons]

    def _client_costs(self, observer: Observer) -> list[tuple[Cost, int]]:
        if self.cover is None:
            return [(unprotected(NO_CLIENT_NOISE), 1)]
        if observer not in self.covered:
            return [(unprotected(BARE_SUM if self.secure else BARE_UPDATE), 1)]
        if observer == "public" and self.cover.amplified is not None:
            return []
        return [(self.cover.client, 1)]
