"""A study: one experiment and the axes along which it varies, as a file or in code.

    rounds = 50                          # what all runs share: the keys of an experiment file
    [dataset]
    name = "digits"
    [partition]
    name = "dirichlet"
    clients = 20
    alpha = 0.5
    [privacy.training]                   # the axis epsilon fills in the target, and ∞ takes the table away
    sample_rate = 0.25

    [study]
    title = "What privacy costs"
    seeds = 5                            # or a list of them
    epsilon = [inf, 8, 3, 1]
    metric = "accuracy"                  # which one ranks; without it, the one of the task's kind
    [study.grid]                         # every value with every other one
    training.learning_rate = [0.1, 0.5]
    [study.zip]                          # lists that vary together
    partition.clients = [10, 100]
    training.batch_size = [100, 10]
    [[study.variant]]                    # named choices, laid over the experiment
    name = "FedAvg"
    algorithm = {name = "fedavg", weighting = "uniform"}
    [[study.variant]]
    name = "Ditto"
    algorithm = {name = "ditto"}
    [[study.attack]]                     # on every run, as in an attack file
    name = "loss-threshold"
    [[study.audit]]                      # of every run, as in an audit file
    name = "gradient-canaries"

Nothing heavy is imported before a run has to be had, so that tables of finished studies come at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from privfl.errors import ConfigError
from privfl.references import references_in
from privfl.schema import build, override, read_toml
from privfl.study.axes import MOST_RUNS, Point, Variant, flat, keys_of, points
from privfl.study.results import Better, Results, Test
from privfl.study.store import Store
from privfl.study.tuning import Tuning
from privfl.validation import Settings, check_count, said

if TYPE_CHECKING:
    from privfl.study.execution import Examine
    from privfl.study.members import Resolved

KEY = "study"


@dataclass(frozen=True)
class Study(Settings):
    """One experiment and the axes along which it varies; build it in code, or with :meth:`from_toml`.

    Args:
        base: what all runs share: the keys of an experiment file. It need not be complete where axes fill it in.
        title: of tables, figures and the report.
        seeds: how many, or which.
        epsilon: an axis of targets for one example over the whole run; the noise of DP-SGD is solved for each, and ∞
            takes ``privacy.training`` away.
        grid: a list of values for each dotted key, or in nested tables: an axis each.
        zip: lists of equal length by key, which vary together: one axis.
        variants: named choices, see :class:`~privfl.study.axes.Variant`.
        metric: which one ranks; ``accuracy`` is that of personal models for methods that have them. Empty: the one by
            which models of the task's kind are compared, ``accuracy``, ``rmse``, ``micro_f1`` or ``perplexity``.
        better: whether ``higher`` or ``lower`` is better; ``auto`` tells by the metric's name.
        confidence: of intervals and comparisons, in (0, 1).
        test: of two methods on the same seeds: ``t``, ``wilcoxon`` or ``sign``.
        attacks: on every run; tables as in attack files. The runs must be recorded.
        audits: of every run; tables as in audit files. Each trains the run anew.
        public_share, candidates: as in attack files.
        judge_seed: of the attackers' and auditors' coins.
        tuning: of one setting on validation rows, see :class:`~privfl.study.tuning.Tuning`.
    """

    base: Mapping[str, Any]
    title: str = ""
    seeds: int | tuple[int, ...] = 1
    epsilon: tuple[float, ...] = ()
    grid: Mapping[str, Any] = field(default_factory=dict)
    zip: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    metric: str = ""
    better: Better = "auto"
    confidence: float = 0.95
    test: Test = "t"
    attacks: tuple[Mapping[str, Any], ...] = ()
    audits: tuple[Mapping[str, Any], ...] = ()
    public_share: float = 0.5
    candidates: int = 2000
    judge_seed: int = 0
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seeds, int):
            check_count("study.seeds", self.seeds)
            if self.seeds > MOST_RUNS:
                raise ConfigError(f"study.seeds is {said(self.seeds)}; give at most {MOST_RUNS:,}")
        elif not self.seeds:
            raise ConfigError("study.seeds is empty; give how many, or a list of them")
        elif large := [seed for seed in self.seeds if abs(seed) >= 1 << 63]:
            raise ConfigError(f"study.seeds holds {said(large[0])}; give integers below 2^63")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"study.confidence is {self.confidence}; give a number in (0, 1), such as 0.95")
        if not 0 < self.public_share < 1:
            raise ConfigError(f"study.public_share is {self.public_share}; give a number in (0, 1)")
        check_count("study.candidates", self.candidates, 2)
        if self.tuning is not None:
            self.tuning.check(self.all_seeds, list(self._keys()), self.metric or "accuracy")
        self.points()

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def _keys(self) -> Iterator[str]:
        """The keys that the axes set."""
        for where, tables in (("study.grid", self.grid), ("study.zip", self.zip)):
            yield from (key for key, _ in flat(tables, where))
        for variant in self.variants:
            yield from keys_of(variant.settings)

    @classmethod
    def from_toml(cls, path: Path | str, overrides: Sequence[str] = ()) -> Self:
        """Read ``path`` and apply ``overrides`` such as ``study.seeds=2`` or ``rounds=5``.

        Raises:
            ConfigError: the file is missing or not TOML, or an axis is impossible.
        """
        settings = read_toml(Path(path), "a study file")
        for assignment in overrides:
            override(settings, assignment)
        return cls.from_dict(settings, title=Path(path).stem)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], title: str = "study") -> Self:
        """From the content of a study file; ``title`` is taken where it has none.

        Raises:
            ConfigError: an axis is unknown or impossible.
        """
        base = {name: value for name, value in settings.items() if name != KEY}
        table = settings.get(KEY)
        if not isinstance(table, Mapping):
            raise ConfigError("the file has no [study]; add it with seeds, epsilon, study.grid or [[study.variant]]")
        lists = {plural: _tables(table, name) for name, plural in _LISTS.items()}
        rest = {name: value for name, value in table.items() if name not in _LISTS}
        read = build(_Axes, rest, KEY)
        return cls(
            base,
            **{**vars(read), "title": read.title or title},
            variants=tuple(map(Variant.of, lists["variants"])),
            attacks=tuple(lists["attacks"]),
            audits=tuple(lists["audits"]),
        )

    def points(self) -> list[Point]:
        """Every run that the axes span, without having looked at what its settings mean.

        Raises:
            ConfigError: an axis is empty, or two runs share a name.
        """
        return points(
            self.base,
            variants=self.variants,
            zipped=self.zip,
            grid=self.grid,
            epsilon=self.epsilon,
            seeds=self.all_seeds,
        )

    @property
    def beside(self) -> dict[str, Any]:
        """What decides a run's figures besides its experiment: attacks and audits."""
        if not (self.attacks or self.audits):
            return {}
        names = ("attacks", "audits", "public_share", "candidates", "judge_seed", "confidence")
        return {name: getattr(self, name) for name in names}

    @property
    def told(self) -> dict[str, Any]:
        """What tables need to know of the study."""
        return {name: getattr(self, name) for name in ("title", "metric", "better", "confidence", "test")}

    @property
    def source(self) -> str:
        """A hash of what the runs follow from; empty where they follow from code or data of one's own as well."""
        everything = asdict(self)
        if {"task", "data", "arrays"} & self.base.keys() or any(references_in(everything)):
            return ""
        text = json.dumps(everything, sort_keys=True, default=str)
        from importlib.metadata import version

        return hashlib.sha256(f"{version('privfl')} {text}".encode()).hexdigest()

    def run(
        self,
        out: Path | str = "studies",
        *,
        name: str | None = None,
        processes: int | None = None,
        skip_impossible: bool = False,
        examine: Examine | None = None,
        check: Callable[[Study, Sequence[Resolved]], list[Resolved]] | None = None,
        address: str | None = None,
    ) -> Results:
        """Have every run that is not finished yet, and return what is known then.

        Runs go side by side in ``processes`` processes (default one for each core). A study that was killed goes on
        where it was; what another study had already is not trained again; a run that fails stops no other. A script
        that calls this guards its entry with ``if __name__ == "__main__"``.

        Args:
            out: folder of the store, which many studies may share.
            name: of the study in it; by default the title.
            skip_impossible: go on without the runs that cannot be.
            examine: carries out attacks and audits, ``privfl.commands.examine.examine``; needed where there are any.
            check: looks at the runs before any begins, and gives them back with the reason where one is impossible.
            address: ``host:port`` of a Ray cluster, whose processes have the runs; its nodes share the disk of ``out``.

        Raises:
            ConfigError: runs are impossible; the message names all of them, each with the mend.
        """
        if processes is not None and processes < 1:
            raise ConfigError(f"a study runs in {processes} processes; give an integer ≥ 1")
        if self.beside and examine is None:
            raise ConfigError(
                "the study attacks or audits its runs; start it by `privfl study run`, or hand over examine = "
                "privfl.commands.examine.examine"
            )
        store, name = Store(Path(out) if address is None else Path(out).absolute()), self.name(name)
        if not self.is_finished(store, name, skip_impossible=skip_impossible):
            from privfl.study.conduct import Conductor

            conductor = Conductor(self, store, name, examine)
            conductor.conduct(processes, skip=skip_impossible, check=check, address=address)
        return Results.of(store, name)

    def name(self, name: str | None = None) -> str:
        """``name``, or the title, as part of a file's name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name or self.title or KEY).strip(".-") or KEY

    def is_finished(self, store: Store, name: str, *, skip_impossible: bool = False) -> bool:
        """Whether the very same study was run to its end in ``store``: nothing has to be read or trained then."""
        if not self.source or store.source(name) != self.source:
            return False
        members = store.members(name)
        states = store.ended([one.run for one in members])
        ended = (states.get(one.run) == "done" or (skip_impossible and one.state == "impossible") for one in members)
        return (
            store.told(name).get("complete", self.tuning is None) and len(members) == len(self.points()) and all(ended)
        )

    def resolve(self, store: Store | None = None) -> list[Resolved]:
        """Every run, with the reason where it is impossible; what ``store`` has finished is not looked at again."""
        from privfl.study.members import resolve

        return resolve(self.points(), self.beside, lambda runs: {} if store is None else store.ended(runs))


@dataclass(frozen=True)
class _Axes:
    """The keys of ``[study]`` that are no lists of tables; :class:`Study` says what each means."""

    title: str = ""
    seeds: int | tuple[int, ...] = 1
    epsilon: tuple[float, ...] = ()
    grid: Mapping[str, Any] = field(default_factory=dict)
    zip: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""
    better: Better = "auto"
    confidence: float = 0.95
    test: Test = "t"
    public_share: float = 0.5
    candidates: int = 2000
    judge_seed: int = 0
    tuning: Tuning | None = None


_LISTS = {"variant": "variants", "attack": "attacks", "audit": "audits"}


def _tables(table: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = table.get(name, [])
    if not isinstance(found, list | tuple) or not all(isinstance(one, Mapping) for one in found):
        raise ConfigError(f"study.{name} is not a list of tables; write [[study.{name}]] once for each")
    return list(found)
