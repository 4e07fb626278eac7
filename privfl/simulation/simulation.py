"""The round loop: one federation, from the initial model to its statement."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privfl.algorithms.base import Algorithm, Tensors
from privfl.description import describe
from privfl.engine.choice import Choice, Engine, choose
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import Phase
from privfl.errors import ConfigError
from privfl.federation.availability import Always, Availability
from privfl.federation.cohorts import Cohort, Everyone, Selection
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Observer
from privfl.privacy.accounting.tracker import EpsilonTracker
from privfl.privacy.channel.channel import ChannelSpec, RunChannel
from privfl.privacy.clipping.per_sample import GradSampleMode
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.settings import Privacy
from privfl.privacy.sizes.known_sizes import SIZE, SIZE_RESPONSE, Sizes
from privfl.privacy.sizes.responses import SizeResponses
from privfl.simulation.caveats import caveats
from privfl.simulation.checks import check_settings, pick_device
from privfl.simulation.evaluation import evaluate, storable
from privfl.simulation.recorder import Recorder, public_facts, recorded_observers
from privfl.simulation.result import Run
from privfl.simulation.round_costs import (
    RoundCosts,
    calibrate,
    exceeds,
    planned_gradients,
    planned_totals,
    refuse_hopeless,
)
from privfl.simulation.rounds import Moment, aggregate, collect, phases_of
from privfl.simulation.run_directory import (
    Checkpoint,
    Metrics,
    RunDirectory,
    fingerprint,
    split_state,
    state_tensors,
    write_whole,
)
from privfl.simulation.settings import Execution, Schedule
from privfl.validation import checked

SETTINGS = ("algorithm", "training", "privacy", "cohort", "availability", "record")
Callback = Callable[["Simulation", Metrics], None]
"""Called after every round with the simulation and the round's metrics; the progress bar is one."""


