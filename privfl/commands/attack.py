"""``privfl attack``: run attacks on a recorded run, as a TOML file lists them.

    run = "runs/fedavg"            # a run directory with a transcript (record = true in the experiment)
    seed = 0
    public_share = 0.5             # of the held-out examples, that the attacker owns; the others are non-members
    candidates = 2000              # at most so many records are asked about
    task = "my_data:hospitals"     # only for runs on data from Python: a function that returns their task
    [[attack]]
    name = "label-counts"          # see `privfl list attacks`, or module:Name; the other keys are the attack's settings
    [[attack]]
    name = "lira"
    [attack.shadows]
    count = 16

In place of [[attack]] stands ``all = true`` for everything that applies, each for ``budget`` seconds at most; ``privfl
attack RUN --all`` is short for a file with that and nothing else. Beside it [pixels] may give the ``mean`` and ``std``
by which images of one's own were normalised. Results are written to the run directory: ``attacks/NAME.json`` and
``attacks/NAME.png``.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from privfl.commands.printing import print_json
from privfl.companions import companion
from privfl.errors import ConfigError
from privfl.schema import build, choose_each, read_toml
from privfl.study.attacks import FOLDER, REFUSED

if TYPE_CHECKING:
    from privfl.simulation.run_directory import RunDirectory


@dataclass(frozen=True)
class Plan:
    """What an attack file asks for; the fields are its keys."""

    run: str
    seed: int = 0
    public_share: float = 0.5
    candidates: int = 2000
    task: str | None = None
    all: bool = False
    budget: float = 60.0
    pixels: Mapping[str, Any] | None = None
    attack: Any = ()

    def __post_init__(self) -> None:
        if not 0 < self.public_share < 1:
            raise ConfigError(f"public_share is {self.public_share}; give a number in (0, 1)")
        if self.candidates < 2:
            raise ConfigError(f"candidates is {self.candidates}; give at least 2")
        if not self.attack and not self.all:
            raise ConfigError("the file has no attack; write [[attack]] once for each, or all = true")
        if self.attack and self.all:
            raise ConfigError("the file has all = true and lists attacks besides; leave one of them out")
        if self.attack and self.pixels is not None:
            raise ConfigError("the file has [pixels] and lists attacks; write [attack.pixels] under each on images")
        if not self.budget > 0:
            raise ConfigError(f"budget is {self.budget}; give a positive number of seconds for each attack")


def plan_of(path: Path, *, everything: bool, budget: float | None) -> Plan:
    """What the file ``path`` asks for, or, for a run's directory, everything.

    Raises:
        ConfigError: it is a directory and everything was not asked for, or the file cannot be read.
    """
    given: dict[str, Any] = {} if budget is None else {"budget": budget}
    if everything:
        if not path.is_dir():
            raise ConfigError(f"--all attacks a run, and {path} is no directory; give that of a run, or drop --all")
        return build(Plan, {"run": str(path), "all": True, **given})
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; add --all to attack the run with everything, or give an attack file")
    return build(Plan, {**read_toml(path, "an attack file"), **given})


def attack_run(path: Path, *, everything: bool = False, budget: float | None = None, as_json: bool = False) -> None:
    """Run every attack of the file ``path``, or all there are; print the results and write them beside the run."""
    plan = plan_of(path, everything=everything, budget=budget)
    attacks, run = read_attacks(plan.attack), Path(plan.run)
    pixels = None if plan.pixels is None else build(companion("attacks.images.pixels").Pixels, plan.pixels, "pixels")
    judge = companion("attacks.judge").Judge.of(run, plan.seed, plan.public_share, plan.candidates, plan.task, pixels)
    if plan.all:
        return attack_with_all(run, judge, plan, as_json=as_json)
    found = []
    for result in attack_folder(run, judge, attacks, again=True):
        found.append(result.to_json())
        if not as_json:
            typer.echo(f"{result}\n")
    if as_json:
        print_json({"directory": str(run / "attacks"), "results": found})
        return
    typer.echo(f"Results: {run / 'attacks'}    (privfl report {quote(str(run))} shows them)")


def read_attacks(tables: Any) -> tuple[Any, ...]:
    """The attacks that a file's ``tables`` name.

    Raises:
        ConfigError: one is unknown, or a setting of it is.
    """
    registry = companion("attacks.registry")
    for table in tables if isinstance(tables, list | tuple) else ():
        name = table.get("name") if isinstance(table, Mapping) else None
        if isinstance(name, str) and name not in registry.ATTACKS and (written := registry.chosen_by(name)):
            raise ConfigError(f"'{name}' is a choice of an attack; write [[attack]] with {written}")
    attacks: tuple[Any, ...] = choose_each(registry.ATTACKS, tables, "attack", registry.Attack)
    return attacks


def attack_folder(run: Path, judge: Any, attacks: Sequence[Any], *, again: bool) -> Iterator[Any]:
    """Run ``attacks`` one by one on the recorded ``run`` and file each result there; nobody else may be at the run.

    Of an attack that does not fit the run, the reason is filed, for the report.

    Args:
        again: also those whose result is there already.

    Raises:
        ConfigError: the run was not recorded, an attack does not fit it, or another process is at it.
    """
    from privfl.simulation.run_directory import RunDirectory
    from privfl.simulation.transcript import Transcript

    directory, folder, used = RunDirectory(run), run / "attacks", Counter[str]()
    with directory.held():
        directory.make_folder(folder.name)
        for attack in attacks:
            used[attack.name] += 1
            label = attack.name if used[attack.name] == 1 else f"{attack.name}-{used[attack.name]}"
            if not again and (folder / f"{label}.json").exists():
                continue
            seen = Transcript.load(run, attack.observer, judge.task.model)
            try:
                result = attack.run(seen, judge.auxiliary(attack, attack.needs))
            except ConfigError as error:
                file_refusal(directory, label, str(error))
                raise ConfigError(f"{label}: {error}") from error
            file_result(directory, label, result)
            yield result


def attack_with_all(run: Path, judge: Any, plan: Plan, *, as_json: bool) -> None:
    """Attack ``run`` with everything that applies, file what each attack found, and print the best."""
    from privfl.simulation.run_directory import RunDirectory

    battery = companion("attacks.battery.battery")
    directory, made = RunDirectory(run), []
    with directory.held():
        for one in battery.attempts(run, judge, budget=plan.budget, task=plan.task):
            made.append(one)
            if one.result is None:
                file_refusal(directory, one.label, one.reason)
            else:
                file_result(directory, one.label, one.result)
            if not as_json:
                typer.echo(f"{one.label}: {one.reason or one.advantage}", err=True)
    found = battery.Battery(tuple(made))
    if as_json:
        print_json({"directory": str(run / FOLDER), **found.to_json()})
        return
    typer.echo(f"{found}\n\nResults: {run / FOLDER}    (privfl report {quote(str(run))} shows them)")


def file_result(directory: RunDirectory, label: str, result: Any) -> None:
    """Write ``result`` and its figure to the folder of attacks, in place of a refusal that may lie there."""
    directory.make_folder(FOLDER)
    (directory.path / FOLDER / REFUSED / f"{label}.json").unlink(missing_ok=True)
    picture = io.BytesIO()
    result.figure().savefig(picture, dpi=140)
    directory.write(f"{FOLDER}/{label}.png", picture.getvalue())
    directory.write_json(f"{FOLDER}/{label}.json", result.to_json())


def file_refusal(directory: RunDirectory, label: str, reason: str) -> None:
    """Write down why an attack does not fit the run, for the report."""
    directory.make_folder(FOLDER)
    directory.make_folder(f"{FOLDER}/{REFUSED}")
    directory.write_json(f"{FOLDER}/{REFUSED}/{label}.json", {"reason": reason})
