"""``privfl deploy``: a federation over a network, a server and clients as processes of their own."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from privfl.commands.interrupts import interruptible
from privfl.commands.printing import Json, print_json
from privfl.files import then

app = typer.Typer(
    help="Run a federation over a network: a server, and clients that hold their own data.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The party's folder.", show_default=False)]


@app.command("split")
@then()
def split_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Experiment file (TOML).", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the parties' folders go.", show_default=False)],
    url: Annotated[str, typer.Option(metavar="URL", help="Where the server will listen.")] = "stcp://127.0.0.1:8102",
    epsilon: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Each client's own budget.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="How long the server waits for answers.")] = 60.0,
) -> None:
    """Deal an experiment's data out to a folder for each party, with keys and certificates, for one machine."""
    from privfl.deploy.kits import provision
    from privfl.deploy.split import party_folders, split
    from privfl.experiment import Experiment

    experiment = Experiment.from_toml(file)
    folders = split(experiment, file.read_text(encoding="utf-8"), out, url=url, epsilon=epsilon, seconds=seconds)
    provision(party_folders(out, len(folders) - 1))
    for folder in folders:
        typer.echo(f"privfl deploy {'server' if folder == folders[0] else 'client'} {folder}")


@app.command()
@then()
def key(folder: Folder) -> None:
    """Print the public key of a party, which is drawn on the first call."""
    from privfl.deploy.party import key_of

    typer.echo(key_of(folder))


@app.command()
def client(folder: Folder) -> None:
    """Answer the server's requests until the run has ended."""
    from threading import Event

    from privfl.deploy.client import sentence_of
    from privfl.deploy.flare import serve_client
    from privfl.deploy.kits import KIT
    from privfl.deploy.party import client_of
    from privfl.deploy.split import STATE
    from privfl.errors import PrivflError
    from privfl.files import CannotWrite
    from privfl.lock import FolderLock

    def say(sentence: str) -> None:
        typer.echo(f"privfl: {sentence}", err=True)

    try:
        with FolderLock(folder / STATE).held(), interruptible("start the client again to go on"):
            one = client_of(folder, say)
            ready = f"client {one.own.number} is ready"
            serve_client(one, folder / KIT, Event(), lambda: typer.echo(ready, err=True))
    except CannotWrite as error:
        raise PrivflError(sentence_of(error)) from error


@app.command()
def server(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Run directory (FOLDER/run).", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Go on with an interrupted run.")] = False,
    like: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Repeat the noise of this simulation (fixed key).", show_default=False),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Listen here if clients reach it by another url.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Run the experiment with the clients of the federation, and print what may be claimed.

    Exits with 1 if nothing was learnt.
    """
    from privfl.commands.progress import Progress
    from privfl.deploy.flare import FlareServer
    from privfl.deploy.party import identity_of, server_of

    one = server_of(folder, lambda federation, kit: FlareServer(listen or federation.url, kit))
    try:
        with interruptible("go on with --resume"), Progress(one.experiment.schedule.rounds) as progress:
            same = None if like is None else identity_of(like)
            place = out or folder / "run"
            finished = one.run(place, resume=resume, callbacks=[progress.update], identity=same)
            progress.conclude(finished)
    finally:
        one.transport.close()
    for warning in finished.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if json:
        told = {"directory": str(finished.path), "summary": finished.summary, "failure": finished.failure}
        print_json(told | {"statement": json_module.loads(finished.statement.to_json())})
    else:
        typer.echo(f"\n{finished.statement}\n")
        typer.echo(f"Run directory: {finished.path}")
    if finished.failure:
        typer.echo(f"privfl: the run failed: {finished.failure}", err=True)
        raise typer.Exit(1)
