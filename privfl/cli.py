"""The command line. Heavy imports wait until a command needs them, so that ``--help`` is quick."""

from __future__ import annotations

import json as json_module
import os
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from privfl.commands import usage
from privfl.commands.account import app as account
from privfl.commands.catalogue import Kind, names_of
from privfl.commands.data import app as data
from privfl.commands.deploy import app as deploy
from privfl.commands.interrupts import interruptible, only_once
from privfl.commands.printing import Json, flush, is_of_printing, kept, open_streams, print_json
from privfl.commands.starting import Part, Starter
from privfl.commands.study import app as study
from privfl.errors import PrivflError
from privfl.files import then
from privfl.plain_text import let_every_text_be_printed

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(account, name="account")
app.add_typer(data, name="data")
app.add_typer(deploy, name="deploy")
app.add_typer(study, name="study")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"privfl {version('privfl')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning whose privacy claims are computed, tested and attacked."""


Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Run directory.", show_default=False)]


@app.command()
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Experiment file (TOML) or run directory.", show_default=False)
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; KEY= unsets it.", show_default=False),
    ] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Go on with an interrupted run.")] = False,
    json: Json = False,
) -> None:
    """Train one federation and print what may be claimed. Writes to runs/FILE unless --out says otherwise.

    Exits with 1 if nothing was learnt: the model never moved, has diverged, or no round had a usable upload.

    FILE may be a run's directory: --resume goes on with it, --out repeats it elsewhere.
    """
    from privfl.commands.progress import Progress
    from privfl.experiment import Experiment

    experiment = (Experiment.of_run if file.is_dir() else Experiment.from_toml)(file, set_ or [])
    folder = out or (file if file.is_dir() else Path("runs") / file.stem)
    with interruptible("go on with --resume"), Progress(experiment.schedule.rounds) as progress:
        finished = experiment.run(folder, resume=resume, callbacks=[progress.update])
        progress.conclude(finished)
    for warning in finished.warnings:
        typer.echo(f"warning: {warning}", err=True)
    with kept(f"the run is done and lies in {folder} (privfl report {quote(str(folder))} writes its page)"):
        if json:
            told = {"directory": str(folder), "summary": finished.summary, "failure": finished.failure}
            print_json(told | {"statement": json_module.loads(finished.statement.to_json())})
        else:
            typer.echo(f"\n{finished.statement}\n")
            typer.echo(f"Run directory: {folder}    (privfl report {quote(str(folder))} writes its page)")
    if finished.failure:
        typer.echo(f"privfl: the run failed: {finished.failure}", err=True)
        raise typer.Exit(1)


@app.command()
@then()
def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the study.")] = Path("demo"),
) -> None:
    """The whole idea on real digits, in a few minutes: what privacy costs, an attack, an audit, one report.

    Exits with 1 if a run failed, after all the others.
    """
    from privfl.commands.demo import run_demo

    with interruptible("repeat the command to go on"):
        failed = run_demo(out)
    if failed:
        typer.echo(f"privfl: {len(failed)} of the demo's runs failed, each named above with its reason", err=True)
        raise typer.Exit(1)


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=", ".join(Kind) + ".", show_default=False)],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="One of them, in full; an attack also by what papers call a choice of it, such as iDLG.",
            show_default=False,
            autocompletion=names_of,
        ),
    ] = None,
    json: Json = False,
    bibtex: Annotated[
        bool, typer.Option("--bibtex", metavar="", help="Print the papers of algorithms as BibTeX.")
    ] = False,
) -> None:
    """List algorithms, mechanisms, datasets, models, partitions, attacks or audits."""
    from privfl.commands.listing import show_list

    show_list(kind, name, json, bibtex)


@app.command()
@then()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("experiment.toml"),
    study: Annotated[bool, typer.Option("--study", metavar="", help="Start a study instead of one run.")] = False,
    schema: Annotated[
        bool,
        typer.Option(" /--no-schema", metavar="", help="Leave out the JSON Schema for editors.", show_default=False),
    ] = True,
) -> None:
    """Write a commented starter file that runs as it is, and beside it the JSON Schema that its first line names."""
    from privfl.commands.starting import start

    for line in start(file, Starter.study if study else Starter.experiment, schema):
        typer.echo(line)


