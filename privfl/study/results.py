"""What a study found: its runs' figures by method and level, judged by the metric that the study chose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from privfl.errors import ConfigError, DataError, unknown
from privfl.study.history import Former
from privfl.study.refreshed import refresh
from privfl.study.store import CELLS, MEND, Member, Store

Better = Literal["auto", "higher", "lower"]
Test = Literal["t", "wilcoxon", "sign"]
JUDGED_BY = ("personal_", "local_", "test_")
"""What a metric without a prefix is taken from, the first that a run has: a method with models for each client is
judged by these, any other by its one model on every client's own tests, or where there are none on the held-out data.
"""
LOWER = (
    *("loss", "ece", "mce", "deviation", "gini", "gap", "perplexity", "error", "mse", "mae", "rmse"),
    *("seconds", "bytes", "dropped", "epsilon", "advantage", "bound", "noise"),
)
"""Words in the name of a metric of which less is better."""
DAMAGED = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What an index raises whose values are none that a store writes."""
ALONE = "epsilon of the run alone"
"""What ε of a run without its tuning is called, where it was tuned."""
LIKENESS = 0.6
"""How near a metric has to be to be suggested: names of metrics share endings that mean nothing."""
WARNING = "DO NOT RELEASE: the noise of {} of {} runs came from a fixed key, so whoever knows the key can subtract it."
GONE = (
    "Nothing is claimed (∞) for {} of the runs: their directories were removed after they had released something, or "
    "they go on just now, so what they have released is not known."
)
FORMER = (
    "Earlier forms of this study had {} runs and {} trials that it has no more; they count in what all runs together "
    "spent (`privfl study report`){}."
)


@dataclass(frozen=True)
class Row:
    """One method at one level, over its seeds.

    Args:
        method, level: where it stands on the study's axes.
        values: the judging metric by seed; seeds whose run has none are left out.
        judged_by: the metric's full name.
        mean, deviation: of ``values``; the sample standard deviation is NaN for one seed.
        low, high: confidence interval of the mean by Student's t, NaN for one seed.
        epsilons: of each cell of the statement the largest over the seeds, ∞ if one claims nothing; of a run that was
            tuned for, together with the trials and the pick before it.
        failed: how many of its runs failed or are impossible.
        costs: mean over the seeds of every other figure.
        tuned: the setting that tuning picked, as in ``learning_rate = 0.1``; empty where nothing was tuned.
    """

    method: str
    level: str
    values: Mapping[int, float]
    judged_by: str
    mean: float
    deviation: float
    low: float
    high: float
    epsilons: Mapping[str, float]
    failed: int
    costs: Mapping[str, float]
    tuned: str = ""


