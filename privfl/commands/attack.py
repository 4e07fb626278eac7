"""``privfl attack``: run attacks on a recorded run, as a TOML file lists them.

    run = "runs/fedavg"            # a run directory with a transcript (record = true in the experiment)
    seed = 0
    public_share = 0.5             # of the held-out examples, that the attacker owns; the others are non-members
    candidates = 2000              # at most so many records are asked about
    [[attack]]
    name = "label-counts"          # see `privfl list attacks`; the other keys are the attack's settings
    [[attack]]
    name = "lira"
    [attack.shadows]
    count = 16

Results are written to the run directory: ``attacks/NAME.json`` and ``attacks/NAME.png``.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from privfl.companions import companion
from privfl.errors import ConfigError, unknown

_KEYS: dict[str, tuple[type | tuple[type, ...], Any]] = {
    "run": (str, None),
    "seed": (int, 0),
    "public_share": ((int, float), 0.5),
    "candidates": (int, 2000),
    "attack": (list, None),
}


@dataclass(frozen=True)
class Plan:
    """What an attack file asks for."""

    run: Path
    seed: int
    public_share: float
    candidates: int
    attacks: tuple[Any, ...]


def read_plan(path: Path, registry: Any, schema: Any) -> Plan:
    """The plan in the TOML file ``path``; ``registry`` and ``schema`` are the modules of that name in ``attacks``.

    Raises:
        ConfigError: it cannot be read, or a setting is unknown or impossible.
    """
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of an attack file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    for key in settings:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    values = {key: _checked(settings, key, kind, default) for key, (kind, default) in _KEYS.items()}
    if not 0 < values["public_share"] < 1:
        raise ConfigError(f"public_share is {values['public_share']}; give a number in (0, 1)")
    if values["candidates"] < 2:
        raise ConfigError(f"candidates is {values['candidates']}; give at least 2")
    if not values["attack"] or not all(isinstance(table, Mapping) for table in values["attack"]):
        raise ConfigError("attack is not a list of tables; write [[attack]] once for each attack")
    built = tuple(schema.attack_from(table, registry.ATTACKS) for table in values["attack"])
    return Plan(Path(values["run"]), values["seed"], float(values["public_share"]), values["candidates"], built)


def _checked(settings: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any) -> Any:
    value = settings.get(key, default)
    if value is None:
        raise ConfigError(
            f"the file has no {key}; " + ("name a run directory" if key == "run" else "add an [[attack]]")
        )
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}; give a value of the kind in `privfl attack --help`")
    return value


def attack_run(path: Path) -> None:
    """Run every attack of the file ``path``; print the results and write them beside the run."""
    registry, schema = (companion(f"attacks.{name}") for name in ("registry", "schema"))
    plan = read_plan(path, registry, schema)
    from privfl.commands.judge import Judge
    from privfl.simulation.run_directory import write_whole
    from privfl.simulation.transcript import Transcript

    judge = Judge.of(plan.run, plan.seed, plan.public_share, plan.candidates)
    folder, used = plan.run / "attacks", Counter[str]()
    for attack in plan.attacks:
        used[attack.name] += 1
        label = attack.name if used[attack.name] == 1 else f"{attack.name}-{used[attack.name]}"
        seen = Transcript.load(plan.run, attack.observer)
        try:
            result = attack.run(seen, judge.auxiliary(attack, registry.NEEDS[attack.name]))
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from error
        write_whole(folder / f"{label}.json", (json.dumps(result.to_json(), indent=2) + "\n").encode())
        result.figure().savefig(folder / f"{label}.png", dpi=140)
        typer.echo(f"{result}\n")
    typer.echo(f"Results: {folder}    (privfl report {plan.run} shows them)")
