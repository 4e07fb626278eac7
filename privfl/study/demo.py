"""The main job: a first privacy–utility study on real digits, from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from privfl.errors import PrivflError
from privfl.experiment import Experiment
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.run_directory import RunDirectory
from privfl.study.findings import findings, percent
from privfl.study.grid import Cell, Summary, run_study, summarise
from privfl.study.plots import finite
from privfl.study.report import report_directory

TITLE = "Privacy and utility on digits: FedAvg against FedSampling"
LEVELS: dict[str, float | None] = {"no privacy": None, "ε = 8": 8.0, "ε = 3": 3.0, "ε = 1": 1.0}
ROUNDS = 60
SIZE = {"name": "laplace", "epsilon": 4.0, "bound": 160, "lower": 20}
"""How clients report their sizes: the range is public knowledge about the federation, not taken from its data.
An answer costs the client ε = 4, and one example, which moves its client's size by 1 of 140, only 4/140 < 0.03."""


def settings(method: str, target: float | None, seed: int, rounds: int) -> dict[str, Any]:
    """The experiment of one run. ``target`` is ε for one example over the whole run, the size response included."""
    common: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "evaluate_every": 5,
        "workers": 1,
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 20, "alpha": 1.0, "skew": "both"},
        "model": {"name": "logistic"},
    }
    privacy: dict[str, Any] = {"size": SIZE, "max_size_error": 1.0}
    if method == "FedAvg":
        if target is not None:
            privacy["training"] = {"target_epsilon": target, "sample_rate": 0.25, "max_grad_norm": 1.0}
        training = {"learning_rate": 0.5, "batch_size": 18, "epochs": 1}
        return common | {"algorithm": {"name": "fedavg"}, "training": training, "privacy": privacy}
    if target is not None:
        privacy["training"] = {"target_epsilon": target, "noise_at": "server", "max_grad_norm": 1.0}
    return common | {
        "algorithm": {"name": "fedsampling", "samples_per_round": 300},
        "training": {"learning_rate": 2.0},
        "privacy": privacy,
    }


def cells(seeds: int, rounds: int) -> list[Cell]:
    """FedAvg and FedSampling × four levels × ``seeds``; every ε of one method trains with the same learning rate."""
    return [
        Cell(method, level, Experiment.from_dict(settings(method, target, seed, rounds)))
        for method in ("FedAvg", "FedSampling")
        for level, target in LEVELS.items()
        for seed in range(seeds)
    ]


def run_demo(out: Path, *, seeds: int = 3, rounds: int | None = None) -> None:
    """Run the study into ``out``, print its table, and write the figures and ``report.html``.

    FedAvg's clients add their noise themselves, so its claims hold against the server too. FedSampling's noise is added
    once, to the sum, which costs less accuracy and protects against the public only.

    Raises:
        PrivflError: every run failed.
    """
    rounds = ROUNDS if rounds is None else rounds
    console = Console()
    runs = cells(seeds, rounds)
    task = Experiment.from_dict(settings("FedAvg", None, 0, rounds)).task()
    console.print(
        f"[bold]{TITLE}[/bold]\n{len(task.targets):,} images at {len(task.clients)} clients, {seeds} seeds, {rounds} "
        "rounds, δ = 1e-5.\n"
    )
    results, failures = run_study(runs, out, title=TITLE)
    if not results:
        raise PrivflError(f"no run of the demo succeeded; the first says: {failures[0]}")
    rows = summarise(results)
    console.print(table(rows))
    for sentence in findings(rows):
        console.print(sentence, highlight=False)
    console.print()
    for method in ("FedAvg", "FedSampling"):
        folder = next((r.folder for r in results if (r.method, r.level) == (method, "ε = 3")), None)
        if folder is not None:
            statement = RunDirectory(out / "runs" / folder).ending()[1]
            console.print(in_words(method, statement), highlight=False, soft_wrap=True)
    page = report_directory(out)
    for failure in failures:
        console.print(f"[red]failed:[/red] {failure}", highlight=False, soft_wrap=True)
    console.print(f"\nReport: {page}\nFigures: {out / 'figures'}\nResults: {out / 'results.csv'}", soft_wrap=True)


def table(rows: list[Summary]) -> Table:
    """The study's table for the terminal."""
    shown = Table("method", "level", title_justify="left")
    for name in ("accuracy", "ε server", "ε public"):
        shown.add_column(name, justify="right")
    for row in rows:
        claims = (finite(row.epsilons[f"sample/{observer}"]) for observer in ("server", "public"))
        shown.add_row(row.method, row.level, percent(row), *claims, end_section=row.level == list(LEVELS)[-1])
    shown.caption = "ε for one example at δ = 1e-5, the size response included"
    return shown


def in_words(method: str, statement: Statement) -> str:
    """What one statement says about an example, before the server and before the public."""
    parts = []
    for observer, who in (("server", "the server"), ("public", "whoever sees the released models")):
        cell = statement.cell("sample", "server" if observer == "server" else "public")
        if cell.reasons:
            parts.append(f"against {who} nothing is claimed ({cell.reasons[0]})")
        else:
            parts.append(f"against {who} one example has ε = {finite(cell.epsilon)} at δ = {statement.delta:g}")
    return f"{method} at ε = 3: {'; '.join(parts)}."
