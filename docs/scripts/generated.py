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
from privfl.commands.catalogue import summary
from privfl.commands.json_schema import markdown, meanings
from privfl.data.catalog import datasets, options
from privfl.models import models
from privfl.schema import Named
from privfl.simulation.settings import RunConfig, registries


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def words(kind: Any) -> str:
    """A type as a reader of a TOML file understands it."""
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{choice}"`' for choice in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(words(choice) for choice in get_args(kind) if choice is not NoneType)
    if get_origin(kind) is tuple:
        return f"list of {words(get_args(kind)[0])}"
    if get_origin(kind) is Mapping:
        return "table"
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
    return f"`{value!r}`".replace("'", '"') if not isinstance(value, bool) else f"`{str(value).lower()}`"


def rows_of(kind: type[Any], prefix: str = "", only: str = "") -> Iterator[tuple[str, ...]]:
    """A row for every field of a settings class, or the ``only`` one: key, type, default, meaning.

    A field that is a table brings the rows of that.

    Raises:
        ValueError: a field has no meaning in its class's docstring.
    """
    hints, said = get_type_hints(kind), meanings(kind)
    for item in fields(kind):
        if only not in ("", item.name):
            continue
        if item.name not in said:
            raise ValueError(f"{kind.__module__}.{kind.__name__} does not say under Args what {item.name} is")
        inner = hints[item.name] if is_dataclass(hints[item.name]) else None
        given = "—" if inner else default(item)
        yield f"`{prefix}{item.name}`", "table" if inner else words(hints[item.name]), given, said[item.name]
        if inner:
            yield from rows_of(inner, f"{prefix}{item.name}.")


def keys(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table of keys, if there are any."""
    rows = list(rows)
    return [table(("key", "type", "default", "meaning"), rows)] if rows else []


def choice(registry: Mapping[str, type[Any]]) -> str:
    """Every part of a registry with what it is and its keys."""
    parts = []
    for name, part in registry.items():
        parts += [f'**`name = "{name}"`**: {markdown(summary(part))}', *keys(rows_of(part))]
    return "\n\n".join(parts)


def choices() -> str:
    """What papers call the choices of attacks, and how a file writes each."""
    rows = [
        (one.title, one.source, f'`name = "{name}"`, `{one.setting} = "{one.value}"`')
        for name, attack in ATTACKS.items()
        for one in attack.choices
    ]
    return table(("known as", "paper", "in an attack file"), rows)


def tables(kind: type[Any], key: str = "") -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of the table ``key`` of an experiment file, and the tables that it holds, as Markdown."""
    rows, inside = [], []
    hints, said, known = get_type_hints(kind), meanings(kind), registries()
    for item in fields(kind):
        name, hint = f"{key}.{item.name}".strip("."), hints[item.name]
        many = get_origin(hint) is tuple
        arms = get_args(hint)[:1] if many else (hint, *get_args(hint))
        inner = next((arm for arm in arms if arm in known or arm is Named or is_dataclass(arm)), None)
        if "beside" in item.metadata:
            more, further = tables(inner, key)
            rows, inside = rows + more, inside + further
        elif inner is None:
            rows += rows_of(kind, only=item.name)
        else:
            about = said.get(item.name) or markdown(summary(inner))
            inside += [f"## `[[{name}]]`" if many else f"## `[{name}]`", f"{about[0].upper()}{about[1:]}"]
            if inner in known:
                inside.append(choice(known[inner]))
            elif inner is not Named:
                own, further = tables(inner, name)
                inside += [*keys(own), *further]
    return rows, inside


def settings() -> str:
    """All keys of an experiment file."""
    top, inside = tables(RunConfig)
    sets = [
        (f"`{e.name}`", e.title, ", ".join(f"`{k} = {v!r}`" for k, v in options(e.name).items()) or "—")
        for e in datasets()
    ]
    networks = [(f"`{m.name}`", markdown(m.summary), ", ".join(m.kinds)) for m in models()]
    parts = ["## At the top of the file", *keys(top), *inside]
    parts += ["## Names of datasets", table(("name", "what it is", "further keys"), sets)]
    return "\n\n".join([*parts, "## Names of models", table(("name", "what it is", "inputs"), networks)])


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
            if not home.startswith(package):  # a package, or a constant
                said = inspect.getdoc(value) if inspect.ismodule(value) else None
                rows.append((f"`{package}.{name}`", markdown((said or "").split("\n\n")[0])))
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
    "attacks": lambda: "\n\n".join([choice(ATTACKS), choices()]),
    "audits": lambda: choice(AUDITS),
}


def filled(page: str) -> str:
    """``page`` with every generated part in its place."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda mark: PARTS[mark[1]](), page)
