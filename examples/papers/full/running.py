"""Carrying out a table: one run after the other, each kept at once, and what came out of them."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scipy.stats import t as student

import privfl as pf
from full.data import held_back, shrunk
from full.table import Column, Table
from privfl.errors import ConfigError, PrivflError
from privfl.simulation.callbacks import Simulation
from privfl.simulation.plan import RunSettings, prepare
from privfl.simulation.settings import Schedule

TUNING_SEED = 1000
"""No table is run with it."""
CHECKPOINTS = "checkpoints"
"""What a run directory calls the folder of the states that it can go on from."""
SPEAKS_EVERY = 60.0
"""Seconds between two lines about a run."""
Row = dict[str, Any]


@lru_cache(maxsize=1)
def loaded(data: Callable[[], pf.Dataset], clients: int | None, rows: int | None) -> pf.Dataset:
    """What ``data`` loads; one data set is kept in memory."""
    return shrunk(data(), clients, rows)


@dataclass(frozen=True)
class Study:
    """A table on its way.

    Args:
        table: what is run.
        out: folder of ``results.json`` and of the run directories.
        rounds, clients, rows: in place of the table's, if given.
        engine: that trains, ``auto`` for the fastest.
    """

    table: Table
    out: Path
    rounds: int | None = None
    clients: int | None = None
    rows: int | None = None
    engine: Any = "auto"

    @property
    def store(self) -> Path:
        """Where everything finished is kept."""
        return self.out / "results.json"

    @property
    def settings(self) -> Row:
        """What all rows of a store have in common."""
        return {"paper": self.table.paper, "rounds": self.rounds, "clients": self.clients, "rows": self.rows}

    def kept(self) -> list[Row]:
        """The finished runs.

        Raises:
            ConfigError: they are of other settings.
        """
        if not self.store.exists():
            return []
        stored = json.loads(self.store.read_text(encoding="utf-8"))
        if stored["settings"] != self.settings:
            raise ConfigError(
                f"{self.store} holds runs of {stored['settings']}, not of these settings; give another --out"
            )
        found: list[Row] = stored["rows"]
        return found

    def keep(self, rows: list[Row]) -> None:
        """Write ``rows`` so that a reader finds the old or the new file, never a part of one."""
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        part = self.store.with_suffix(".part")
        settings = json.dumps(self.settings, ensure_ascii=False)
        part.write_text(f'{{"settings": {settings}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
        part.replace(self.store)

    def task(self, column: Column, seed: int, *, tuning: bool = False) -> pf.Task:
        """The clients of ``column`` for one seed; for ``tuning`` no test example is among their data."""
        data = loaded(column.data, None if column.clients else self.clients, self.rows)
        if tuning:
            data = held_back(data, seed)
        return column.divide(data, min(column.clients, self.clients or column.clients), seed)

    def check(self, column: Column) -> None:
        """Refuse a column before its first run if a method does not fit its task.

        Raises:
            PrivflError: the data are not here, or a method is impossible.
        """
        task = self.task(column, column.seeds[0])
        for name, method in column.methods.items():
            asked: dict[str, Any] = {"privacy": pf.Privacy(), "cohort": pf.Everyone(), "availability": pf.Always()}
            asked |= column.arguments(name, task)
            schedule = Schedule(self.rounds or column.rounds_of(task), column.seeds[0])
            algorithm = method.algorithm.following(None)
            prepare(RunSettings(task, algorithm, schedule, execution=pf.Execution(), record=(), **asked))

    def folder(self, column: Column, name: str, seed: int, value: float | None, *, tuning: bool) -> Path:
        """The directory of one run."""
        label = [column.name, name, str(seed)] + ([] if value is None else [f"{value:g}"]) + ["tuning"] * tuning
        return self.out / "runs" / "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in label)

    def run(self, column: Column, name: str, seed: int, value: float | None = None, *, tuning: bool = False) -> Row:
        """One run to its end, from where it stands."""
        task = self.task(column, seed, tuning=tuning)
        rounds = self.rounds or column.rounds_of(task)
        folder = self.folder(column, name, seed, value, tuning=tuning)
        if folder.exists() and not (folder / CHECKPOINTS).exists():
            shutil.rmtree(folder)
        found: dict[str, float] = {}
        told = Progress(f"{column.name}, {name}, seed {seed}", rounds)

        def watch(simulation: Simulation, line: Row) -> None:
            told(simulation.round)
            if simulation.round == rounds:
                found.update(column.judge(simulation))

        def train() -> pf.Run:
            return pf.simulate(
                task,
                column.methods[name].at(value),
                **column.arguments(name, task),
                rounds=rounds,
                seed=seed,
                evaluate_every=1 if column.curve else rounds,
                execution=pf.Execution(engine=self.engine, checkpoint_seconds=60.0),
                out=folder,
                resume=folder.exists(),
                callbacks=[watch],
            )

        began, processor = time.perf_counter(), time.process_time()
        ended = train()
        if not found:  # it had ended before its row was kept, and what it ended in is gone
            shutil.rmtree(folder)
            ended = train()
        return {
            "column": column.name,
            "method": name,
            "seed": seed,
            **({} if value is None else {"value": value}),
            **({"tuning": True} if tuning else {}),
            "rounds": rounds,
            "clients": len(task.clients),
            "scores": {measure: round(number, 4) for measure, number in found.items()},
            **({"failure": ended.failure} if ended.failure else {}),
            "device": str(task_device(ended)),
            "seconds": round(time.perf_counter() - began, 1),
            "processor_seconds": round(time.process_time() - processor, 1),
        }


def task_device(run: pf.Run) -> Any:
    """Where ``run`` trained."""
    return run.parameters.device.type


@dataclass
class Progress:
    """Says now and then how far a run is, and when it will have ended."""

    name: str
    rounds: int
    began: float = 0.0
    first: int = 0
    spoke: float = 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if not self.began:
            self.began, self.first, self.spoke = now, done, now
        elif now - self.spoke >= SPEAKS_EVERY and done < self.rounds:
            each = (now - self.began) / (done - self.first)
            left = each * (self.rounds - done) / 60
            print(f"  {self.name}: round {done} of {self.rounds}, {each:.2f} s each, {left:.0f} min left", flush=True)
            self.spoke = now


def same(row: Row, column: str, method: str, seed: int, value: float | None, tuning: bool) -> bool:
    """Whether ``row`` is of this run."""
    wanted = (column, method, seed, value, tuning)
    return (row["column"], row["method"], row["seed"], row.get("value"), row.get("tuning", False)) == wanted


def carried_out(study: Study, columns: Iterable[Column], names: Iterable[str], seeds: list[int] | None) -> list[str]:
    """Run what is missing of ``columns``; returns a sentence for each column or row that could not be had."""
    rows, wrong, wanted = study.kept(), [], set(names)

    def had(column: Column, name: str, seed: int, value: float | None = None, *, tuning: bool = False) -> Row:
        found = next((row for row in rows if same(row, column.name, name, seed, value, tuning)), None)
        if found is None:
            found = study.run(column, name, seed, value, tuning=tuning)
            rows.append(found)
            study.keep(rows)
            # Models of hundreds of clients; nothing goes on from them.
            shutil.rmtree(study.folder(column, name, seed, value, tuning=tuning) / CHECKPOINTS, ignore_errors=True)
            told = ", ".join(f"{measure} {found['scores'][measure]:g}" for measure in column.measures)
            kind = "tuning, " * tuning + (f"{value:g}, " if value is not None else "")
            print(f"{column.name}, {name}, seed {seed}, {kind}{told}, {found['seconds']} s", flush=True)
        return found

    def chosen(column: Column, name: str) -> float | None:
        tuned = column.methods[name].tuned
        if tuned is None:
            return None
        measure = next(iter(column.measures))

        def score(value: float) -> float:
            return float(had(column, name, TUNING_SEED, value, tuning=True)["scores"][measure])

        best = max(tuned.grid, key=score)
        further = tuned.beyond(best)
        return max((best, further), key=score) if further is not None else best

    for column in columns:
        methods = [name for name in column.methods if not wanted or name in wanted]
        try:
            study.check(column)
        except PrivflError as error:
            wrong.append(f"{column.name}: {error}")
            print(f"LEFT OUT: {wrong[-1]}", file=sys.stderr, flush=True)
            continue
        values: dict[str, float | None] = {}
        for seed in seeds or column.seeds:
            for name in methods:
                try:
                    if name not in values:
                        values[name] = chosen(column, name)
                    had(column, name, seed, values[name])
                except PrivflError as error:
                    wrong.append(f"{column.name}, {name}, seed {seed}: {error}")
                    print(f"LEFT OUT: {wrong[-1]}", file=sys.stderr, flush=True)
    return wrong


def spread(values: list[float], decimals: int) -> str:
    """Mean ± standard deviation."""
    text = f"{statistics.mean(values):.{decimals}f}"
    return text + (f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else "")


def difference(ours: dict[int, float], other: dict[int, float], decimals: int) -> str:
    """Mean of the differences over the seeds that both have, with its 95 % interval by Student's t."""
    each = [ours[seed] - other[seed] for seed in sorted(set(ours) & set(other))]
    if not each:
        return "–"
    mean = statistics.mean(each)
    if len(each) == 1:
        return f"{mean:+.{decimals}f}"
    reach = student.ppf(0.975, len(each) - 1) * statistics.stdev(each) / len(each) ** 0.5
    return f"{mean:+.{decimals}f} [{mean - reach:.{decimals}f}, {mean + reach:.{decimals}f}]"


