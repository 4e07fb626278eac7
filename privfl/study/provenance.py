"""Where a run comes from: when, by which code, on which data; and what nobody could try on it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privfl.data.catalog import info
from privfl.errors import ConfigError
from privfl.files import read_json
from privfl.study.attacks import FOLDER as ATTACKS
from privfl.study.attacks import REFUSED
from privfl.study.audits import FOLDER as AUDITS

Facts = list[tuple[str, str]]


def describe_run(folder: Path) -> Facts:
    """Date, code and data of the run in ``folder``, as far as its files say."""
    machine = read_json(folder / "environment.json")
    settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    fingerprint = folder / "fingerprint.json"
    parts = read_json(fingerprint).get("parts", {}) if fingerprint.exists() else {}
    facts = [
        ("run ended", _day((folder / "statement.json").stat().st_mtime)),
        *code(machine),
        ("hash of privfl's code", str(parts.get("privfl's own code", "not recorded"))[:16]),
        *data(settings),
    ]
    if "inputs" in parts:
        facts.append(("hash of the training data", str(parts["inputs"])[:16]))
    return facts


def code(machine: Mapping[str, Any]) -> Facts:
    """The versions that matter most; ``machine`` is what ``environment.json`` holds."""
    packages = machine["packages"]
    commit = machine.get("commit") or "not recorded: privfl was installed as a package, or git was not there"
    versions = ", ".join(f"{name} {packages[name]}" for name in ("privfl", "torch", "opacus") if name in packages)
    return [("versions", f"{versions}, Python {machine['python']}"), ("commit of privfl", commit)]


def data(settings: Mapping[str, Any]) -> Facts:
    """What was trained on, and how it was dealt to clients."""
    facts: Facts = []
    if "dataset" in settings:
        options = ", ".join(f"{key} = {value}" for key, value in settings["dataset"].items() if key != "name")
        name = settings["dataset"]["name"]
        try:
            entry = info(name)
            facts += [
                ("data", f"{entry.title}{f' ({options})' if options else ''}: {entry.task}"),
                ("licence of the data", entry.licence),
            ]
        except ConfigError:  # a name of the user's own
            facts.append(("data", name + (f" ({options})" if options else "")))
    elif "arrays" in settings:
        arrays = settings["arrays"]
        facts.append(("data", f"own data: {arrays.get('file', arrays) if isinstance(arrays, dict) else arrays}"))
    elif "task" in settings:
        facts.append(("data", f"own data from {settings['task']}"))
    else:
        facts.append(("data", "own data, handed over in Python; only hashes of it are recorded"))
    partition = dict(settings.get("partition") or {})
    if partition:
        rule = partition.pop("name", "own rule")
        more = ", ".join(f"{key} = {value}" for key, value in partition.items())
        facts.append(("dealt to clients by", f"{rule}{f' ({more})' if more else ''}: a simulated division"))
    else:
        facts.append(("dealt to clients by", "the clients that the data name"))
    return facts


def not_tried(folder: Path) -> list[str]:
    """What could not be tried on the run in ``folder``, and why: a sentence for each."""
    settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    recorded = settings.get("record", False)
    views = ("server", "public") if recorded is True else tuple(recorded or ())
    told = []
    for observer, view in (("server", "what the server saw"), ("public", "the released models")):
        if observer not in views:
            told.append(f"Attacks on {view}: the run did not record it; repeat the run with record = true to try them.")
    for room in (ATTACKS, AUDITS):
        for path in sorted((folder / room / REFUSED).glob("*.json")):
            if not (folder / room / path.name).exists():
                told.append(f"{path.stem}: {read_json(path, f'repeat `privfl {room[:-1]}`')['reason']}.")
    if not (folder / AUDITS).is_dir():
        told.append("Audits: none was made, so the claims were not tested from below (privfl audit makes one).")
    return told


def today() -> str:
    """The date of a page."""
    return datetime.now(UTC).date().isoformat()


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC, by the date of its statement's file"
