"""``privfl audit``: test what an experiment claims, as a TOML file lists it.

    experiment = "digits_dpsgd.toml"   # or run = "runs/digits_dpsgd", the directory of a finished run
    confidence = 0.95
    seed = 0                           # of the auditor's coins
    [[audit]]
    name = "rare-tokens"               # the other keys are the audit's settings
    canaries = 2000
    [[audit]]
    name = "size-response"

Results are written to ``audits/NAME.json`` in the run's directory, or in ``runs/EXPERIMENT``.
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
    "run": (str, ""),
    "experiment": (str, ""),
    "confidence": ((int, float), 0.95),
    "seed": (int, 0),
    "audit": (list, ()),
}


@dataclass(frozen=True)
class Plan:
    """What an audit file asks for: ``folder`` is where results go, ``config`` the experiment's file."""

    folder: Path
    config: Path
    confidence: float
    seed: int
    audits: tuple[Any, ...]


def read_plan(path: Path, registry: Any) -> Plan:
    """The plan in the TOML file ``path``; ``registry`` is the module :mod:`audits.registry`.

    Raises:
        ConfigError: it cannot be read, or a setting is unknown or impossible.
    """
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of an audit file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    for key in settings:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    values = {key: settings.get(key, default) for key, (_, default) in _KEYS.items()}
    for key, value in settings.items():
        if not isinstance(value, _KEYS[key][0]) or isinstance(value, bool):
            raise ConfigError(f"{key} is {value!r}; give a value of the kind in `privfl audit --help`")
    if not 0 < values["confidence"] < 1:
        raise ConfigError(f"confidence is {values['confidence']}; give a number in (0, 1), such as 0.95")
    if bool(values["run"]) == bool(values["experiment"]):
        raise ConfigError("an audit file names a run or an experiment; give exactly one of the keys")
    if not values["audit"] or not all(isinstance(table, Mapping) for table in values["audit"]):
        raise ConfigError("audit is not a list of tables; write [[audit]] once for each audit")
    if values["run"]:
        folder, config = Path(values["run"]), Path(values["run"]) / "config.toml"
    else:
        config = Path(values["experiment"])
        folder = Path("runs") / config.stem
    audits = tuple(registry.audit_from(table) for table in values["audit"])
    return Plan(folder, config, float(values["confidence"]), values["seed"], audits)


def audit_experiment(path: Path) -> bool:
    """Run every audit of the file ``path``; print the results and write them down. True if a claim was refuted.

    The confidence is each audit's own: of many audits of true claims, a share of up to 1 − confidence may err.
    """
    from privfl.experiment import Experiment
    from privfl.simulation.run_directory import write_whole

    plan = read_plan(path, companion("audits.registry"))
    experiment = Experiment.from_toml(plan.config)
    used, refuted = Counter[str](), False
    for audit in plan.audits:
        used[audit.name] += 1
        label = audit.name if used[audit.name] == 1 else f"{audit.name}-{used[audit.name]}"
        try:
            result = audit.run(experiment, plan.confidence, plan.seed)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from error
        told = (json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n").encode()
        write_whole(plan.folder / "audits" / f"{label}.json", told)
        typer.echo(f"{result}\n")
        refuted = refuted or result.refuted
    typer.echo(f"Results: {plan.folder / 'audits'}")
    return refuted
