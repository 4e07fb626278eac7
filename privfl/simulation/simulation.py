"""A run: prepared, then round by round from the initial model to its statement."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from privfl.algorithms.base import Algorithm, Round, Tensors, Weighting
from privfl.engine.aggregation import CohortSums
from privfl.engine.choice import Choice, Engine, choose
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError, DataError
from privfl.federation.availability import Always, Availability
from privfl.federation.cohorts import Cohort, Everyone
from privfl.federation.task import Task
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.release import Observer
from privfl.privacy.accounting.statement import Statement
from privfl.privacy.accounting.tracker import EpsilonTracker
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.settings import Privacy
from privfl.simulation.callbacks import Callback, stop_warning, tell
from privfl.simulation.caveats import adversary, assumptions, caveats
from privfl.simulation.checkpoint import Checkpoint
from privfl.simulation.evaluation import evaluate, storable
from privfl.simulation.extension import extend, go_on, reopen
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.health import broken_clients, conclusions, kept_warning, not_finite
from privfl.simulation.plan import Plan, RunSettings, calibrate_noise, prepare, with_training
from privfl.simulation.ray_engine import RayEngine, RayWorkers, ray_workers
from privfl.simulation.recorder import Recorder, public_facts, recorded_observers
from privfl.simulation.repeated_rounds import RepeatedRounds
from privfl.simulation.result import Run
from privfl.simulation.round_costs import exceeds
from privfl.simulation.rounds import ServerContext, aggregate, collect, prices
from privfl.simulation.run_directory import Metrics, RunDirectory
from privfl.simulation.settings import Execution, RunConfig, Schedule
from privfl.simulation.shared_state import shared_state
from privfl.simulation.state import State
from privfl.validation import checked

ENGINE = "engine.json"
"""Which engine a run began with; it decides how its messages are rounded."""


@checked
def simulate(
    task: Task,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int = 0,
    evaluate_every: int = 1,
    max_upload_norm: float = 1e12,
    weighting: Weighting | None = None,
    training: LocalTraining | None = None,
    privacy: Privacy | None = None,
    cohort: Cohort | None = None,
    availability: Availability | None = None,
    execution: Execution | None = None,
    record: bool | Observer | Sequence[Observer] = False,
    out: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train ``algorithm`` on ``task`` for ``rounds`` rounds and say what may be claimed.

    Args:
        rounds, seed, evaluate_every, max_upload_norm: the :class:`~privfl.simulation.settings.Schedule`.
        weighting: how clients count in a mean, ``"size"`` or ``"uniform"``, for every algorithm that averages; by
            default what ``algorithm`` itself says, else by size.
        training: local SGD; default :class:`LocalTraining`.
        privacy: mechanisms; the default is none, and then every cell of the statement is ∞.
        cohort: who trains in a round; default everyone who can be reached.
        availability: who can be reached; default everyone, always.
        execution: device, engine, precision, workers, checkpoints; see :class:`~privfl.simulation.settings.Execution`.
        record: whose view of the run is kept as its transcript: ``"server"``, ``"public"``, both (true) or nobody's.
        out: run directory; ``None`` keeps everything in memory.
        resume: go on with an interrupted run in ``out``, or with one that has ended for more ``rounds``.
        callbacks: called after every round with the simulation and its metrics; ``StopIteration`` ends the run there.

    Raises:
        ConfigError: a setting is impossible; nothing has been trained or sent then.
    """
    if resume and out is None:
        raise ConfigError("resume is True and out is None; give out=, the folder of the run that is to go on")
    asked = RunSettings(
        task=task,
        algorithm=algorithm.following(weighting),
        schedule=Schedule(rounds, seed, evaluate_every, max_upload_norm),
        training=training or LocalTraining(),
        privacy=privacy or Privacy(),
        cohort=cohort or Everyone(),
        availability=availability or Always(),
        execution=execution or Execution(),
        record=recorded_observers(record),
    )
    directory = None if out is None else RunDirectory(Path(out))
    plan = prepare(asked)
    with ray_workers(plan) as cluster, nullcontext() if directory is None else directory.held():
        return _simulate(asked, plan, directory, callbacks, cluster, resume=resume)


