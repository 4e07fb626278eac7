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

Results are written to the run directory: ``attacks/NAME.json`` and ``attacks/NAME.png``.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from privfl.companions import companion
from privfl.errors import ConfigError
from privfl.schema import build, choose_each, read_toml


@dataclass(frozen=True)
class Plan:
    """What an attack file asks for; the fields are its keys."""

    run: str
    seed: int = 0
    public_share: float = 0.5
    candidates: int = 2000
    task: str | None = None
    attack: Any = ()

    def __post_init__(self) -> None:
        if not 0 < self.public_share < 1:
            raise ConfigError(f"public_share is {self.public_share}; give a number in (0, 1)")
        if self.candidates < 2:
            raise ConfigError(f"candidates is {self.candidates}; give at least 2")
        if not self.attack:
            raise ConfigError("the file has no attack; write [[attack]] once for each")


def attack_run(path: Path) -> None:
    """Run every attack of the file ``path``; print the results and write them beside the run."""
    registry = companion("attacks.registry")
    plan = build(Plan, read_toml(path, "an attack file"))
    attacks: tuple[Any, ...] = choose_each(registry.ATTACKS, plan.attack, "attack", registry.Attack)
    run = Path(plan.run)
    from privfl.commands.judge import Judge
    from privfl.simulation.run_directory import RunDirectory
    from privfl.simulation.transcript import Transcript

    judge = Judge.of(run, plan.seed, plan.public_share, plan.candidates, plan.task)
    directory, folder, used = RunDirectory(run), run / "attacks", Counter[str]()
    with directory.held():
        directory.make_folder(folder.name)
        for attack in attacks:
            used[attack.name] += 1
            label = attack.name if used[attack.name] == 1 else f"{attack.name}-{used[attack.name]}"
            seen = Transcript.load(run, attack.observer, judge.task.model)
            try:
                result = attack.run(seen, judge.auxiliary(attack, attack.needs))
            except ConfigError as error:
                raise ConfigError(f"{label}: {error}") from error
            picture = io.BytesIO()
            result.figure().savefig(picture, dpi=140)
            directory.write(f"{folder.name}/{label}.png", picture.getvalue())
            directory.write_json(f"{folder.name}/{label}.json", result.to_json())
            typer.echo(f"{result}\n")
    typer.echo(f"Results: {folder}    (privfl report {run} shows them)")
