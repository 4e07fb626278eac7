"""What a run is before its first round: settings that passed the checks, the channel, and the noise they need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError
from privfl.federation.availability import Always, Availability, reachable
from privfl.federation.cohorts import (
    Cohort,
    Everyone,
    Selection,
    check_selection,
    earned_rate,
    expected_cohort,
    keeps_its_word,
)
from privfl.federation.fit import check_frozen
from privfl.federation.task import Task
from privfl.models.flat_network import flatten, frozen_parameters
from privfl.privacy.accounting.release import Observer, Unit
from privfl.privacy.channel.channel import ChannelSpec, RunChannel
from privfl.privacy.channel.client_side import check_links
from privfl.privacy.clipping.per_sample import GradSampleMode
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.mechanisms.registry import UPDATE_MECHANISMS
from privfl.privacy.mechanisms.tree import TreeNoise
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.settings import Privacy
from privfl.privacy.sizes.known_sizes import Sizes
from privfl.references import shipped
from privfl.simulation.checks import check_settings, pick_device
from privfl.simulation.held_examples import check_held_examples
from privfl.simulation.listed_rows import check_listed_once, found_in_rows
from privfl.simulation.round_costs import calibrate, planned_gradients, planned_totals, refuse_hopeless
from privfl.simulation.settings import Execution, Schedule

CORRELATED = (BandedNoise, TreeNoise)


@dataclass(frozen=True)
class RunSettings:
    """What a run is asked to be; :func:`~privfl.simulation.simulation.simulate` says what each part means."""

    task: Task
    algorithm: Algorithm
    schedule: Schedule
    training: LocalTraining
    privacy: Privacy
    cohort: Cohort
    availability: Availability
    execution: Execution
    record: tuple[Observer, ...]

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """What a user may have written besides the model: what it is, and the thing itself."""
        privacy = self.privacy
        mechanisms = [privacy.training, *privacy.update, *privacy.statistics, privacy.size]
        return [
            ("loss", self.task.loss),
            ("algorithm", self.algorithm),
            ("plan of batches", self.training),
            *(("mechanism", one) for one in mechanisms if one is not None),
            ("cohort", self.cohort),
            ("availability", self.availability),
            *(("metric", one) for one in self.task.metrics),
        ]


@dataclass(frozen=True)
class Plan(RunSettings):
    """Settings that passed the checks, and what follows from them: nothing here changes while the run goes on.

    The task is on its device, the algorithm knows its run, and :func:`calibrate_noise` replaces a target ε.

    Args:
        channel: what uploads pass; every round makes its own of it.
        way: how per-sample gradients are formed, ``None`` without DP-SGD.
        needs_sizes: clients tell the server their sizes.
        hides_weights: clients weigh their uploads themselves, and only the sum of the weights is opened.
        warnings: what the user should know, one sentence each.
        holders: the parts of one's own that hold arrays, in words; a claim takes these for public.
        in_rows: what only the experimenter may know of the training examples, one sentence each.
        initial: the initial model, [size].
        source: of privacy noise.
    """

    channel: RunChannel
    way: GradSampleMode | None
    needs_sizes: bool
    warnings: list[str]
    hides_weights: bool
    holders: tuple[str, ...]
    in_rows: tuple[str, ...]
    initial: Tensor
    source: NoiseSource

    @property
    def units(self) -> dict[Unit, int]:
        """How many of each unit are protected: all training examples of all clients, and all clients."""
        return {"sample": len(self.task.clients.rows), "client": len(self.task.clients)}

    @property
    def asks_every_round(self) -> bool:
        """Whether clients may answer with their sizes more than once."""
        return self.needs_sizes and self.privacy.size is not None and self.privacy.size.refresh != "once"

    @property
    def noisy(self) -> bool:
        """Whether any mechanism of this run draws from the noise source."""
        answers = self.needs_sizes and self.privacy.size is not None
        reports = any(phase.channel.reports for phase in phases_of(self.algorithm, self.channel.usual))
        doors = self.privacy.training is not None or bool(self.privacy.statistics)
        masks = self.channel.usual.secure is not None
        return doors or masks or self.channel.has_client_level_noise or answers or reports

    @property
    def bound_to_rounds(self) -> str:
        """Why messages may depend on how many rounds are planned, in a few words; empty if they cannot."""
        if self.algorithm.uses_rounds:
            return f"{self.algorithm.name} plans by the number of rounds"
        if self.privacy.training is not None and self.privacy.training.target_epsilon is not None:
            return "the noise of DPSGD was calibrated so that the target_epsilon is spent on these rounds"
        for link in self.privacy.update:
            if type(link) in CORRELATED:
                return f"the noise of {type(link).__name__} is correlated over the rounds that were planned"
            if type(link) not in UPDATE_MECHANISMS.values():
                return f"{type(link).__name__} is not privfl's own, and is told how many rounds are planned"
        return ""

    def available(self, round: int) -> NDArray[np.int64]:
        """The clients that can be reached in ``round``, ascending, each once.

        Raises:
            ConfigError: the availability names nobody, clients that do not exist, or no clients at all.
        """
        return reachable(self.availability, round, len(self.task.clients), self.schedule.seed)

    def select_cohort(
        self, round: int, available: NDArray[np.int64], server: Tensors, sizes: Sizes
    ) -> tuple[Selection, Tensors]:
        """Who of the ``available`` trains in ``round``, and the server's state once it knows their sizes."""
        known = sizes.weights(available) if self.cohort.needs_sizes else np.ones(len(available))
        source = self.source if keeps_its_word(self.cohort) else self.source.apart("cohort")  # all noise comes from it
        drawn = self.cohort.draw(available, round, self.schedule.seed, source, known)
        once = self.channel.has_client_level_noise or self.channel.noise_at_server
        selection = check_selection(drawn, available, once=once)
        server = self.algorithm.begin_round(server, round)
        if not self.needs_sizes:
            return selection, server
        return selection, self._knowing_sizes(server, available, sizes)

    def unlearnt(self, round: int, available: NDArray[np.int64], sizes: Sizes) -> Tensors | None:
        """The state in ``round`` of a server that has learnt nothing from gradients; ``None`` if none may depend on it.

        What the rounds of DP-SGD cost adds up if that was settled before, or follows from sizes that were paid for.
        """
        if self.privacy.training is None or shipped(type(self.algorithm)):
            return None
        server = self.algorithm.begin_round(self.algorithm.start(self.initial.clone()), round)
        return self._knowing_sizes(server, available, sizes) if self.needs_sizes else server

    def _knowing_sizes(self, server: Tensors, available: NDArray[np.int64], sizes: Sizes) -> Tensors:
        contacted = min(1.0, self.cohort.expected(len(available)) / len(available))
        return self.algorithm.with_size_estimate(server, sizes.total(available), contacted)


