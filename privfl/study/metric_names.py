"""Which figures the runs of a study will have, known before any is trained: a misspelt metric costs no night."""

from __future__ import annotations

from collections.abc import Sequence

from privfl.engine.loop import LoopEngine
from privfl.errors import unknown
from privfl.experiment import Experiment
from privfl.simulation.evaluation import evaluate
from privfl.simulation.plan import prepare
from privfl.simulation.state import State
from privfl.study.members import Resolved, settings_of
from privfl.study.results import JUDGED_BY, LIKENESS
from privfl.study.store import CELLS

OF_ALL = (
    *(f"epsilon {cell}" for cell in CELLS),
    *("delta", "rounds", "seconds", "dropped", "noise_multiplier", "bytes_received", "bytes_sent"),
)
"""Figures that every run may have, whatever it trains."""
EXAMINED = ("attack ", "audit ")
"""What figures of attacks and audits begin with: their names are known when they have been carried out."""


def headline_of(resolved: Sequence[Resolved]) -> str:
    """The metric by which models of the study's kind of task are compared: that of the first run that is possible."""
    for one in resolved:
        if not one.problem and one.experiment is not None:
            return one.experiment.task().headline.name
    return "accuracy"


def check_metric(metric: str, resolved: Sequence[Resolved]) -> None:
    """Refuse a ``metric`` that no run of the study will have; runs that are impossible are left out.

    The first run's initial model is evaluated for it, and further methods' ones where that has no such figure.

    Raises:
        ConfigError: naming the nearest one.
    """
    if metric in OF_ALL or metric.startswith(EXAMINED):
        return
    known: set[str] = set()
    methods: set[str] = set()
    for one in resolved:
        if one.problem or one.experiment is None or one.point.method in methods:
            continue
        methods.add(one.point.method)
        found = figures_of(one.experiment)
        if found & {metric, *(prefix + metric for prefix in JUDGED_BY)}:
            return
        known |= found
    if known:
        raise unknown("metric", metric, known | set(OF_ALL), LIKENESS)


def figures_of(experiment: Experiment) -> set[str]:
    """The names of the figures of an evaluation, those of the initial model."""
    plan = prepare(settings_of(experiment, experiment.task()))
    state = State.start(plan)
    with LoopEngine(
        plan.task,
        plan.algorithm,
        plan.training,
        plan.channel.usual,
        way=plan.way,
        workers=plan.execution.workers,
        precision=plan.execution.precision,
    ) as engine:
        found = evaluate(plan.task, plan.algorithm, engine, state.server, state.client_state)
    return set(found) | set(plan.algorithm.server_metrics(state.server))
