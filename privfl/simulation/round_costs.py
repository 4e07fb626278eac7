"""What a run will cost, before it costs anything: planned releases, and the noise that a target ε needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from numpy.typing import NDArray

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.workspace import Phase
from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.accounting.calibration import noise_multiplier_for
from privfl.privacy.accounting.claims import too_large
from privfl.privacy.accounting.release import BARE_TRAINING, Release, pure_cost
from privfl.privacy.accounting.tracker import EpsilonTracker
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import Epochs, LocalTraining, draws_poisson, private_plan
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.log import DoorLog
from privfl.privacy.settings import Budget

ADAPTIVE = (
    "{} draws its batches by what the server has learnt, and what rounds cost adds up only if that was settled before; "
    "let its plan follow from the settings and from training in the round alone"
)
"""Why a run claims nothing whose costs were chosen by what it released."""
Spent = tuple[DpEvent, NeighboringRelation]
History = dict[Spent, int]
ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE


def exceeds(
    budget: Budget | None, tracker: EpsilonTracker, costs: list[tuple[Release, NDArray[np.int64], int]], round: int
) -> bool:
    """Whether recording the ``costs`` of ``round`` would push the budget's cell over its ε.

    Raises:
        ConfigError: not even the first round fits, or what it costs says nothing at the run's delta.
    """
    if budget is not None and round == 0 and tracker.would_be_empty(budget, costs):
        raise ConfigError(
            f"the budget for {budget.unit}/{budget.observer} is kept only because target_delta is {tracker.delta:g}, "
            f"above one over the number of {budget.unit}s; lower it"
        )
    if budget is None or not tracker.would_exceed(budget, costs):
        return False
    if round == 0:
        raise ConfigError(
            f"the budget of ε = {budget.epsilon:g} for {budget.unit}/{budget.observer} does not allow a single "
            "round; add noise, raise it, or set it for a cell that the mechanisms protect"
        )
    return True


def planned_gradients(
    algorithm: Algorithm, training: LocalTraining, dpsgd: DPSGD, client: int, received: Tensors
) -> tuple[float, int]:
    """Sampling rate and number of the noisy gradients that ``client`` takes in one round."""
    plan = algorithm.plan(private_plan(training, dpsgd, client), received)
    if plan == Epochs(1, 0):  # a survey takes no gradients
        return 1.0, 0
    if not draws_poisson(plan):
        raise ConfigError(
            f"{algorithm.name} draws its batches by {type(plan).__name__}, and DP-SGD needs Poisson batches; let its "
            "plan return a Poisson of privfl"
        )
    if dpsgd.noise_at == "server" and plan.steps != 1:
        raise ConfigError(
            f"{algorithm.name} adds {plan.steps} gradients up in one upload, but noise on the sum covers one; use "
            "noise_at = 'client'"
        )
    return plan.rate, plan.steps


def planned_totals(phases: Iterable[Phase], rounds: int) -> Counter[Spent]:
    """Noisy totals and randomised reports that a client who takes part in all ``rounds`` rounds gives away.

    Raises:
        ConfigError: something leaves without a mechanism, so that no target can be reached.
    """
    events: Counter[Spent] = Counter()
    for phase in phases:
        log = DoorLog()
        fields = phase.channel.fields
        if phase.algorithm.keeps or not all(field.epsilon is not None for field in fields):
            _note_totals(phase.algorithm, phase.channel, log)
        if log.bare:
            raise ConfigError(
                f"target_epsilon cannot be reached: {next(iter(log.bare))}; name them in privacy.statistics "
                f"({', '.join(phase.algorithm.statistics)})"
            )
        events.update({(event, ADD_OR_REMOVE_ONE): count * rounds for event, count in log.noisy.items()})
        for cost in (pure_cost(field.epsilon) for field in fields if field.epsilon is not None):
            if cost.event is not None:
                events[cost.event, cost.relation] += rounds
    return events


def _note_totals(algorithm: Algorithm, channel: RoundChannel, log: DoorLog) -> None:
    mechanisms = {one.statistic: one for one in channel.statistics}
    for name in algorithm.statistics:
        log.note_total(mechanisms.get(name))


def planned_log(
    algorithm: Algorithm, training: LocalTraining, channel: RoundChannel, client: int, received: Tensors
) -> DoorLog:
    """What will pass ``client``'s door in one round: the engine's own log must say the same."""
    log = DoorLog()
    dpsgd = channel.dpsgd
    _note_totals(algorithm, channel, log)
    if dpsgd is None:
        if not algorithm.statistics or algorithm.plan(private_plan(training, None, client), received) != Epochs(1, 0):
            log.bare[BARE_TRAINING] = None
        return log
    rate, count = planned_gradients(algorithm, training, dpsgd, client, received)
    if count > 0:
        log.note_private(dpsgd, client, rate, count)
    return log


def refuse_hopeless(budget: Budget | None, channel: RoundChannel) -> None:
    """Refuse a budget for a cell of the row ``client`` that ``channel``, in a round, does not protect at all.

    Raises:
        ConfigError: naming the cell and the reason.
    """
    if budget is None or budget.unit != "client":
        return
    for release, _ in channel.releases(DoorLog()):
        cost = release.cost(budget.unit, budget.observer)
        if cost is not None and cost.event is None:
            raise ConfigError(
                f"the budget for {budget.unit}/{budget.observer} can never be kept: {cost.reason}; set it for a cell "
                "that the mechanisms protect"
            )


def calibrate(
    dpsgd: DPSGD,
    gradients: Sequence[Mapping[float, int]],
    besides: Release | None,
    target_delta: float,
    totals: Mapping[Spent, int] | None = None,
    examples: int = 1,
) -> DPSGD:
    """``dpsgd`` with the smallest noise multiplier that keeps every client's example within its target ε.

    The target is for the whole run: ``gradients`` [clients] says how many noisy gradients each client will take at
    each sampling rate, ``besides`` is the size response and ``totals`` are other noisy sums over samples. One target
    gives one noise multiplier, that of the client who needs most; a list gives each client its own.

    Raises:
        ConfigError: sizes are sent exactly.
        PrivacyError: a target is out of reach, for instance because the size response alone exceeds it.
    """
    if dpsgd.target_epsilon is None:
        return dpsgd
    extra: History = dict(totals or {})
    if besides is not None and (cost := besides.cost("sample", "public")) is not None:
        if cost.event is None:
            raise ConfigError("target_epsilon cannot be reached: sizes are sent exactly; set privacy.size")
        extra[cost.event, cost.relation] = extra.get((cost.event, cost.relation), 0) + 1

    def solve(target: float, counts: Mapping[float, int]) -> float:
        if not sum(counts.values()):
            return 1.0  # who takes no gradient needs no noise; 1 keeps the settings valid
        noise = noise_multiplier_for(target, target_delta, counts, besides=extra)
        kinds = {(dpsgd.event(noise, rate), ADD_OR_REMOVE_ONE): count for rate, count in counts.items() if count}
        if too_large(target_delta, examples) and epsilon({**extra, **kinds}, target_delta, interval=False).epsilon == 0:
            raise ConfigError(
                f"target_epsilon is kept only because target_delta is {target_delta:g}, above one over the number of "
                "examples; lower it"
            )
        return noise

    if not isinstance(dpsgd.target_epsilon, tuple):
        noise: float | tuple[float, ...] = max(solve(dpsgd.target_epsilon, counts) for counts in hardest(gradients))
    else:
        found: dict[tuple[float, tuple[tuple[float, int], ...]], float] = {}
        for target, counts in zip(dpsgd.target_epsilon, gradients, strict=True):
            key = (target, tuple(sorted(counts.items())))
            found[key] = found.get(key) or solve(target, counts)
        pairs = zip(dpsgd.target_epsilon, gradients, strict=True)
        noise = tuple(found[target, tuple(sorted(counts.items()))] for target, counts in pairs)
    return replace(dpsgd, target_epsilon=None, noise_multiplier=noise)


def hardest(gradients: Sequence[Mapping[float, int]]) -> list[dict[float, int]]:
    """Counts by rate that cost at least as much as every client's: clients with the same rates share the largest."""
    by_rates: dict[frozenset[float], Counter[float]] = {}
    for counts in gradients:
        by_rates.setdefault(frozenset(counts), Counter())
        by_rates[frozenset(counts)] |= Counter(counts)
    single = sorted(((*counts.items(),)[0] for counts in by_rates.values() if len(counts) == 1), reverse=True)
    front: list[dict[float, int]] = [dict(counts) for counts in by_rates.values() if len(counts) != 1]
    most = 0
    for rate, count in single:  # from the highest rate down, only more gradients can cost more
        if count > most:
            front.append({rate: count})
            most = count
    return front