def prepare(settings: RunSettings) -> Plan:
    """Check ``settings`` and build what all rounds share.

    Raises:
        ConfigError: a setting is impossible.
    """
    task, schedule = settings.task, settings.schedule
    if settings.algorithm.pools_data:
        task = task.pooled()
        settings = replace(settings, cohort=Everyone(), availability=Always())
    device = pick_device(settings.execution.device)
    task = task.to(device)
    context = task.context(schedule.rounds, schedule.seed)
    algorithm = settings.algorithm.bind(context if settings.algorithm.uses_rounds else replace(context, planned=None))
    checked = check_settings(task, algorithm, settings.privacy, settings.cohort, device, settings.execution.precision)
    privacy = settings.privacy
    if privacy.training is not None or privacy.statistics:
        check_listed_once(task.clients)
    key, parts = privacy.noise_key, settings.parts
    settings = replace(settings, task=task, algorithm=algorithm)
    network = task.model(schedule.seed)
    if frozen_parameters(network):
        check_frozen(task.model(0), network)
    initial = flatten(network.to(device))
    channel = _run_channel(checked.channel, settings, initial.numel(), checked.hides_weights)
    for field in channel.fields[:1]:
        like = initial if field.shape is None else initial.new_empty(field.shape)
        check_links(channel.chain, channel.usual.round, like)
    phases = phases_of(algorithm, channel.usual)  # what a survey's channel refuses is refused before any work
    claims = bool(privacy.update) or any(phase.channel.protects for phase in phases)
    holders = check_held_examples(task, parts) if claims else ()
    in_rows = found_in_rows(task) if claims else ()
    refuse_hopeless(privacy.budget, channel.usual)
    return Plan(
        **vars(settings),
        **{**vars(checked), "channel": channel},
        holders=holders,
        in_rows=in_rows,
        initial=initial,
        source=NoiseSource.from_os() if key is None else NoiseSource.from_key(key),
    )


def _run_channel(channel: ChannelSpec, settings: RunSettings, size: int, hides_weights: bool) -> RunChannel:
    """``channel`` with what it must know of this run, whose model has ``size`` parameters."""
    clients, rounds = len(settings.task.clients), settings.schedule.rounds
    known = keeps_its_word(settings.cohort)
    returns = (
        ParticipationPattern.of(settings.cohort, clients, rounds) if known else ParticipationPattern(rounds, 1, rounds)
    )
    for_run = channel.for_run(size, expected_cohort(settings.cohort, clients), returns, hides_weights)
    return replace(for_run, max_upload_norm=settings.schedule.max_upload_norm)


def calibrate_noise(plan: Plan, server: Tensors, sizes: Sizes) -> Plan:
    """``plan`` with the noise multiplier that its rounds need in the place of a target ε.

    ``server`` and ``sizes`` are what the run begins with, or has come to.

    Raises:
        ConfigError: the target cannot be reached, or the rates are not known before training.
    """
    dpsgd, rounds = plan.privacy.training, plan.schedule.rounds
    if dpsgd is None or dpsgd.target_epsilon is None:
        return plan
    if plan.asks_every_round:
        raise ConfigError("target_epsilon needs sampling rates known before training; use refresh = 'once'")
    gradients: list[Counter[float]] = [Counter() for _ in range(len(plan.task.clients))]
    for round in range(rounds):
        selection, informed = plan.select_cohort(round, plan.available(round), server, sizes)
        received = plan.algorithm.broadcast(informed)
        for client in selection.clients.tolist():
            rate, count = planned_gradients(plan.algorithm, plan.training, dpsgd, client, received)
            gradients[client][rate] += count
    besides = sizes.cost if plan.needs_sizes or plan.hides_weights else None
    totals = planned_totals(phases_of(plan.algorithm, plan.channel.usual), rounds)
    return with_training(
        plan, calibrate(dpsgd, gradients, besides, plan.privacy.target_delta, totals, plan.units["sample"])
    )


def with_training(plan: Plan, dpsgd: DPSGD) -> Plan:
    """``plan`` with ``dpsgd`` at the door."""
    privacy = replace(plan.privacy, training=dpsgd)
    channel = ChannelSpec.of(
        privacy.update, plan.algorithm.fields(), dpsgd, earned_rate(plan.cohort), privacy.statistics
    )
    return replace(plan, privacy=privacy, channel=_run_channel(channel, plan, plan.initial.numel(), plan.hides_weights))
