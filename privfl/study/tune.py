"""Tuning at work: trials rung by rung, a pick after each, and what that spent, for every method at every level."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from privfl.errors import ConfigError
from privfl.study.axes import Point
from privfl.study.choice import Score, filed
from privfl.study.members import Resolved, resolve
from privfl.study.results import Better, Results
from privfl.study.store import Member, Store
from privfl.study.sweep import Spent
from privfl.study.trials import HeldOut, Trial, validation_rows
from privfl.study.tuning import Tuning, Value

Kind = tuple[str, str]
"""Method and level: what a value is tuned for."""
Execute = Callable[[str, Sequence[Resolved]], None]
"""Has runs done that belong to the study of a name."""


@dataclass(frozen=True)
class Tuned:
    """The value that the runs of one method at one level have, and how it came about.

    Args:
        value: the winner, ``None`` if no trial came to a good end.
        spent: what all of it released.
        scores: for each rung the mean metric by value, as labels; kept in the store where picks are exact.
        problem: why there is no value.
    """

    value: Value | None
    spent: Spent
    scores: tuple[Mapping[str, float], ...] = ()
    problem: str = ""

    def told(self, kind: Kind, label: str) -> dict[str, Any]:
        """What the store keeps of it."""
        method, level = kind
        # Noisy picks are all that was paid for: exact figures of rows on which the runs train would tell more.
        shown = self if self.spent.epsilon is None else replace(self, scores=())
        return {"method": method, "level": level, "label": label, **asdict(shown)}


@dataclass
class Tuner:
    """Tunes the runs of one study.

    Args:
        tuning: what is tuned, and how.
        store: where trials and picks are noted.
        study: name of the study there; its trials are those of ``STUDY/tuning``.
        seeds: of the study.
        metric, better: by which values are compared.
    """

    tuning: Tuning
    store: Store
    study: str
    seeds: tuple[int, ...]
    metric: str
    better: Better
    _trials: list[Member] = field(default_factory=list, init=False)

    @property
    def trials(self) -> str:
        """The name in the store under which the trials stand."""
        return f"{self.study}/tuning"

    def first(self, points: Sequence[Point]) -> list[Resolved]:
        """All trials of the first rung, each checked up to its first round."""
        found = self._resolved(points, {kind: self.tuning.candidates for kind in _kinds(points)}, 0, prepare=True)
        if self.tuning.choice_epsilon is not None:
            for one in found[:: len(self.tuning.candidates) * len(self.tuning.trial_seeds)]:  # of each kind the first
                _check_countable(one)
        return found

    def tune(self, points: Sequence[Point], execute: Execute) -> dict[Kind, Tuned]:
        """Have the trials for ``points``, one for each method and level, and pick a value for each."""
        kinds = _kinds(points)
        left: dict[Kind, list[Value]] = {kind: list(self.tuning.candidates) for kind in kinds}
        groups: dict[Kind, list[tuple[str, ...]]] = {kind: [] for kind in kinds}
        scores: dict[Kind, list[Mapping[str, float]]] = {kind: [] for kind in kinds}
        problems: dict[Kind, str] = {}
        rungs = self.tuning.rungs(1)
        for number in range(len(rungs)):
            there = [kinds[kind] for kind in kinds if kind not in problems]
            resolved = self._resolved(there, left, number, prepare=False)
            self._enrol(resolved)
            execute(self.trials, resolved)
            ended = {one.run: one for one in self.store.members(self.trials)}
            keep = rungs[number + 1].values if number + 1 < len(rungs) else 1
            for kind, runs in self._by_kind(there, left, resolved).items():
                groups[kind] += [tuple(runs[seed].values()) for seed in runs]
                found = [self._score(value, runs, ended) for value in left[kind]]
                scores[kind].append({self.tuning.label(v): s.mean for v, s in zip(left[kind], found, strict=True)})
                if all(math.isnan(one.mean) for one in found):
                    reasons = [ended[run].reason for seed in runs.values() for run in seed.values()]
                    reason = next(filter(None, reasons), "none has the metric " + self.metric)
                    problems[kind] = f"no trial of {self.tuning.parameter} came to a good end: {reason}"
                    continue
                left[kind] = [left[kind][place] for place in self._pick(found, runs, keep, resolved)]
        rounds = {kind: int(point.settings.get("rounds", 50)) for kind, point in kinds.items()}
        return {
            kind: Tuned(
                None if kind in problems else left[kind][0],
                Spent(
                    self.tuning.parameter,
                    tuple(groups[kind]),
                    self.tuning.choice_epsilon,
                    self.tuning.picks(rounds[kind]),
                ),
                tuple(scores[kind]),
                problems.get(kind, ""),
            )
            for kind in kinds
        }

    def _resolved(
        self, points: Sequence[Point], values: Mapping[Kind, Sequence[Value]], number: int, *, prepare: bool
    ) -> list[Resolved]:
        held = HeldOut(self.tuning.validation, self.tuning.seed, tuple(sorted(self.seeds)))
        trials = [
            self.tuning.trial(point, value, self._rounds(point, number), seed)
            for point in _kinds(points).values()
            for value in values[point.method, point.level]
            for seed in self.tuning.trial_seeds
        ]
        # Values differ in what each is checked for by itself; what all share is prepared once.
        kinds = {
            (one.method, one.level): (point.method, point.level)
            for point in _kinds(points).values()
            for value in values[point.method, point.level]
            for one in [self.tuning.trial(point, value, self._rounds(point, number), 0)]
        }
        return resolve(
            trials,
            {"held out": asdict(held)},
            self.store.ended,
            made=partial(Trial.of, held=held),
            kind=lambda one: kinds[one.method, one.level],
            prepare=prepare,
        )

    def _rounds(self, point: Point, number: int) -> int:
        return self.tuning.rungs(int(point.settings.get("rounds", 50)))[number].rounds

    def _enrol(self, resolved: Sequence[Resolved]) -> None:
        new = [one.member() for one in resolved]
        self._trials += [one for one in new if one not in self._trials]
        told = {"title": f"tuning of {self.study}", "metric": self.metric, "better": self.better}
        self.store.enrol(self.trials, "", {**told, "confidence": 0.95, "test": "t"}, self._trials)

    def _by_kind(
        self, points: Sequence[Point], values: Mapping[Kind, Sequence[Value]], resolved: Sequence[Resolved]
    ) -> dict[Kind, dict[int, dict[Value, str]]]:
        """For each method and level, by seed and value, the name of the trial's run."""
        found: dict[Kind, dict[int, dict[Value, str]]] = {}
        names = iter(resolved)
        for point in points:
            kind = (point.method, point.level)
            for value in values[kind]:
                for seed in self.tuning.trial_seeds:
                    found.setdefault(kind, {}).setdefault(seed, {})[value] = next(names).run
        return found

    def _score(self, value: Value, runs: Mapping[int, Mapping[Value, str]], ended: Mapping[str, Member]) -> Score:
        """How good ``value`` was on validation rows; a trial without a figure makes it NaN, and counts no row."""
        results = Results("", list(ended.values()), self.metric, self.better)
        trials = [ended.get(by_value[value]) for by_value in runs.values()]
        noisy = self.tuning.choice_epsilon is not None

        def figure_of(one: Member) -> float:
            return self.tuning.counted(one.metrics, self.metric) if noisy else results.judge(one)[1]

        figures = [figure_of(one) if one is not None and one.state == "done" else math.nan for one in trials]
        mean = math.fsum(figures) / len(figures) if all(map(math.isfinite, figures)) else math.nan
        if not noisy:
            return Score(mean)
        count = 0
        for one, figure in zip(trials, figures, strict=True):
            if one is not None and math.isfinite(figure):
                count += round(figure * validation_rows(self.store.path(one.run)))
        return Score(mean, count)

    def _pick(
        self,
        scores: Sequence[Score],
        runs: Mapping[int, Mapping[Value, str]],
        number: int,
        resolved: Sequence[Resolved],
    ) -> list[int]:
        names = [list(by_value.values()) for by_value in runs.values()]
        experiment = next(one.experiment for one in resolved if one.run == names[0][0])
        results = Results("", [], self.metric, self.better)
        return filed(
            self.store.folder,
            {"trials": names, "metric": self.metric},
            scores,
            number,
            lower=results.lower_is_better,
            epsilon=self.tuning.choice_epsilon,
            seeds=len(names),
            noise_key=None if experiment is None else experiment.privacy.noise_key,
        )


def _check_countable(one: Resolved) -> None:
    """Refuse a trial whose accuracy is not the share of rows that a released model gets right."""
    if one.experiment is None or one.problem:
        return
    algorithm, why = one.experiment.algorithm, ""
    if algorithm.ensemble:
        why = f"{algorithm.name} releases none: its figures are those of clients' own models"
    elif (kind := one.experiment.task().kind) != "classification":
        why = f"an accuracy in {kind} is no share of rows"
    if why:
        raise ConfigError(
            f"study.tuning.choice_epsilon counts rows that the released model gets right, and {why}; leave "
            "choice_epsilon out"
        )


def _kinds(points: Sequence[Point]) -> dict[Kind, Point]:
    """The first of ``points`` for each method and level."""
    found: dict[Kind, Point] = {}
    for point in points:
        found.setdefault((point.method, point.level), point)
    return found
