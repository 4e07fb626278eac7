"""What the site says about settings, algorithms, commands and public names, taken from the code itself.

A page holds ``<!-- generated: NAME -->`` where one of PARTS belongs; Sphinx fills it in when it reads the page.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attacks.registry import ATTACKS
from audits.registry import AUDITS
from privfl.algorithms import ALGORITHMS
from privfl.algorithms.declarations import declared
from privfl.commands.listing import summary
from privfl.data.catalog import datasets, options
from privfl.data.label_noise import LABEL_NOISE
from privfl.data.local_tests import LocalTests
from privfl.data.partitions import PARTITIONS
from privfl.experiment import UPDATE_MECHANISMS
from privfl.federation.availability import AVAILABILITY
from privfl.federation.cohorts import COHORTS
from privfl.models import models
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.settings import Budget, Privacy
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.simulation.settings import Execution, Schedule

TABLES: Mapping[str, type[Any] | Mapping[str, type[Any]]] = {
    "partition": PARTITIONS,
    "label_noise": LABEL_NOISE,
    "local_tests": LocalTests,
    "algorithm": ALGORITHMS,
    "training": LocalTraining,
    "privacy": Privacy,
    "privacy.training": DPSGD,
    "[privacy.update]": UPDATE_MECHANISMS,
    "[privacy.statistics]": NoisyTotal,
    "privacy.size": SIZE_MECHANISMS,
    "privacy.budget": Budget,
    "cohort": COHORTS,
    "availability": AVAILABILITY,
}
"""The tables of an experiment file, in brackets once more where they may be repeated: a class, or a choice by name."""
OF_THEIR_OWN = ("training", "size", "update", "statistics", "budget")
"""Fields of :class:`Privacy` that are tables."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def markdown(text: str) -> str:
    """Text of a docstring as Markdown: its literals, and its roles as MyST writes them."""
    return re.sub(r":(\w+):`", r"{py:\1}`", " ".join(text.split()).replace("``", "`"))


def meanings(kind: type[Any]) -> dict[str, str]:
    """What ``kind`` and its bases say of each field in the section Args of their docstrings."""
    found = {}
    for base in reversed(kind.__mro__):
        section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", inspect.cleandoc(vars(base).get("__doc__") or ""), re.M)
        for entry in re.finditer(r"^    (\w+): (.*(?:\n {8,}.*)*)", section[1] if section else "", re.M):
            found[entry[1]] = markdown(entry[2])
    return found


def words(kind: Any) -> str:
    """A type as a reader of a TOML file understands it."""
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{choice}"`' for choice in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(words(choice) for choice in get_args(kind) if choice is not NoneType)
    if get_origin(kind) is tuple:
        return f"list of {words(get_args(kind)[0])}"
    return {bool: "true or false", int: "integer", float: "number", str: "text"}.get(kind, f"`{kind.__name__}`")


def default(item: Field[Any]) -> str:
    """A field's default as TOML writes it; "—" where leaving it out is a setting of its own."""
    if item.default is MISSING and item.default_factory is MISSING:
        return "**required**"
    value = item.default if item.default is not MISSING else item.default_factory()  # type: ignore[misc]
    if value is None or value == ():
        return "—"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value!r}`".replace("'", '"')


def keys(kind: type[Any], leave_out: Iterable[str] = ()) -> str:
    """The fields of a settings class: key, type, default, meaning."""
    return table(("key", "type", "default", "meaning"), rows_of(kind, "", leave_out))


def rows_of(kind: type[Any], prefix: str = "", leave_out: Iterable[str] = ()) -> Iterator[tuple[str, ...]]:
    """A row for every field; a field that is a table itself is followed by that table's.

    Raises:
        ValueError: a field has no meaning in its class's docstring.
    """
    hints, said = get_type_hints(kind), meanings(kind)
    for item in fields(kind):
        if item.name in leave_out:
            continue
        if item.name not in said:
            raise ValueError(f"{kind.__module__}.{kind.__name__} does not say under Args what {item.name} is")
        inner = hints[item.name] if is_dataclass(hints[item.name]) else None
        given = "—" if inner else default(item)
        yield f"`{prefix}{item.name}`", "table" if inner else words(hints[item.name]), given, said[item.name]
        if inner:
            yield from rows_of(inner, f"{prefix}{item.name}.")


def choice(registry: Mapping[str, type[Any]]) -> str:
    """Every part of a registry with what it is and its keys."""
    return "\n\n".join(
        f'**`name = "{name}"`**: {markdown(summary(part))}' + (f"\n\n{keys(part)}" if fields(part) else "")
        for name, part in registry.items()
    )


def settings() -> str:
    """All keys of an experiment file."""
    parts = ["## At the top of the file", keys(Schedule), keys(Execution)]
    for name, kind in TABLES.items():
        parts.append(f"## `[{name}]`")
        if isinstance(kind, Mapping):
            parts.append(choice(kind))
        else:
            parts += [markdown(summary(kind)), keys(kind, OF_THEIR_OWN if kind is Privacy else ())]
    rows = [
        (f"`{e.name}`", e.title, ", ".join(f"`{k} = {v!r}`" for k, v in options(e.name).items()) or "—")
        for e in datasets()
    ]
    parts += ["## `[dataset]`", table(("name", "what it is", "further keys"), rows)]
    rows = [(f"`{m.name}`", markdown(m.summary), ", ".join(m.kinds)) for m in models()]
    return "\n\n".join([*parts, "## `[model]`", table(("name", "what it is", "inputs"), rows)])


def algorithms() -> str:
    """What every algorithm declares, computed from it."""
    rows = [{"name": f"`{name}`", **declared(part()), "": markdown(summary(part))} for name, part in ALGORITHMS.items()]
    return table([*list(rows[0])[:-1], "what it is"], [[markdown(str(cell)) for cell in row.values()] for row in rows])


def commands() -> str:
    """The help of every command, as Typer writes it."""
    call = [sys.executable, "-m", "typer", "privfl.cli", "utils", "docs", "--name", "privfl"]
    text = subprocess.run(call, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    return text.partition("\n")[2]


def names() -> str:
    """Every public name of the three packages: its home in the reference, and what it is."""
    parts = []
    for package in ("privfl", "attacks", "audits"):
        module, rows = import_module(package), []
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            home = getattr(value, "__module__", "")
            if not home.startswith(package):
                rows.append((f"`{package}.{name}`", ""))
                continue
            role = "class" if inspect.isclass(value) else "func"
            first = inspect.cleandoc(value.__doc__ or "").split("\n\n")[0]
            rows.append((f"{{py:{role}}}`{name} <{home}.{value.__name__}>`", markdown(first)))
        parts += [f"## `{package}`", table(("name", "what it is"), rows)]
    return "\n\n".join(parts)


PARTS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "algorithms": algorithms,
    "commands": commands,
    "names": names,
    "attacks": lambda: choice(ATTACKS),
    "audits": lambda: choice(AUDITS),
}


def filled(page: str) -> str:
    """``page`` with every generated part in its place."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda mark: PARTS[mark[1]](), page)