@app.command()
@then()
def new(
    part: Annotated[Part, typer.Argument(metavar="KIND", help=", ".join(Part) + ".", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as halved_steps.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write it.")] = Path("."),
) -> None:
    """Write an algorithm, mechanism or attack of one's own: a file that works, and a test beside it that passes."""
    from privfl.commands.starting import new_part

    for line in new_part(part, name, out):
        typer.echo(line)


@app.command()
def schema(
    kind: Annotated[Starter, typer.Argument(metavar="KIND", help=", ".join(Starter) + ".", show_default=False)],
) -> None:
    """Print the JSON Schema of experiment or study files, by which editors complete and check them."""
    from privfl.commands.catalogue import SHIPPED

    typer.echo((SHIPPED / f"{kind.value}.schema.json").read_text(encoding="utf-8"), nl=False)


@app.command()
@then()
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder of a run, of a study in its store, or of the demo.", show_default=False
        ),
    ],
    json: Json = False,
) -> None:
    """Write report.html for a run or a study."""
    from privfl.study.report import report_directory

    page = report_directory(folder)
    if json:
        print_json({"report": str(page)})
    else:
        typer.echo(f"Report: {page}")


@app.command()
@then()
def attack(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Attack file (TOML), or a run directory.", show_default=False)
    ],
    all_: Annotated[
        bool, typer.Option("--all", metavar="", help="Attack the run with everything that applies.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time for each attack (60).", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Run attacks on a recorded run and say what they gained over guessing.

    FILE names the run directory (run = "…", recorded with record = true) and lists "attack" tables.

    Results go to its folder attacks/.

    With --all FILE is the run directory itself. The best attacks are listed by what the attacker does.

    Optional keys: seed, public_share (of the held-out examples, that the attacker owns, 0.5), candidates (2000).
    """
    from privfl.commands.attack import attack_run

    with interruptible("what is finished stays in the run's folder attacks/"):
        attack_run(file, everything=all_, budget=budget, as_json=json)


@app.command()
@then()
def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Audit file (TOML).", show_default=False)],
    json: Json = False,
) -> None:
    """Test what an experiment claims: certified lower bounds on ε beside the statement. Exits with 1 if one is refuted.

    FILE names an experiment (experiment = "…", or run = "…" for a run directory's) and lists "audit" tables.

    It is trained anew with canaries, and results go to the run directory's folder audits/.

    Optional keys: confidence (0.95), seed (of the auditor's coins, 0).
    """
    from privfl.commands.audit import audit_experiment

    with interruptible("what is finished stays in the folder audits/"):
        refuted = audit_experiment(file, as_json=json)
    if refuted:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: a user's error is one sentence and exit code 2; PRIVFL_DEBUG=1 shows where it came from."""
    open_streams()
    let_every_text_be_printed()
    with only_once():
        _run_command()


def _run_command() -> None:
    try:
        code = usage.command_of(app).main(prog_name="privfl", standalone_mode=False)
    except usage.UsageError as error:
        if usage.shows_help(error):
            typer.echo(error)
            sys.exit(2)
        _stop(usage.sentence(error), 2)
    except typer.Abort:
        _stop("stopped", 1)
    except PrivflError as error:
        _stop(str(error), 2)
    except OSError as error:
        where = error.filename or ("standard output" if is_of_printing(error) else "the disk")
        _stop(f"{where}: {error.strerror or error}; what was saved before is intact", 2)
    else:
        if isinstance(code, int) and code:
            sys.exit(code)


def _stop(sentence: str, code: int) -> None:
    if os.environ.get("PRIVFL_DEBUG"):
        raise
    flush()  # what was printed before comes first
    print(f"privfl: {sentence}", file=sys.stderr)
    sys.exit(code)