@dataclass(frozen=True)
class Results:
    """The runs of one study as far as they are.

    Args:
        title: of the study.
        members: its runs, in its order.
        metric: which one ranks: a full name such as ``test_accuracy``, or one without a prefix, see :data:`JUDGED_BY`.
        better: whether more of it is better; ``auto`` tells by its name.
        confidence: of intervals and of comparisons, in (0, 1).
        test: of a pair of methods on the same seeds.
        tuned: for each method and level that was tuned what was tried, picked and spent; the members' ε count it.
        notes: what has to be known of the members' ε, in sentences.
        former: what earlier forms of the study had.
    """

    title: str
    members: Sequence[Member]
    metric: str = "accuracy"
    better: Better = "auto"
    confidence: float = 0.95
    test: Test = "t"
    tuned: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    former: Former = field(default_factory=Former)

    @classmethod
    def of(cls, store: Store, study: str, metric: str | None = None) -> Self:
        """Those of ``study`` in ``store``, judged by the study's own metric unless another one is named.

        Raises:
            DataError: the study was never started there.
        """
        try:
            return cls._of(store, study, metric)
        except DAMAGED as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{store.file} is damaged ({type(error).__name__}: {error}); {MEND}") from error

    @classmethod
    def _of(cls, store: Store, study: str, metric: str | None) -> Self:
        gone = refresh(store, study)
        told = store.told(study)
        chosen = {name: told[name] for name in ("title", "better", "confidence", "test")}
        if metric not in (None, told["metric"]):
            chosen["better"] = "auto"
        tuned = {(one["method"], one["level"]): _paid_for(one) for one in told.get("tuned", [])}
        there = store.members(study)
        gone += [one.run for one in there if one.state == "done" and store.history.is_lost(one.run)]
        former = Former()
        if told.get("complete", True):  # otherwise trials of the present form are not known to be such yet
            former = Former.of(store.history, study, [one.run for one in there], list(tuned.values()))
        alone = [_without_claim(one) if one.run in gone else one for one in there]
        members = [_after_tuning(one, tuned.get((one.method, one.level))) for one in alone]
        lost = sum(one.run in gone for one in members)
        notes = [GONE.format(lost)] if lost else []
        if former.runs or former.trials:
            also = ", and the trials with every run that was tuned" if former.trials and tuned else ""
            notes.append(FORMER.format(len(former.runs), len(former.trials), also))
        chosen |= {"metric": metric or told["metric"], "notes": tuple(notes)}
        return cls(members=members, tuned=tuned, former=former, **chosen)

    @property
    def told(self) -> dict[str, Any]:
        """What a store has to keep of a study for :meth:`of`, but for what was tuned."""
        return {name: getattr(self, name) for name in ("title", "metric", "better", "confidence", "test")}

    @property
    def done(self) -> list[Member]:
        """The runs that came to a good end."""
        return [one for one in self.members if one.state == "done"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be told wherever ε of the runs is: that some must not be released, and :attr:`notes`."""
        fixed = sum(one.reproducible for one in self.done)
        return (WARNING.format(fixed, len(self.done)), *self.notes) if fixed else self.notes

    @property
    def lower_is_better(self) -> bool:
        """Whether less of the metric is better."""
        words = self.metric.replace("/", "_").replace(" ", "_").split("_")
        return self.better == "lower" or (self.better == "auto" and any(word in LOWER for word in words))

    def judge(self, member: Member) -> tuple[str, float]:
        """The full name of the metric for ``member``, and its value; NaN where the run has none."""
        for name in (self.metric, *(prefix + self.metric for prefix in JUDGED_BY)):
            if name in member.metrics:
                return name, member.metrics[name]
        return self.metric, math.nan

    def rows(self) -> list[Row]:
        """One for each method and level of which a run is done, in the study's order.

        Raises:
            ConfigError: no run has the metric.
            DataError: no run is done.
        """
        failed = [one for one in self.members if one.state in ("failed", "impossible")]
        if not self.done and failed:
            count = len(self.members)
            many = f"all {count}" if len(failed) == count > 1 else f"{len(failed)} of {count}"
            raise DataError(
                f"no run of '{self.title}' is done: {many} runs failed, the first because "
                f"{failed[0].reason.rstrip('.') or 'of nothing that is known'}; mend that and repeat `privfl study run`"
            )
        if not self.done:
            raise DataError(f"no run of '{self.title}' is done yet; `privfl study status` says how far it is")
        if all(math.isnan(self.judge(one)[1]) for one in self.done):
            raise unknown("metric", self.metric, {name for one in self.done for name in one.metrics}, LIKENESS)
        groups: dict[tuple[str, str], list[Member]] = {}
        for one in self.members:
            groups.setdefault((one.method, one.level), []).append(one)
        return [self._row(*named, members) for named, members in groups.items() if self._values(members)]

    def table(self) -> list[dict[str, Any]]:
        """One dictionary for each run, with every figure of every run: what CSV, JSON and data frames hold.

        A figure that an algorithm calls as one of the first columns, such as AAggFF's level, is ``figure level``. Where
        the noise of a run came from a fixed key, a column ``reproducible`` says of which.
        """
        names = dict.fromkeys(name for one in self.members for name in sorted(one.metrics))
        own = ["method", "level", "seed", "state", "reason", "run"]
        own += ["reproducible"] if any(one.reproducible for one in self.members) else []
        return [
            {name: getattr(one, name) for name in own}
            | {f"figure {name}" if name in own else name: one.metrics.get(name) for name in names}
            for one in self.members
        ]

    def frame(self, library: Literal["pandas", "polars"] = "pandas") -> Any:
        """:meth:`table` as a data frame.

        Raises:
            ConfigError: the library is not installed.
        """
        from importlib import import_module

        try:
            return import_module(library).DataFrame(self.table())
        except ImportError as error:
            raise ConfigError(f"{library} is not installed; install it, pip install 'privfl[{library}]'") from error

    def _values(self, members: Sequence[Member]) -> dict[int, float]:
        judged = {one.seed: self.judge(one)[1] for one in members if one.state == "done"}
        return {seed: value for seed, value in judged.items() if not math.isnan(value)}

    def _row(self, method: str, level: str, members: Sequence[Member]) -> Row:
        values, done = self._values(members), [one for one in members if one.state == "done"]
        mean, low, high, deviation = statistics.fmean(values.values()), math.nan, math.nan, math.nan
        if len(values) > 1:
            deviation = statistics.stdev(values.values())
            half = student(self.confidence, len(values) - 1) * deviation / math.sqrt(len(values))
            low, high = mean - half, mean + half
        costs: dict[str, float] = {}
        for name in dict.fromkeys(name for one in done for name in one.metrics):
            figures = [one.metrics[name] for one in done if not math.isnan(one.metrics.get(name, math.nan))]
            if figures:
                costs[name] = math.fsum(figures) / len(figures)
        epsilons = {cell: max(one.metrics.get(f"epsilon {cell}", math.inf) for one in done) for cell in CELLS}
        tuned = self.tuned.get((method, level))
        failed = sum(one.state in ("failed", "impossible") for one in members)
        judged_by = self.judge(done[0])[0]
        return Row(
            method,
            level,
            values,
            judged_by,
            mean,
            deviation,
            low,
            high,
            epsilons,
            failed,
            costs,
            "" if tuned is None else tuned["label"],
        )


def _after_tuning(member: Member, tuned: Mapping[str, Any] | None) -> Member:
    """``member`` with what its tuning spent: ε counts the trials and the picks before the run, or is not known yet."""
    if tuned is None or member.state != "done":
        return member
    known = member.run in tuned["runs"]
    metrics = dict(member.metrics)
    for cell in CELLS:
        alone = metrics.get(f"epsilon {cell}", math.inf)
        metrics[f"{ALONE} {cell}"] = alone
        metrics[f"epsilon {cell}"] = max(alone, tuned["epsilons"][cell]) if known else math.inf
    return replace(member, metrics=metrics)


def _without_claim(member: Member) -> Member:
    """``member`` with ∞ for every ε."""
    return replace(member, metrics={**member.metrics, **{f"epsilon {cell}": math.inf for cell in CELLS}})


def _paid_for(tuned: Mapping[str, Any]) -> Mapping[str, Any]:
    """``tuned`` without the exact figures of validation rows where a noisy pick is all that was paid for."""
    exact = tuned.get("spent", {}).get("epsilon") is None
    return tuned if exact else {**tuned, "scores": []}


def student(confidence: float, freedom: int) -> float:
    """How many standard errors a two-sided interval of Student's t with ``freedom`` degrees reaches to either side."""
    from scipy.special import stdtrit  # scipy.stats, which wraps it, takes a second to import

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of ``points``, each a cost and a loss, no other one beats: no worse in both and better in one.

    >>> front([(1, 5), (2, 3), (3, 4), (2, 3), (4, 1)])
    [0, 1, 3, 4]
    """
    return [
        number
        for number, (cost, loss) in enumerate(points)
        if not any(a <= cost and b <= loss and (a, b) != (cost, loss) for a, b in points)
    ]


def fronts(results: Results) -> dict[str, list[tuple[str, str]]]:
    """For every cost the methods and levels that are not beaten in both utility and that cost.

    Costs are ε of each cell, the bytes sent, the advantage of each attack, and what the worst tenth of clients lose; a
    cost that some row does not have is left out.
    """
    rows = results.rows()
    sign = 1.0 if results.lower_is_better else -1.0
    costs: dict[str, list[float]] = {f"epsilon {cell}": [row.epsilons[cell] for row in rows] for cell in CELLS}
    names = dict.fromkeys(name for row in rows for name in row.costs)
    for name in names:
        if name == "bytes_sent" or (name.startswith("attack ") and name.endswith(" advantage")):
            costs[name] = [row.costs.get(name, math.nan) for row in rows]
    worst = [worst_tenth(row) for row in rows]
    costs["worst tenth"] = [-value for value in worst]
    found = {}
    for name, figures in costs.items():
        if not any(math.isnan(figure) for figure in figures):
            best = front([(figure, sign * row.mean) for figure, row in zip(figures, rows, strict=True)])
            found[name] = [(rows[number].method, rows[number].level) for number in best]
    return found


def worst_tenth(row: Row) -> float:
    """Mean accuracy of the worst tenth of clients, of personal models where there are any; NaN if not measured."""
    return next(
        (row.costs[name] for name in ("personal_worst_tenth", "local_worst_tenth") if name in row.costs), math.nan
    )
