"""``privfl study``: run a study file, and look at what it found. Heavy imports wait until a run has to be had."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from privfl.commands.examine import check, examine
from privfl.commands.interrupts import interruptible
from privfl.commands.printing import Json, print_json
from privfl.files import then
from privfl.study.file import Study
from privfl.study.results import Results, fronts
from privfl.study.store import Store
from privfl.study.tables import Format, as_json, plain, write_table

app = typer.Typer(help="Run many experiments along axes, and compare them.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Study file (TOML).", show_default=False)]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the store, which studies may share.")]
Metric = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Judge by another metric than the study's own.", show_default=False),
]
STORE = Path("studies")


@app.command()
@then()
def run(
    file: File,
    out: Out = STORE,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; KEY= unsets it.", show_default=False),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Runs side by side; by default one for each core.", show_default=False),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ray cluster whose processes have the runs.", show_default=False),
    ] = None,
    skip_impossible: Annotated[
        bool, typer.Option("--skip-impossible", metavar="", help="Go on without the runs that cannot be.")
    ] = False,
    json: Json = False,
) -> None:
    """Train every run of FILE that is not finished yet, and print the table. Repeat the command to go on.

    Exits with 1 if a run failed, after all the others.
    """
    study = Study.from_toml(file, set_ or [])
    with interruptible("repeat the command to go on"):
        results = study.run(
            out,
            name=file.stem,
            processes=processes,
            address=address,
            skip_impossible=skip_impossible,
            examine=examine,
            check=check,
        )
    failed = [one for one in results.members if one.state == "failed"]
    if results.done:
        typer.echo(write_table(results, Format.json if json else Format.text))
    for one in failed:
        typer.echo(f"failed: {one}: {one.reason}", err=True)
    if not json:
        typer.echo(f"\n{_count(results)}    (privfl study report {file} writes a page)")
    if failed:
        raise typer.Exit(1)


@app.command()
@then()
def status(file: File, out: Out = STORE, json: Json = False) -> None:
    """Say how far FILE is: what is done, in flight, interrupted, failed, and why."""
    from privfl.study.locks import in_use

    store = Store(out, create=False)
    results = _read(store, file, None)
    states = [
        "interrupted" if one.state == "running" and not in_use(store.path(one.run)) else one.state
        for one in results.members
    ]
    if json:
        rows = [
            {"method": one.method, "level": one.level, "seed": one.seed, "run": one.run, "state": state,
             "reason": one.reason} for one, state in zip(results.members, states, strict=True)
        ]  # fmt: skip
        typer.echo(as_json(rows))
        return
    for state, number in Counter(states).items():
        typer.echo(f"{number} {'in flight' if state == 'running' else state}")
    for one, state in zip(results.members, states, strict=True):
        if state not in ("done", "waiting"):
            typer.echo(f"  {state}: {one}{': ' + one.reason if one.reason else ''}")


@app.command()
@then()
def table(
    file: File,
    out: Out = STORE,
    metric: Metric = None,
    format_: Annotated[Format, typer.Option("--format", metavar="FORMAT", help=", ".join(Format) + ".")] = Format.text,
    json: Json = False,
) -> None:
    """Print mean, standard deviation and interval over seeds, and ε; CSV and JSON hold every figure of every run."""
    typer.echo(write_table(_read(Store(out, create=False), file, metric), Format.json if json else format_))


@app.command()
@then()
def compare(file: File, out: Out = STORE, metric: Metric = None, json: Json = False) -> None:
    """Say which methods the seeds tell apart, and which are on the Pareto fronts."""
    from privfl.study.compare import compare as compare_all
    from privfl.study.compare import sentences

    results = _read(Store(out, create=False), file, metric)
    comparisons, best = compare_all(results), fronts(results)
    if json:
        warned = {"warnings": results.warnings} if results.warnings else {}
        typer.echo(as_json({"comparisons": [asdict(one) for one in comparisons], "fronts": best, **warned}))
        return
    typer.echo("\n".join(sentences(results, comparisons)))
    typer.echo(f"\nNot beaten in both {results.metric} and the cost named:")
    body = [[cost, "; ".join(f"{method}, {level}" for method, level in members)] for cost, members in best.items()]
    typer.echo(plain(["cost", "methods"], body))
    for warning in results.warnings:
        typer.echo(f"\n{warning}")


@app.command()
@then()
def plot(file: File, out: Out = STORE, metric: Metric = None, json: Json = False) -> None:
    """Draw utility against every cost that was measured."""
    from privfl.study.shown import plot_results

    store = Store(out, create=False)
    results = _read(store, file, metric)
    paths = plot_results(results, store.folder / file.stem / "figures")
    if json:
        warned = {"warnings": results.warnings} if results.warnings else {}
        print_json({"figures": [str(path) for path in paths], **warned})
    else:
        typer.echo("\n".join([*map(str, paths), *results.warnings]))


@app.command()
@then()
def report(file: File, out: Out = STORE, metric: Metric = None, json: Json = False) -> None:
    """Write the page of the study."""
    from privfl.study.shown import report_study

    store = Store(out, create=False)
    page = report_study(_read(store, file, metric), store, store.folder / file.stem)
    if json:
        print_json({"report": str(page)})
    else:
        typer.echo(f"Report: {page}")


def _read(store: Store, file: Path, metric: str | None) -> Results:
    """What ``store`` holds of the study in ``file``; says so where the file asks for other runs by now."""
    results = Results.of(store, file.stem, metric)
    asked = {str(point) for point in Study.from_toml(file).points()}
    if asked != (there := {str(one) for one in results.members}):
        typer.echo(
            f"note: {file} asks for other runs than were last started ({len(asked - there)} more, {len(there - asked)} "
            "fewer); this shows the latter",
            err=True,
        )
    return results


def _count(results: Results) -> str:
    states = Counter(one.state for one in results.members)
    return ", ".join(f"{number} {state}" for state, number in states.items())