def _simulate(
    asked: RunSettings,
    plan: Plan,
    directory: RunDirectory | None,
    callbacks: Sequence[Callback],
    cluster: RayWorkers | None,
    *,
    resume: bool,
) -> Run:
    plan, checkpoint = begin(asked, plan, directory, resume=resume)
    state = State.start(plan) if checkpoint is None else State.load(checkpoint, plan)
    reopen(plan, state, directory)
    if (plan.needs_sizes or plan.hides_weights) and state.round == 0:
        state.sizes.begin(plan.source)
    plan = calibrate(plan, state, directory)
    with LoopEngine(
        plan.task,
        plan.algorithm,
        plan.training,
        plan.channel.usual,
        way=plan.way,
        workers=workers(plan, directory),
        precision=plan.execution.precision,
        deterministic=plan.execution.deterministic,
    ) as loop:
        done = run(plan, state, pick_engine(plan, state, loop, directory, cluster), directory, callbacks)
        return replace(done, asked=asked)


def begin(
    asked: RunSettings, plan: Plan, directory: RunDirectory | None, *, resume: bool, policy: str = ""
) -> tuple[Plan, Checkpoint | None]:
    """``plan`` with the noise of this very run, of this ``policy``, and where the run in ``directory`` stands.

    A key from the operating system that nobody stores serves one run alone, whatever the fingerprint.
    """
    if directory is None and not plan.source.reproducible:
        return plan, None
    fingerprint = Fingerprint.of(asked, plan, fresh=directory is not None and directory.begun, policy=policy)
    checkpoint, source = None, plan.source
    if directory is not None:
        if directory.begun and directory.sent and not (directory.path / ENGINE).exists():
            raise DataError(
                f"{directory.path} holds no {ENGINE}, so nobody can tell how its rounds were computed; restore it, or "
                "start anew with another --out"
            )
        settings = {name: part for name, part in vars(asked).items() if name != "task"}
        config = RunConfig(**settings).for_task(asked.task).to_dict()
        if resume and directory.begun:
            extend(directory, config, fingerprint, source, plan)
        began = directory.begun
        checkpoint, source = directory.begin(config, fingerprint, source, noisy=plan.noisy, resume=resume)
        if not began:
            fingerprint.warn(directory.path)
        if checkpoint is not None and checkpoint.round == 0:  # before that round clients may be asked for their sizes
            go_on(directory, ())
    return replace(plan, source=source.for_run(fingerprint.digest)), checkpoint


def calibrate(plan: Plan, state: State, directory: RunDirectory | None) -> Plan:
    """``plan`` with the noise multiplier for its target ε; one that came to its end keeps what it had."""
    dpsgd = plan.privacy.training
    if dpsgd is None or dpsgd.target_epsilon is None or directory is None or not directory.finished:
        return calibrate_noise(plan, state.server, state.sizes)
    had = (directory.read_json("summary.json") or {})["noise_multiplier"]
    noise = tuple(had) if isinstance(had, list) else had
    return with_training(plan, replace(dpsgd, target_epsilon=None, noise_multiplier=noise))


def workers(plan: Plan, directory: RunDirectory | None) -> int | None:
    """How many clients train side by side; where that decides the rounding of messages, a run keeps what it had."""
    recorded = None if directory is None else directory.read_json(ENGINE)
    if recorded is None or recorded["chunk"] is None:
        return plan.execution.workers
    had: int | None = recorded.get("workers", plan.execution.workers)
    return had


def pick_engine(
    plan: Plan, state: State, loop: LoopEngine, directory: RunDirectory | None, cluster: RayWorkers | None = None
) -> Engine | RayEngine:
    """The engine that was asked for or measured to be fastest; a resumed run keeps the one it began with.

    The loop and Ray's workers give the same bits, and so do stacks on Ray and in one process: so of those two whichever
    is asked for goes on, divided as it was.
    """
    recorded = None if directory is None else directory.read_json(ENGINE)
    parts = loop.workers if cluster is None else len(cluster.there)
    if recorded is not None:
        choice = Choice(**{name: value for name, value in recorded.items() if name != "workers"})
        parts = recorded.get("workers", parts)
    else:
        wanted = plan.execution.engine if cluster is None else plan.execution.inside
        received = plan.algorithm.broadcast(plan.algorithm.begin_round(state.server, state.round))
        cohort = math.ceil(plan.cohort.expected(len(plan.task.clients)))
        choice = choose(wanted, loop, plan.way, received, cohort=cohort, rounds=plan.schedule.rounds)
        if cluster is not None and choice.chunk is not None:
            choice = replace(choice, chunk=math.ceil(min(choice.chunk * loop.workers, cohort) / parts))
    if cluster is not None:
        choice = replace(choice, engine="ray")
        if choice.refused:
            cluster.notes.append(choice.reason)
    if directory is not None:
        directory.write_json(ENGINE, {**choice.to_dict(), "workers": parts})
    return choice.build(loop, plan.way) if cluster is None else RayEngine(loop, cluster, choice.chunk, parts)