@checked
def simulate(
    task: Task,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int = 0,
    evaluate_every: int = 1,
    training: LocalTraining | None = None,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    availability: Availability | None = None,
    execution: Execution | None = None,
    record: bool | Observer | Sequence[Observer] = False,
    out: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Train ``algorithm`` on ``task`` for ``rounds`` rounds and say what may be claimed.

    Args:
        rounds, seed, evaluate_every: the :class:`~privfl.simulation.settings.Schedule`.
        training: local SGD; default :class:`LocalTraining`.
        privacy: mechanisms; the default is none, and then every cell of the statement is ∞.
        cohort: who trains in a round; default everyone who can be reached.
        availability: who can be reached; default everyone, always.
        execution: device, engine, precision, workers, checkpoints; see :class:`~privfl.simulation.settings.Execution`.
        record: whose view of the run is kept as its transcript: ``"server"``, ``"public"``, both (true) or nobody's.
        out: run directory; ``None`` keeps everything in memory.
        resume: go on with an interrupted run in ``out``.
        callbacks: called after every round with the simulation and the round's metrics.
        settings: what ``config.toml`` records; default a description of the arguments.

    Raises:
        ConfigError: a setting is impossible; nothing has been trained or sent then.
    """
    simulation = Simulation(
        task=task,
        algorithm=algorithm,
        schedule=Schedule(rounds, seed, evaluate_every),
        training=training or LocalTraining(),
        privacy=privacy or Privacy(),
        cohort=cohort or Everyone(),
        availability=availability or Always(),
        execution=execution or Execution(),
        directory=None if out is None else RunDirectory(Path(out)),
        callbacks=tuple(callbacks),
        record=recorded_observers(record),
    )
    return simulation.run(dict(settings) if settings is not None else None, resume)


@dataclass
class Simulation:
    """One run in flight; :func:`simulate` is the way to start one."""

    task: Task
    algorithm: Algorithm
    schedule: Schedule
    training: LocalTraining
    privacy: Privacy
    cohort: Cohort
    availability: Availability
    execution: Execution
    directory: RunDirectory | None
    callbacks: tuple[Callback, ...]
    record: tuple[Observer, ...]
    round: int = 0
    server: Tensors = field(default_factory=dict)
    kept: dict[int, Tensors] = field(default_factory=dict)
    metrics: list[Metrics] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    stopped: Literal["finished", "budget"] = "finished"

    def run(self, settings: dict[str, Any] | None, resume: bool) -> Run:
        """Prepare, train, conclude."""
        settings = settings or {
            "task": self.task.describe(),
            **{name: describe(getattr(self, name)) for name in SETTINGS},
            **vars(self.schedule),
            "precision": self.execution.precision,
        }
        if self.algorithm.pools_data:
            self.task = self.task.pooled()
            self.cohort, self.availability = Everyone(), Always()
        self.device = pick_device(self.execution.device)
        self.task = self.task.to(self.device)
        self.dpsgd = self.privacy.training
        way = self.prepare()
        key = self.privacy.noise_key
        self.source = NoiseSource.from_os() if key is None else NoiseSource.from_key(key)
        if self.directory is not None:
            checkpoint = self.directory.begin(settings, fingerprint(settings), resume=resume)
            self.source = NoiseSource(self.directory.noise_key(self.source.key), self.source.reproducible)
            if checkpoint is not None:
                self.restore(checkpoint)
        if (self.needs_sizes or self.sizes.hidden) and self.round == 0:
            self.sizes.begin(self.source)
        self.fix_noise()
        self.recorder = self.start_recorder()
        with LoopEngine(
            self.task,
            self.algorithm,
            self.training,
            self.channel.usual,
            way=way,
            workers=self.execution.workers,
            precision=self.execution.precision,
        ) as loop:
            self.engine = self.pick_engine(loop, way)
            self.train()
            return self.conclude()

    def pick_engine(self, loop: LoopEngine, way: GradSampleMode | None) -> Engine:
        """The engine that was asked for or measured to be fastest; a resumed run keeps the one it began with."""
        recorded = None if self.directory is None else self.directory.read_json("engine.json")
        if recorded is None:
            received = self.algorithm.broadcast(self.algorithm.turn(self.server, self.round))
            cohort = math.ceil(self.cohort.expected(len(self.task.clients)))
            choice = choose(self.execution.engine, loop, way, received, cohort=cohort, rounds=self.schedule.rounds)
        else:
            choice = Choice(**recorded)
        if choice.refused:
            self.warnings.append(choice.reason)
        if self.directory is not None:
            self.directory.write_json("engine.json", choice.to_dict())
        return choice.build(loop, way)

    def prepare(self) -> GradSampleMode | None:
        """Check the settings and build what the rounds need; returns how per-sample gradients are formed."""
        self.algorithm = self.algorithm.on(self.task.setting(self.schedule.rounds, self.schedule.seed))
        checked = check_settings(self.task, self.algorithm, self.privacy, self.cohort, self.device)
        self.needs_sizes, self.hides_weights = checked.needs_sizes, checked.hides_weights
        self.warnings += checked.warnings
        parameters = flatten(self.task.model(self.schedule.seed).to(self.device))
        self.channel = self.for_this_run(checked.channel, parameters.numel())
        phases_of(self.algorithm, self.channel.usual)  # what a survey's channel refuses is refused before any work
        refuse_hopeless(self.privacy.budget, self.channel.usual)
        self.server = self.algorithm.start(parameters)
        self.keep_accounts(Ledger(len(self.task.clients), ("update", SIZE, SIZE_RESPONSE)))
        return checked.way

    def for_this_run(self, channel: ChannelSpec, size: int) -> RunChannel:
        """``channel`` with what it must know of this run, whose model has ``size`` parameters."""
        returns = ParticipationPattern.of(self.cohort, clients := len(self.task.clients), self.schedule.rounds)
        return channel.for_run(size, self.cohort.expected(clients), returns, self.hides_weights)

    def keep_accounts(self, ledger: Ledger) -> None:
        """Write to ``ledger`` from now on."""
        self.ledger = ledger
        self.tracker = EpsilonTracker(ledger, self.privacy.target_delta)
        self.sizes = Sizes(self.task.clients.sizes, self.privacy.size, ledger, hidden=self.hides_weights)

    def start_recorder(self) -> Recorder:
        """What writes the transcript, from the current round on."""
        privacy = replace(self.privacy, training=self.dpsgd)
        facts = public_facts(
            self.task, self.algorithm, self.training, privacy, self.cohort, self.availability, self.schedule.rounds
        )
        folder = None if self.directory is None else self.directory.path
        return Recorder(self.record, facts, folder, self.round, self.task)

    @property
    def refreshes(self) -> bool:
        """Whether clients answer with their sizes more than once."""
        return self.privacy.size is not None and self.privacy.size.refresh != "once"

    def fix_noise(self) -> None:
        """Turn a target ε into the noise multiplier that the planned rounds need."""
        if self.dpsgd is None or self.dpsgd.target_epsilon is None:
            return
        if self.needs_sizes and self.refreshes:
            raise ConfigError("target_epsilon needs sampling rates known before training; use refresh = 'once'")
        gradients: list[Counter[float]] = [Counter() for _ in range(len(self.task.clients))]
        for selection, server in map(self.meet, range(self.schedule.rounds)):
            received = self.algorithm.broadcast(server)
            for client in selection.clients.tolist():
                rate, count = planned_gradients(self.algorithm, self.training, self.dpsgd, client, received)
                gradients[client][rate] += count
        besides = self.sizes.cost if self.needs_sizes or self.sizes.hidden else None
        totals = planned_totals(phases_of(self.algorithm, self.channel.usual), self.schedule.rounds)
        self.dpsgd = calibrate(self.dpsgd, gradients, besides, self.privacy.target_delta, totals)
        channel = ChannelSpec.of(
            self.privacy.update, self.algorithm.fields(), self.dpsgd, self.cohort.rate, self.privacy.statistics
        )
        self.channel = self.for_this_run(channel, self.channel.size)

    def meet(self, round: int) -> tuple[Selection, Tensors]:
        """Who trains in ``round``, and the server's state once it knows the sizes of those who could."""
        available = self.availability.active(round, len(self.task.clients), self.schedule.seed)
        known = self.sizes.weights(available) if self.cohort.needs_sizes else np.ones(len(available))
        selection = self.cohort.draw(available, round, self.schedule.seed, self.source, known)
        server = self.algorithm.turn(self.server, round)
        if not self.needs_sizes:
            return selection, server
        contacted = min(1.0, self.cohort.expected(len(available)) / len(available))
        return selection, self.algorithm.sized(server, self.sizes.total(available), contacted)

    def train(self) -> None:
        """Run the remaining rounds, within the budget."""
        saved = time.monotonic()
        while self.round < self.schedule.rounds:
            began = time.perf_counter()
            if not self.train_round():
                self.stopped = "budget"
                break
            line = self.metrics[-1]
            if self.directory is not None:
                self.directory.append("metrics.jsonl", line)
                self.directory.append("timing.jsonl", {"round": line["round"], "seconds": time.perf_counter() - began})
                if time.monotonic() - saved >= self.execution.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
            for callback in self.callbacks:
                callback(self, line)

    def train_round(self) -> bool:
        """One round; False if it would exceed the budget, and then nothing has happened."""
        round, budget = self.round, self.privacy.budget
        available = self.availability.active(round, len(self.task.clients), self.schedule.seed)
        if self.needs_sizes and self.refreshes:
            if exceeds(budget, self.tracker, [(self.sizes.cost, self.sizes.due(round, available), 1)], round):
                return False
            self.sizes.ask(round, available, self.source)
        selection, server = self.meet(round)
        phases = phases_of(self.algorithm, self.channel.in_round(round, len(selection.clients), server))
        sends = any(phase.channel.fields for phase in phases)
        priced = [(phase, self.costs_of(phase, server, sends)) for phase in phases]
        planned = [cost for _, costs in priced for cost in costs.of(selection.clients, available)]
        if exceeds(budget, self.tracker, planned, round):
            return False
        everyone = np.arange(len(self.task.clients))
        samples = self.sizes.total(everyone) if self.needs_sizes else None
        weight = self.cohort.expected(len(available))
        asked = int(selection.times.sum())
        moment = Moment(round, self.schedule.seed, self.source, weight, len(everyone), asked, samples, self.recorder)
        problems: Counter[str] = Counter()
        for phase, costs in priced:
            sums = collect(phase, self.engine, selection, server, self.kept, self.sizes, costs, moment)
            server = aggregate(phase, sums, server, costs, moment)
            selection = selection.among(sums.members)
            problems += sums.problems
        for release, clients, count in planned:
            self.ledger.record(release, clients, count)
        self.server = server
        sent = self.sizes.sent(round) if self.needs_sizes else {}
        self.recorder.close(round, lambda: self.algorithm.evaluated(server), sent)
        self.dropped.update(problems)
        self.round += 1
        self.metrics.append(self.measure(round, len(sums.members), problems))
        return True

    def costs_of(self, phase: Phase, server: Tensors, sends: bool) -> RoundCosts:
        """What the uploads of ``phase`` cost."""
        training = self.training.in_round(self.round)
        return RoundCosts(phase.algorithm, training, phase.channel, phase.algorithm.broadcast(server), sends=sends)

    def measure(self, round: int, arrived: int, problems: Counter[str]) -> Metrics:
        """The metrics line of a finished round."""
        line: Metrics = {"round": round, "clients": arrived}
        if problems:
            line["dropped"] = dict(problems)
        line |= storable(self.algorithm.measures(self.server))
        if (round + 1) % self.schedule.evaluate_every == 0 or round + 1 == self.schedule.rounds:
            line |= storable(evaluate(self.task, self.algorithm, self.engine, self.server, self.kept))
        line["epsilon"] = self.tracker.so_far()
        return line

    def save(self) -> None:
        """Write a checkpoint: everything that the next round depends on."""
        assert self.directory is not None
        meta = {
            "ledger": self.ledger.state(),
            "responses": self.sizes.responses.state(),
            "metrics": self.metrics,
            "dropped": dict(self.dropped),
        }
        self.directory.save(Checkpoint(self.round, state_tensors(self.server, self.kept), meta))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.round = checkpoint.round
        self.server, self.kept = split_state(checkpoint.tensors, self.device)
        self.keep_accounts(Ledger.from_state(checkpoint.meta["ledger"]))
        self.sizes.restore(SizeResponses.from_state(checkpoint.meta["responses"]))
        self.metrics = checkpoint.meta["metrics"]
        self.dropped = Counter(checkpoint.meta["dropped"])

    def conclude(self) -> Run:
        """The statement, the summary, and an end to the noise key."""
        statement = make_statement(
            self.ledger,
            self.privacy.target_delta,
            reproducible_noise=self.source.reproducible and self.noisy,
            caveats=caveats(self.task, self.algorithm, self.server, self.privacy, self.channel),
        )
        last = next((line for line in reversed(self.metrics) if "test_accuracy" in line), {})
        summary = {
            "algorithm": self.algorithm.name,
            "dataset": self.task.name,
            "model": self.task.model_name,
            "clients": len(self.task.clients),
            "rounds": self.round,
            "stopped": self.stopped,
            **{name: value for name, value in last.items() if name.startswith("test_")},
            "dropped": dict(self.dropped),
            "noise_multiplier": None if self.dpsgd is None else self.dpsgd.noise_multiplier,
            "warnings": self.warnings + self.engine.notes + self.recorder.notes + self.algorithm.warnings(self.server),
        }
        if self.directory is not None:
            self.save()
            write_whole(self.directory.path / "statement.json", statement.to_json().encode())
            self.directory.write_json("summary.json", summary)
            self.directory.erase_key()
        path = None if self.directory is None else self.directory.path
        final, seen = self.algorithm.evaluated(self.server), self.recorder.transcript()
        return Run(final, self.metrics, statement, summary, path, self.algorithm, self.server, self.kept, seen)

    @property
    def noisy(self) -> bool:
        """Whether any mechanism of this run draws from the noise source."""
        answers = self.needs_sizes and self.privacy.size is not None
        reports = any(phase.channel.reports for phase in phases_of(self.algorithm, self.channel.usual))
        return self.dpsgd is not None or self.channel.has_client_level_noise or answers or reports
