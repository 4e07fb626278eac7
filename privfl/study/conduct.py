"""A study from its axes to its last run: what is impossible is refused, then trials are had, then runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from privfl.errors import ConfigError
from privfl.study.axes import Point
from privfl.study.cluster import ClusterWorkers
from privfl.study.display import Display
from privfl.study.execution import Examine, Job, execute
from privfl.study.history import Former
from privfl.study.members import Resolved, resolve
from privfl.study.metric_names import check_metric, headline_of
from privfl.study.objectives import warn_of_different_weights
from privfl.study.results import Better
from privfl.study.store import CELLS, Store
from privfl.study.sweep import Spent, after_tuning
from privfl.study.tune import Kind, Tuned, Tuner
from privfl.study.tuning import Tuning
from privfl.study.workers import Workers, cores


class Planned(Protocol):
    """What has to be known of a study; :class:`~privfl.study.file.Study` says what each means."""

    @property
    def metric(self) -> str: ...
    @property
    def better(self) -> Better: ...
    @property
    def tuning(self) -> Tuning | None: ...
    @property
    def all_seeds(self) -> tuple[int, ...]: ...
    @property
    def beside(self) -> dict[str, Any]: ...
    @property
    def told(self) -> dict[str, Any]: ...
    @property
    def source(self) -> str: ...
    def points(self) -> list[Point]: ...


Check = Callable[[Any, Sequence[Resolved]], list[Resolved]]
"""Looks at a study and its runs before any begins, and gives them back, those that are impossible with the reason."""


@dataclass(frozen=True)
class Conductor:
    """Has the runs of one study.

    Args:
        study: which.
        store: where they lie.
        name: of the study there.
        examine: carries out attacks and audits.
        headline: the metric by which a study is judged that names none.
    """

    study: Planned
    store: Store
    name: str
    examine: Examine | None = None
    headline: str = ""

    @property
    def metric(self) -> str:
        """The metric that ranks."""
        return self.study.metric or self.headline

    @property
    def told(self) -> dict[str, Any]:
        """What tables need to know of the study."""
        return {**self.study.told, "metric": self.metric}

    def _workers(self, processes: int | None, address: str | None) -> Workers:
        """What has the runs."""
        return (
            Workers(processes or cores())
            if address is None
            else ClusterWorkers(processes, address, self.store.folder.absolute())
        )

    def conduct(self, processes: int | None, *, skip: bool, check: Check | None, address: str | None = None) -> None:
        """Have every run that is not finished yet.

        Args:
            processes: runs side by side; ``None``: one for each core, or each free CPU of the cluster.
            skip: go on without the runs that are impossible.
            check: looks at the runs before any begins.
            address: of a Ray cluster, whose processes have the runs.

        Raises:
            ConfigError: runs are impossible, and ``skip`` is off.
        """
        points = self.study.points()
        tuner = self._tuner()
        planned = points if tuner is None else [_with(point, tuner, tuner.tuning.candidates[0]) for point in points]
        resolved = resolve(planned, self.study.beside, self.store.ended)
        if check is not None:
            resolved = check(self.study, resolved)
        refuse(resolved, skip)
        judging = self if self.study.metric else replace(self, headline=headline_of(resolved))
        judging._begin(points, resolved, processes, skip=skip, address=address)

    def _begin(
        self, points: list[Point], resolved: list[Resolved], processes: int | None, *, skip: bool, address: str | None
    ) -> None:
        """Have the runs that are possible, once it is known which metric they are judged by."""
        tuner = self._tuner()
        for metric in dict.fromkeys([self.metric] if tuner is None else [self.metric, tuner.metric]):
            check_metric(metric, resolved)
        warn_of_different_weights(resolved)
        with self._workers(processes, address) as workers:
            if tuner is None:
                self._enrol(resolved)
                self._execute(workers, self.name, resolved)
                self._tell({}, resolved)
                return
            good = {str(one.point) for one in resolved if not one.problem}
            left = [point for point in points if str(point) in good]
            trials = tuner.first(left)
            refuse(trials, skip)
            bad = {_kind_of(one.point, left): one.problem for one in trials if one.problem}
            left = [point for point in left if (point.method, point.level) not in bad]
            waiting = [replace(one, run="") for one in resolved]
            self._enrol(waiting)
            tuned = tuner.tune(left, lambda name, runs: self._execute(workers, name, runs, trial=True))
            resolved = self._tuned(resolved, points, tuner, tuned, bad)
            for kind, one in tuned.items():
                runs = [each.run for each in resolved if _kind(each) == kind and not each.problem]
                self.store.history.follow(runs, {"label": _label(tuner, one), "spent": asdict(one.spent)})
            self._enrol(resolved)
            self._execute(workers, self.name, resolved)
        self._tell({kind: one.told(kind, _label(tuner, one)) for kind, one in tuned.items()}, resolved)

    def _tuner(self) -> Tuner | None:
        study = self.study
        if study.tuning is None:
            return None
        metric = study.tuning.metric or self.metric
        better = study.better if metric == self.metric else "auto"
        return Tuner(study.tuning, self.store, self.name, study.all_seeds, metric, better)

    def _tuned(
        self,
        resolved: Sequence[Resolved],
        points: Sequence[Point],
        tuner: Tuner,
        tuned: Mapping[Kind, Tuned],
        bad: Mapping[Kind, str],
    ) -> list[Resolved]:
        """The runs with the values that were picked for them; without one they are impossible."""
        found = {str(one.point): one for one in resolved if one.problem}
        chosen: list[Point] = []
        for point in points:
            kind = (point.method, point.level)
            if str(point) in found:
                continue
            why = bad.get(kind, "") or tuned[kind].problem
            if why:
                found[str(point)] = Resolved(point, problem=why)
            else:
                value = tuned[kind].value
                assert value is not None
                chosen.append(_with(point, tuner, value))
        found |= {str(one.point): one for one in resolve(chosen, self.study.beside, self.store.ended, prepare=False)}
        return [found[str(point)] for point in points]

    def _tell(self, tuned: Mapping[Kind, Mapping[str, Any]], resolved: Sequence[Resolved]) -> None:
        """Note what runs spent together with the tuning before them, also with one that they followed from earlier."""
        states, history = self.store.ended([one.run for one in resolved]), self.store.history
        told: list[dict[str, Any]] = []
        for kind in dict.fromkeys([*tuned, *map(_kind, resolved)]):
            runs = [one.run for one in resolved if _kind(one) == kind and states.get(one.run) == "done"]
            picks = [pick for run in runs for pick in history.followed(run)]
            if kind not in tuned and not picks:
                continue
            first = tuned.get(kind) or {"method": kind[0], "level": kind[1], "scores": [], "problem": "", **picks[0]}
            earlier = [pick["spent"] for pick in picks if Spent.of(pick["spent"]) != Spent.of(first["spent"])]
            told.append({**first, "earlier": earlier, "runs": runs})
        if not told:
            return
        former = Former.of(history, self.name, [one.run for one in resolved], told)
        for each in told:
            spent = Spent.all_of(each)
            found = after_tuning(self.store.folder / "runs", each["runs"], spent, former.trials)
            each["epsilons"], each["reasons"] = found
        self.store.tell(self.name, {**self.told, "tuned": told, "complete": True})

    def _enrol(self, resolved: Sequence[Resolved]) -> None:
        """Note which runs there are; what they spent after their tuning is not known before :meth:`_tell`."""
        members = [one.member() for one in resolved]
        unknown = {"label": "", "epsilons": dict.fromkeys(CELLS, math.inf), "reasons": [], "runs": []}
        followed = [one for one in members if self.study.tuning or self.store.history.followed(one.run)]
        kinds = dict.fromkeys((one.method, one.level) for one in followed)
        tuned = [{"method": method, "level": level, **unknown} for method, level in kinds]
        told = {**self.told, "tuned": tuned, "complete": False} if tuned else self.told
        self.store.enrol(self.name, self.study.source, told, members)

    def _execute(self, workers: Workers, name: str, resolved: Sequence[Resolved], *, trial: bool = False) -> None:
        """Have those of the runs ``resolved`` done that are not; they belong to the study ``name`` of the store."""
        states = self.store.ended([one.run for one in resolved])
        examined = bool(self.study.beside) and not trial
        tables = self.study.beside if examined else {}
        jobs: dict[str, Job] = {
            one.run: Job(
                self.store.folder, one.run, one.experiment, one.settings, tables, self.examine if examined else None
            )
            for one in resolved
            if one.experiment is not None and not one.problem and states.get(one.run) != "done"
        }
        if jobs:
            with Display(self.store, name, workers.processes) as display:
                execute(self.store, list(jobs.values()), workers, display)


def refuse(resolved: Sequence[Resolved], skip: bool) -> None:
    """Refuse a study of which runs are impossible, all of them unless ``skip`` is off.

    Raises:
        ConfigError: it is; the message names each reason, and the runs for which it holds.
    """
    impossible = [one for one in resolved if one.problem]
    if resolved and (len(impossible) == len(resolved) or (impossible and not skip)):
        raise ConfigError("\n".join(told(resolved)))


def told(resolved: Sequence[Resolved]) -> list[str]:
    """A sentence for each reason why runs are impossible, with the runs that it holds for."""
    reasons: dict[str, list[Point]] = {}
    for one in resolved:
        if one.problem:
            reasons.setdefault(one.problem, []).append(one.point)
    total = sum(map(len, reasons.values()))
    if not reasons:
        return []
    if len(reasons) == 1 and total == len(resolved):
        return [f"every run of the study is impossible: {next(iter(reasons))}"]
    found = [f"{total} of {len(resolved)} runs are impossible; mend them, or go on without them by --skip-impossible:"]
    for reason, where in reasons.items():
        kinds = Counter(f"{point.method}, {point.level}" for point in where)
        named = "; ".join(f"{kind} ({count} seeds)" if count > 1 else kind for kind, count in kinds.items())
        found.append(f"  {named}: {reason}")
    return found


def _with(point: Point, tuner: Tuner, value: Any) -> Point:
    return replace(point, settings=tuner.tuning.with_value(point.settings, value))


def _kind_of(trial: Point, points: Sequence[Point]) -> Kind:
    """What the values of ``trial`` are tried for: its level is that of the runs, followed by the value."""
    return next(
        (point.method, point.level)
        for point in sorted(points, key=lambda one: -len(one.level))
        if point.method == trial.method and trial.level.startswith(f"{point.level}, ")
    )


def _kind(one: Resolved) -> Kind:
    return one.point.method, one.point.level


def _label(tuner: Tuner, one: Tuned) -> str:
    return "" if one.value is None else tuner.tuning.label(one.value)