def run(
    plan: Plan,
    state: State,
    engine: Engine | RayEngine,
    directory: RunDirectory | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run the rounds of ``plan`` that ``state`` has not seen yet, within the budget, and conclude."""
    path = None if directory is None else directory.path
    tracker = EpsilonTracker(state.ledger, plan.privacy.target_delta, plan.units)
    budget, sizes, everyone = plan.privacy.budget, state.sizes, np.arange(len(plan.task.clients))
    statement: Statement | None = None
    ended = directory is not None and directory.finished
    saved, repeated = time.monotonic(), RepeatedRounds(directory, noisy=plan.noisy and not ended)
    recorder = Recorder(plan.record, public_facts(plan), directory, state.round, plan.task)
    while state.round < plan.schedule.rounds and not ended:
        began, round = time.perf_counter(), state.round
        available = plan.available(round)
        if plan.asks_every_round:
            if exceeds(budget, tracker, [(sizes.cost, sizes.owing(round, available), 1)], round):
                break
            go_on(directory, state.metrics)
            sizes.ask(round, available, plan.source)
        selection, server = plan.select_cohort(round, available, state.server, sizes)

        # What the round will cost is known before anybody trains: a round beyond the budget does not take place.
        phases = phases_of(plan.algorithm, plan.channel.in_round(round, len(selection.clients), server))
        priced = prices(plan, phases, server, plan.unlearnt(round, available, sizes))
        planned = [cost for costs in priced for cost in costs.of(selection.clients, available)]
        if exceeds(budget, tracker, planned, round):
            break

        expected = plan.cohort.expected(len(available))
        facts = Round(
            weight=expected,
            cohort=expected if plan.channel.amplified else int(selection.multiplicity.sum()),
            clients=len(everyone),
            samples=sizes.total(everyone) if plan.needs_sizes else None,
            number=round,
        )
        context = ServerContext(
            round, plan.schedule.seed, plan.source, state.client_state, engine, recorder, sizes, facts, plan.task
        )
        asked, arrived = len(selection.clients), []
        go_on(directory, state.metrics)
        for costs in priced:
            sums = collect(costs, selection, server, context)
            server = aggregate(costs, sums, server, context)
            selection = selection.among(sums.members)
            arrived.append(sums)
        problems = sum((sums.problems for sums in arrived), Counter())
        for release, clients, count in planned:
            state.ledger.record(release, clients, count)
        if shared := [part for sums in arrived for part in sums.shared]:
            state.ledger.record(shared_state(shared), None)
        for release in repeated.releases(round, server, engine):
            state.ledger.record(release, None)
        watch(plan, state, asked, arrived, server, path)
        state.server, state.round = server, round + 1
        state.dropped.update(problems)
        recorder.close(
            round, lambda: plan.algorithm.eval_parameters(state.server), sizes.sent(round) if plan.needs_sizes else {}
        )

        told = asked if conceals(plan) and not sums.aborted else len(sums.members)
        line = measure(plan, state, engine, told, problems)
        if state.round == plan.schedule.rounds:
            statement = claim(plan, state)
        line["epsilon"] = _publishable(plan, tracker.so_far() if statement is None else statement.finite())
        state.metrics.append(line)
        if directory is not None:
            directory.append("metrics.jsonl", line)
            directory.append("timing.jsonl", {"round": round, "seconds": time.perf_counter() - began})
            if time.monotonic() - saved >= plan.execution.checkpoint_seconds:
                directory.save(state.checkpoint())
                saved = time.monotonic()
        tell(callbacks, plan, state, engine, path)
        if state.stopped:
            break
    return conclude(plan, state, engine, recorder, directory, statement or claim(plan, state))


def watch(
    plan: Plan, state: State, asked: int, arrived: Sequence[CohortSums], server: Tensors, path: Path | None
) -> None:
    """Count what went wrong in a round that turns ``state.server`` into ``server``, and warn of what is new."""
    health, where = state.health, f"round {state.round}" if path is None else f"{path}, round {state.round}"
    failed, keeps = health.failed, bool(plan.algorithm.keeps)
    said = health.count(asked, arrived, state.server, server, keeps)
    health.tell(where, "round" if health.failed > failed else "upload", said)
    if names := not_finite(server, state.server):
        health.tell(where, "model", f"{', '.join(names)} of the server's state is not finite")
    if keeps:
        health.tell(where, "kept", kept_warning(broken_clients(state.client_state, arrived[-1].members)))


def measure(plan: Plan, state: State, engine: Engine | RayEngine, arrived: int, problems: Counter[str]) -> Metrics:
    """The metrics of the round that has just ended, in which ``arrived`` uploads could be used; ε is yet to come.

    How many arrived is left out where the claim rests on a secret draw of the cohort. Where noise covers what clients
    send it is how many were asked, unless a secure sum was given up, and nobody is said to be missing.
    """
    line: Metrics = {"round": state.round - 1}
    if not plan.channel.amplified:
        line |= {"clients": arrived, **({"dropped": dict(problems)} if problems and not conceals(plan) else {})}
    line |= storable(plan.algorithm.server_metrics(state.server))
    if state.round % plan.schedule.evaluate_every == 0 or state.round == plan.schedule.rounds:
        line |= storable(evaluate(plan.task, plan.algorithm, engine, state.server, state.client_state, engine.notes))
    return line


def conceals(plan: Plan) -> bool:
    """Whether how many uploads could not be used is for whoever runs the experiment alone."""
    return any(phase.channel.hides_failures for phase in phases_of(plan.algorithm, plan.channel.usual))


def _publishable(plan: Plan, epsilon: dict[str, float]) -> dict[str, float]:
    """``epsilon`` of all cells, or of those that do not tell who was drawn where that has to stay secret."""
    return {cell: value for cell, value in epsilon.items() if not plan.channel.amplified or cell == "client/public"}


def claim(plan: Plan, state: State) -> Statement:
    """What may be claimed for the rounds that ``state`` has seen."""
    return make_statement(
        state.ledger,
        plan.privacy.target_delta,
        reproducible_noise=plan.source.reproducible and plan.noisy,
        caveats=caveats(plan, state.server),
        public=assumptions(plan.task, plan.holders),
        server=adversary(plan.channel),
        units=plan.units,
    )


def conclude(
    plan: Plan,
    state: State,
    engine: Engine | RayEngine,
    recorder: Recorder,
    directory: RunDirectory | None,
    statement: Statement,
) -> Run:
    """The summary, the statement, whose ε the last line of metrics ends with, and an end to the noise key."""
    task, algorithm, privacy = plan.task, plan.algorithm, plan.privacy
    claimed = _publishable(plan, statement.finite())
    if state.metrics and state.metrics[-1]["epsilon"] != claimed:  # nobody knew that it was the last
        state.metrics[-1] = {**state.metrics[-1], "epsilon": claimed}
    last = next((line for line in reversed(state.metrics) if "test_loss" in line), {})
    counted = state.health.warnings(state.dropped)
    odd, diverged = conclusions(state.server, algorithm.start(plan.initial), state.client_state, algorithm.ensemble)
    state.ended, state.failure = True, (failure := state.health.failure(state.dropped) or diverged)
    state.health.tell(str(directory.path) if directory is not None else algorithm.name, "failure", failure)
    # What only the experimenter may know stays out of what others read.
    seen_anyway = not (plan.channel.amplified or conceals(plan))
    private = [*counted, *filter(None, [odd])]
    warnings = [
        *(plan.warnings + engine.notes + recorder.notes + algorithm.warnings(state.server)),
        *(one for one in statement.caveats if one.startswith("delta = ")),
        *stop_warning(plan, state),
    ]
    summary = {
        "algorithm": algorithm.name,
        "dataset": task.name,
        "model": task.model_name,
        "clients": len(task.clients),
        "rounds": state.round,
        "stopped": "callback" if state.stopped else "finished" if state.round == plan.schedule.rounds else "budget",
        "headline": {"name": task.headline.test, "higher_is_better": task.headline.higher_is_better},
        **{name: value for name, value in last.items() if name.startswith("test_")},
        "dropped": dict(state.dropped) if seen_anyway else {},
        "noise_multiplier": None if privacy.training is None else privacy.training.noise_multiplier,
        "warnings": warnings + (private if seen_anyway else []),
        **({"failure": failure} if seen_anyway else {}),
    }
    if directory is not None:
        go_on(directory, state.metrics)
        directory.end(state.checkpoint(), state.metrics, statement, summary)
    path = None if directory is None else directory.path
    final, seen = algorithm.eval_parameters(state.server), recorder.transcript()
    states = state.server, state.client_state
    told = (*warnings, *private, *plan.in_rows)
    return Run(final, state.metrics, statement, summary, path, algorithm, *states, seen, told, failure, state.ledger)
