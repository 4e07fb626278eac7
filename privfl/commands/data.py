"""``privfl data``: fetch datasets, describe them, draw partitions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from privfl.commands.catalogue import dataset_names
from privfl.commands.printing import Json, console, print_json

app = typer.Typer(help="Fetch a dataset, describe it, or draw a partition of it.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Dataset; see `privfl list datasets`.", show_default=False, autocompletion=dataset_names
    ),
]


@app.command()
def get(name: Name, json: Json = False) -> None:
    """Download a dataset (resumable, checked), or find it in the folder that PRIVFL_DATA names."""
    from privfl.data.catalog import fetch

    files = fetch(name)
    if json:
        print_json({"name": name, "files": [str(file) for file in files]})
        return
    for file in files:
        typer.echo(file)
    if not files:
        typer.echo(f"{name} needs no file")


@app.command()
def info(name: Name, json: Json = False) -> None:
    """Licence, citation, shapes, classes, clients and files of a dataset."""
    from rich.markup import escape
    from rich.table import Table

    from privfl.data.catalog import info as entry_of
    from privfl.data.catalog import options

    entry = entry_of(name)
    if json:
        print_json({**asdict(entry), "options": options(name)})
        return
    table = Table(show_header=False, title=entry.title, title_justify="left")
    rows = {
        "name": entry.name,
        "task": entry.task,
        "inputs": entry.inputs,
        "classes": entry.classes,
        "rows (train, test)": " and ".join(f"{count:,}" for count in entry.rows)
        if entry.rows
        else "as many as you prepared",
        "natural clients": entry.client_id or "none: choose a partition",
        "files": "\n".join(address for address, _ in entry.downloads) or "none",
        "licence": entry.licence,
        "citation": entry.citation,
        "notes": entry.notes,
        "options": ", ".join(f"{key} = {value}" for key, value in options(name).items()) or "none",
    }
    for key, value in rows.items():
        table.add_row(key, escape(str(value)))
    console().print(table)


@app.command()
def plot(
    name: Name,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Picture to write (PNG, SVG or PDF).")] = Path(
        "partition.png"
    ),
    partition: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Partition; the dataset's own clients without one.", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the partition.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Root seed.")] = 0,
    json: Json = False,
) -> None:
    """Draw who holds what: a heat map of clients × classes, with the sizes beside it."""
    from privfl.data.catalog import load_dataset
    from privfl.experiment import Experiment
    from privfl.schema import override

    settings: dict[str, object] = {"dataset": {"name": name}, "seed": seed}
    if partition is not None:
        settings["partition"] = {"name": partition}
    for setting in set_ or []:
        override(settings, f"partition.{setting}")
    task = Experiment.from_dict(settings).task()
    assert task.report is not None
    names = load_dataset(name, seed=seed).class_names
    task.report.figure(names, f"{name}, {partition or 'natural clients'}").savefig(out, dpi=150)
    summary = task.report.summary()
    if json:
        print_json({"picture": str(out), "clients": len(task.clients), "summary": summary})
        return
    typer.echo(f"{out}: {len(task.clients):,} clients, sizes {task.clients.sizes.min()} to {task.clients.sizes.max()}")
    typer.echo("  ".join(f"{key} {value}" for key, value in summary.items() if isinstance(value, int | float)))