def printed(column: Column, rows: list[Row]) -> Iterator[str]:
    """The lines of ``column`` as Markdown, of the runs that are there."""
    mine = [row for row in rows if row["column"] == column.name and not row.get("tuning")]
    first, decimals = next(iter(column.measures.items()))

    def of(name: str, measure: str) -> dict[int, float]:
        return {row["seed"]: row["scores"][measure] for row in mine if row["method"] == name}

    if not mine:
        return
    heads = [*column.measures, f"{column.ours} − it, {first}", "seeds"]
    yield f"\n| {column.name} | " + " | ".join(heads) + " |"
    yield "|---" * (1 + len(heads)) + "|"
    for name in column.methods:
        found = of(name, first)
        if not found:
            continue
        cells = [spread(list(of(name, measure).values()), places) for measure, places in column.measures.items()]
        apart = "–" if name == column.ours else difference(of(column.ours, first), found, decimals)
        failed = ", diverged" if any("failure" in row for row in mine if row["method"] == name) else ""
        yield f"| {name} | " + " | ".join([*cells, apart, f"{len(found)}{failed}"]) + " |"


def plan(table: Table) -> Iterator[str]:
    """What a table is, without running anything."""
    yield table.paper
    for column in table.columns:
        rounds = f"{column.rounds}" if isinstance(column.rounds, int) else "computed"
        seeds = ", ".join(map(str, column.seeds))
        yield f"\n{column.name}: {len(column.methods)} methods, seeds {seeds}, {rounds} rounds"
        yield f"  clients: {column.clients or 'those of the data'}; {column.training}"
        yield f"  methods: {', '.join(column.methods)}"
        for phrase in column.assumed:
            yield f"  not the paper's word: {phrase}"


