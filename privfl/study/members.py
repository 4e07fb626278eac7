"""The runs of a study, resolved: which experiment each one is, by which name it is stored, and whether it can be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from privfl.errors import PrivflError
from privfl.experiment import Experiment
from privfl.federation.task import Task
from privfl.references import imported, references_in
from privfl.simulation.fingerprint import INDIFFERENT
from privfl.simulation.identity import Identity
from privfl.simulation.plan import RunSettings, calibrate_noise, prepare
from privfl.simulation.recorder import recorded_observers
from privfl.simulation.state import State
from privfl.study.axes import Point
from privfl.study.store import Member
from privfl.study.store import State as Progress


@dataclass(frozen=True)
class Resolved:
    """One run of a study: its experiment and the name of its directory, or why there can be none.

    ``settings`` are those of the experiment as resolved, defaults included.
    """

    point: Point
    experiment: Experiment | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    problem: str = ""

    def member(self) -> Member:
        """The run as the store has it before it begins."""
        rounds = 0 if self.experiment is None else self.experiment.schedule.rounds
        named = Member(self.point.method, self.point.level, self.point.seed, self.run, rounds=rounds)
        return replace(named, state="impossible", reason=self.problem, run="") if self.problem else named


def resolve(
    points: Sequence[Point],
    beside: Mapping[str, Any],
    known: Callable[[Sequence[str]], Mapping[str, Progress]],
    *,
    made: Callable[[Experiment], Experiment] = lambda experiment: experiment,
    kind: Callable[[Point], Hashable] = lambda point: (point.method, point.level),
    prepare: bool = True,
) -> list[Resolved]:
    """Every point as a run, in order, each checked up to its first round unless it is known to have ended well.

    Data are loaded once for each division among clients. Runs that differ in the seed alone are prepared once, with
    the first of the seeds; their data are loaded for each.

    Args:
        beside: what else decides a result, such as attacks.
        known: the states of the runs of these names.
        made: what becomes of each experiment before it is run.
        kind: runs of one kind are prepared once.
        prepare: whether to check runs beyond their settings.
    """
    found = {point: _read(point, made) for point in points}
    prepared: dict[Hashable, str] = {}
    for group in _by_data(found.values()):
        task: Task | None = None
        problem = ""
        if any(_own_data(one) for one in group):
            task, problem = _load(group[0])
        content = {} if task is None else task.content()
        named = [replace(one, run=name_of(one.settings, {**beside, **content})) for one in group]
        states = known([one.run for one in named])
        for one in named:
            if states.get(one.run) == "done" or problem or not prepare:
                found[one.point] = replace(one, problem=problem)
                continue
            if task is None:
                task, problem = _load(one)
            which = kind(one.point)
            if task is not None and which not in prepared:
                prepared[which] = _problem(one.experiment, task)
            found[one.point] = replace(one, problem=problem or prepared[which])
    return [found[point] for point in points]


def name_of(settings: Mapping[str, Any], beside: Mapping[str, Any]) -> str:
    """Name of the directory of the run with these ``settings``: its algorithm, and a hash of all that decides it.

    Code that is named ``module:Name`` counts with what it does, not with its name alone.
    """
    settings = {name: value for name, value in settings.items() if name not in INDIFFERENT}
    code = {one: Identity(imported(one, "the study")).digest for one in sorted(set(references_in(settings)))}
    text = json.dumps([settings, code, beside], sort_keys=True, default=str)
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", settings["algorithm"]["name"].rpartition(":")[2])
    return f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _read(point: Point, made: Callable[[Experiment], Experiment]) -> Resolved:
    try:
        experiment = made(Experiment.from_dict(point.settings))
        return Resolved(point, experiment, experiment.to_dict())
    except PrivflError as error:
        return Resolved(point, problem=str(error))


def _by_data(found: Any) -> Iterator[list[Resolved]]:
    """Those that can be read, by the data that they train on."""
    groups: dict[str, list[Resolved]] = {}
    for one in found:
        if one.experiment is not None:
            recipe = {item.name: one.settings.get(item.name) for item in fields(one.experiment.recipe)}
            key = json.dumps([recipe, one.experiment.schedule.seed], sort_keys=True, default=str)
            groups.setdefault(key, []).append(one)
    yield from groups.values()


def _own_data(one: Resolved) -> bool:
    return one.experiment is not None and one.experiment.recipe.dataset is None


def _load(one: Resolved) -> tuple[Task | None, str]:
    assert one.experiment is not None
    try:
        return one.experiment.task(), ""
    except PrivflError as error:
        return None, str(error)
    except Exception as error:  # a function of the user's own may raise anything
        return None, f"its data cannot be had ({type(error).__name__}: {error}); mend what returns them"


def settings_of(experiment: Experiment, task: Task) -> RunSettings:
    """What the run of ``experiment`` on ``task`` is asked to be, with noise of its own."""
    return RunSettings(
        task=task,
        algorithm=experiment.algorithm,
        schedule=experiment.schedule,
        training=experiment.training,
        privacy=replace(experiment.privacy, noise_key=None),
        cohort=experiment.cohort,
        availability=experiment.availability,
        execution=experiment.execution,
        record=recorded_observers(experiment.record),
    )


def _problem(experiment: Experiment | None, task: Task) -> str:
    """Why the run cannot begin, empty if it can: everything up to its first round, in memory, with noise of its own."""
    assert experiment is not None
    try:
        plan = prepare(settings_of(experiment, task))
        state = State.start(plan)
        if plan.needs_sizes or plan.hides_weights:
            state.sizes.begin(plan.source)
        calibrate_noise(plan, state.server, state.sizes)
    except PrivflError as error:
        return str(error)
    except Exception as error:  # an algorithm or a model of the user's own may raise anything
        return f"it cannot be prepared ({type(error).__name__}: {error}); mend the part that raises it"
    return ""