class RoundCosts:
    """What the uploads of a phase cost, known before the round runs; the doors' own logs are held to it."""

    def __init__(
        self,
        phase: Phase,
        training: LocalTraining,
        received: Tensors,
        *,
        sends: bool = True,
        first: Tensors | None = None,
    ) -> None:
        """``phase`` as its clients ``received`` their orders; ``sends``: whether any phase of the round sends.

        ``first``: what they would receive of a server that has learnt nothing, if code from outside may choose batches
        by what it learns.
        """
        self.phase, self.training, self.received = phase, training, received
        self.algorithm, self.channel, self.first = phase.algorithm, phase.channel, first
        self.remembered = sends and bool(phase.algorithm.keeps)
        self._logs: dict[tuple[float, float], DoorLog] = {}

    def of(
        self, cohort: NDArray[np.int64], available: NDArray[np.int64]
    ) -> list[tuple[Release, NDArray[np.int64], int]]:
        """(release, clients, count), clients with the same cost together.

        ``cohort`` trains; every one of the ``available`` clients is charged for what a secret draw of the cohort hides.
        """
        groups: dict[tuple[float, float], list[int]] = {}
        for client in cohort.tolist():
            groups.setdefault(self._settings(client), []).append(client)
        costs: list[tuple[Release, NDArray[np.int64], int]] = []
        for clients in groups.values():
            holds, log = self.algorithm.pools_data, self.log(clients[0])
            releases = self.channel.releases(log, server_holds_data=holds, remembered=self.remembered)
            costs += [(release, np.array(clients), count) for release, count in releases]
        return costs + [(release, available, 1) for release in self.channel.poisson_cohort_releases()]

    def log(self, client: int) -> DoorLog:
        """What will pass ``client``'s door."""
        settings = self._settings(client)
        if settings not in self._logs:
            given = self.algorithm, self.training, self.channel, client
            self._logs[settings] = log = planned_log(*given, self.received)
            settled = log if self.first is None else planned_log(*given, self.first)
            if (settled.noisy, settled.clipped) != (log.noisy, log.clipped):
                log.bare[ADAPTIVE.format(self.algorithm.name)] = None
        return self._logs[settings]

    def check(self, client: int, log: DoorLog) -> None:
        """Hold ``client``'s own log to the plan. A plan that charges bare values covers every other bare value too.

        Raises:
            PrivacyError: other values passed the door than were declared and charged.
        """
        planned = self.log(client)
        if (log.noisy, log.clipped) != (planned.noisy, planned.clipped) or (log.bare and not planned.bare):
            raise PrivacyError(
                f"{self.algorithm.name} took other values through the door of client {client} than it declared, "
                f"{log} instead of {planned}; take one gradient of each batch of the plan"
            )

    def _settings(self, client: int) -> tuple[float, float]:
        dpsgd = self.channel.dpsgd
        return (0.0, 0.0) if dpsgd is None else (dpsgd.rate(client), dpsgd.noise(client))
