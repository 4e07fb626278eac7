"""One self-contained HTML page for a run or a study. It shows what the files say and computes no claim of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privfl.errors import DataError
from privfl.files import read_json
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.result import Run
from privfl.simulation.run_directory import Metrics, RunDirectory, environment
from privfl.study.assurance import answers, standing, unprotected
from privfl.study.attacks import read_attacks
from privfl.study.audits import read_audits
from privfl.study.findings import Measure
from privfl.study.page import clients_section, flat, picture, problems, render, save, sound, write
from privfl.study.plots import run_charts
from privfl.study.provenance import Facts, code, describe_run, not_tried
from privfl.study.results import Results
from privfl.study.shown import report_study
from privfl.study.store import FILE as STORE
from privfl.study.store import OWN_PAGE, RUNS, Store

CAPTIONS = {
    "loss": "How badly the model predicts held-out examples, over the rounds.",
    "metric": "How well it does on held-out examples, over the rounds.",
    "epsilon": "An upper bound on ε so far, which ends at the statement's ε.",
}
SHARES = ("accuracy", "f1", "recall", "precision")
"""Words in the name of a metric that is a share in [0, 1]."""


def report_directory(path: Path) -> Path:
    """Write ``report.html`` (and the figures) for a run or a study; returns the page's path.

    Args:
        path: directory of a run, folder of a study in its store, or a store with a page of its own, as of the demo.

    Raises:
        DataError: ``path`` is none of these, or a file of it is missing or damaged.
    """
    if (path / "statement.json").exists():
        with sound(path):
            RunDirectory(path).settle()
            return write(_read_run(path), path / "report.html")
    if (path / STORE).exists():
        return _study(path, OWN_PAGE)
    if (path.parent / STORE).exists():
        return _study(path.parent, path.name)
    mend = "give the directory of a run, or the folder of a study in its store"
    if (path / "environment.json").exists():
        mend = "the run is not finished, go on with --resume"
    elif (path / RUNS).is_dir():
        mend = f"its index {STORE} is gone, start the study again: what is finished is not repeated"
    raise DataError(f"{path} holds no finished run and no study; {mend}")


def write_report(run: Run, path: Path | str) -> None:
    """Write the page of one run to the file ``path``; a run that has a directory shows its settings too.

    Raises:
        DataError: a file of the run's directory is missing or damaged.
    """
    if run.path is None:
        machine = environment()
        facts = [*code(machine), ("data", f"{run.summary['dataset']}; the run was kept in memory")]
        page = _run_page(run.statement, run.metrics, run.summary, machine, facts)
    else:
        with sound(run.path):
            page = _read_run(run.path)
    write(page, Path(path))


def headline(summary: Mapping[str, Any]) -> Measure:
    """What the run's task is judged by; runs of older versions are classifications."""
    told = summary.get("headline", {})
    key = str(told.get("name", "test_accuracy"))
    share = any(word in SHARES for word in key.split("_"))
    return Measure(key, key.replace("_", " "), share, bool(told.get("lower_is_better", not share)))


def _study(folder: Path, name: str) -> Path:
    """The page of the study ``name`` of the store in ``folder``."""
    store = Store(folder, create=False)
    if name not in (known := store.studies()):
        told = ", ".join(str(folder / one) for one in known) or "none"
        raise DataError(f"{folder / name} is the folder of no study; the store holds {told}")
    with sound(store.file):
        return report_study(Results.of(store, name), store, folder / name)


def _read_run(path: Path) -> str:
    summary, statement, metrics = RunDirectory(path).ending()
    machine = read_json(path / "environment.json")
    if len(metrics) != summary["rounds"]:
        raise DataError(
            f"{path / 'metrics.jsonl'} holds {len(metrics)} sound lines for {summary['rounds']} rounds; repeat the run"
        )
    text = RunDirectory(path).config_file().read_text(encoding="utf-8")
    return _run_page(statement, metrics, summary, machine, describe_run(path), path=path, settings=text)


def _run_page(
    statement: Statement,
    metrics: Sequence[Metrics],
    summary: dict[str, Any],
    machine: Mapping[str, Any],
    origin: Facts,
    *,
    path: Path | None = None,
    settings: str = "",
) -> str:
    measure = headline(summary)
    charts = run_charts(metrics, measure)
    clients = attacks = audits = None
    untried = ["Attacks and audits: the run was kept in memory, so there is nothing to try them on."]
    if path is not None:
        for name, chart in charts.items():
            save(chart, path / "figures" / f"{name}.png")
        clients, untried = clients_section(path, path / "figures", ""), not_tried(path)
        attacks, audits = read_attacks(path), read_audits(path)
    return render(
        title=f"{summary['algorithm']} on {summary['dataset']}",
        subtitle=f"One training run: {summary['clients']:,} clients, model {summary['model']}, {len(metrics)} rounds",
        opening=[],
        standing=standing(statement),
        answers=answers(statement),
        unprotected=unprotected(statement, study=False),
        findings=_found(summary, measure),
        results=None,
        figures=[picture(name, chart, CAPTIONS[name]) for name, chart in charts.items()],
        statements=[{"name": "", "html": Markup(statement.to_html())}],
        sweep=None,
        attacks=attacks,
        audits=audits,
        untried=untried,
        clients=clients,
        warnings=problems(summary),
        facts=origin + _facts(summary),
        environment=flat(machine),
        settings=[{"name": "All settings (config.toml)", "text": settings}] if settings else [],
    )


def _shown(summary: Mapping[str, Any], name: str) -> str:
    """The metric ``name`` for readers."""
    value = summary[name]
    if value is None:
        return "not finite"
    return f"{100 * value:.1f} %" if name == "test_accuracy" else f"{value:.3f}"


def _found(summary: Mapping[str, Any], measure: Measure) -> list[str]:
    reached = "was never evaluated on the test data"
    if "test_loss" in summary:
        reached = f"reaches a {measure.name} of {_shown(summary, measure.key)}"
        if "test_macro_f1" in summary:
            reached += f" and a macro-F1 of {_shown(summary, 'test_macro_f1')}"
    sentences = [f"After {summary['rounds']} rounds {summary['algorithm']} {reached}."]
    if summary["stopped"] == "budget":
        sentences.append("The run stopped early because the next round would have exceeded its privacy budget.")
    if summary["stopped"] == "callback":
        sentences.append("The run stopped early because a callback ended it.")
    return sentences


def _facts(summary: Mapping[str, Any]) -> Facts:
    facts = [(name, f"{summary[name]}") for name in ("algorithm", "model", "clients", "rounds")]
    if "test_loss" in summary:
        loss = "not finite" if summary["test_loss"] is None else f"{summary['test_loss']:.4f}"
        nats = "" if summary["test_loss"] is None or headline(summary).key == "test_rmse" else " nats"
        facts.append(("test loss", f"{loss}{nats}"))
    noise = summary["noise_multiplier"]
    if noise is not None:
        told = f"{noise:.4g}" if isinstance(noise, int | float) else f"{min(noise):.4g} to {max(noise):.4g}, by client"
        facts.append(("noise multiplier", told))
    return facts