def main(table: Table, arguments: list[str]) -> int:
    """The command line of ``--full``; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=f"{table.paper}, in full; what is finished is kept, and the same command goes on with the rest."
    )
    parser.add_argument("--out", type=Path, help="folder of results.json and of the run directories")
    parser.add_argument("--plan", action="store_true", help="say what would be run, and what the paper does not say")
    parser.add_argument("--only", action="append", metavar="COLUMN", help="a column by its name; may be repeated")
    parser.add_argument("--method", action="append", metavar="ROW", help="a row by its name; may be repeated")
    parser.add_argument("--seeds", type=int, nargs="+", help="in place of the table's")
    parser.add_argument("--rounds", type=int, help="in place of the table's")
    parser.add_argument("--clients", type=int, help="at most; to try things out")
    parser.add_argument("--rows", type=int, help="training examples at most; to try things out")
    parser.add_argument("--engine", choices=("auto", "loop", "vectorised"), default="auto")
    options = parser.parse_args(arguments)
    if options.plan:
        print("\n".join(plan(table)))
        return 0
    if options.out is None:
        parser.error("--out FOLDER says where results go; --plan says what would be run")
    names = {column.name for column in table.columns}
    methods = {name for column in table.columns for name in column.methods}
    for asked, known in ((options.only, names), (options.method, methods)):
        for one in set(asked or ()) - known:
            parser.error(f"there is no '{one}'; there are {', '.join(sorted(known))}")
    columns = [column for column in table.columns if not options.only or column.name in options.only]
    study = Study(table, options.out, options.rounds, options.clients, options.rows, options.engine)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        wrong = carried_out(study, columns, options.method or (), options.seeds)
        for column in columns:
            for line in printed(column, study.kept()):
                print(line)
    except ConfigError as error:
        parser.error(str(error))
    if wrong:
        print("\nLeft out:\n" + "\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0
