"""JSON Schemas of experiment and study files, for editors that complete and check TOML: `privfl schema`.

They are made from the very dataclasses that :mod:`privfl.schema` reads files into, so a key, its type, its default and
its meaning cannot differ from what a run takes. Ranges and what depends on two keys are checked by the run alone. What
ships is written by ``python docs/scripts/write_shipped.py``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from privfl.companions import companion
from privfl.schema import Named, Registries

Schema = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"
REFERENCE = {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"}
"""``module:Name``, a part of one's own."""
_PLAIN: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}
STUDY_LISTS = {"variants": "variant", "attacks": "attack", "audits": "audit"}
"""Fields of a study that files call by the singular, as lists of tables."""


def schema_text(kind: str) -> str:
    """The text of the JSON Schema of ``experiment`` or ``study`` files."""
    found = experiment_schema() if kind == "experiment" else study_schema()
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def experiment_schema() -> Schema:
    """Of what `privfl run` reads."""
    return {"$schema": DIALECT, "title": "privfl experiment", **_experiment()}


def study_schema() -> Schema:
    """Of what `privfl study` reads: an experiment, which axes may complete, and the table ``[study]``."""
    from privfl.study.file import Study

    base = _experiment()
    hints, said = get_type_hints(Study), meanings(Study)
    keys = {
        STUDY_LISTS.get(item.name, item.name): _field(item, hints[item.name], said, {})
        for item in fields(Study)
        if item.name != "base"
    }
    shared = {key: {"$ref": f"#/definitions/{key}"} for key in base["properties"]}
    own = {"name": {"type": "string"}, "axis": {"type": "string"}, "unset": _list({"type": "string"})}
    variant = _object({**own, **shared}, ["name"])
    keys["variant"] = {**_list(variant), "description": said["variants"]}
    for name, registry, module in (("attack", "ATTACKS", "attacks.registry"), ("audit", "AUDITS", "audits.registry")):
        parts = getattr(companion(module), registry)
        keys[name] = {**_list(_choice(parts, {})), "description": said[f"{name}s"]}
    table = {"type": "object", "properties": keys, "additionalProperties": False}
    whole = _object({**shared, "study": table}, ["study"])
    return {"$schema": DIALECT, "title": "privfl study", **whole, "definitions": _partial(base["properties"])}


def _partial(found: Any) -> Any:
    """``found`` with nothing required in its tables, since axes and variants may fill in the rest, names included."""
    if isinstance(found, list):
        return [_partial(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {"anyOf" if key == "oneOf" else key: _partial(value) for key, value in found.items() if key != "required"}


def _experiment() -> Schema:
    from privfl.simulation.settings import RunConfig, registries

    found = _table(RunConfig, registries())
    keys = found["properties"]
    keys["dataset"] = {**_datasets(), "description": keys["dataset"].get("description", "")}
    for name, known in (("model", _models()), ("loss", _losses())):
        inside = keys[name]["properties"]
        inside["name"] = {"anyOf": [{"enum": known}, REFERENCE]}
    keys["arrays"] = {"anyOf": [{"type": "string"}, keys["arrays"]], "description": keys["arrays"]["description"]}
    return found


def _datasets() -> Schema:
    from privfl.data.catalog import datasets, options

    tables = []
    for entry in datasets():
        known = {**options(entry.name), "seed": None}
        keys = {"name": {"const": entry.name, "description": entry.title}, **{key: {} for key in known}}
        tables.append(_object(keys, ["name"]))
    return {"oneOf": tables}


def _models() -> list[str]:
    from privfl.models import models

    return [model.name for model in models()]


def _losses() -> list[str]:
    from privfl.federation.losses import LOSSES

    return list(LOSSES)


def _table(kind: type[Any], registries: Registries, beside: Mapping[str, Schema] | None = None) -> Schema:
    """The table that the dataclass ``kind`` is read from; ``beside`` are keys that stand with its own."""
    hints, said = get_type_hints(kind), meanings(kind)
    keys: dict[str, Schema] = dict(beside or {})
    needed = list(beside or {})
    for item in fields(kind):
        if not item.init:
            continue
        if "beside" in item.metadata:
            inner = _table(hints[item.name], registries)
            keys |= inner["properties"]
            needed += inner.get("required", [])
            continue
        keys[item.name] = _field(item, hints[item.name], said, registries)
        if item.default is MISSING and item.default_factory is MISSING:
            needed.append(item.name)
    return _object(keys, needed)


def _field(item: Field[Any], hint: Any, said: Mapping[str, str], registries: Registries) -> Schema:
    found = dict(_value(hint, registries))
    if item.name in said:
        found["description"] = said[item.name]
    if isinstance(item.default, bool | int | str) or (isinstance(item.default, float) and abs(item.default) < 1e300):
        found["default"] = item.default
    return found


def _value(hint: Any, registries: Registries) -> Schema:
    """What a file may hold where ``hint`` is wanted; TOML has no null, so ``None`` is left out."""
    if hint in registries:
        return _choice(registries[hint], registries)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        arms = [_value(arm, registries) for arm in args if arm is not NoneType]
        return arms[0] if len(arms) == 1 else {"anyOf": arms}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is Mapping or hint is dict:
        return {"type": "object"}
    if origin in (tuple, list, set, frozenset, Sequence):
        return _list(_value(args[0], registries) if args else {})
    if origin is Callable:
        return REFERENCE
    if hint is Named:
        return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    if isinstance(hint, type) and is_dataclass(hint):
        return _table(hint, registries)
    return _PLAIN.get(hint, {})


def _choice(registry: Mapping[str, type[Any]], registries: Registries) -> Schema:
    """One of the parts of ``registry``, each with its own keys, or a part of one's own with any."""
    tables = []
    for name, part in registry.items():
        said = " ".join((part.__doc__ or "").split("\n\n")[0].split())
        tables.append(_table(part, registries, {"name": {"const": name, "description": markdown(said)}}))
    own = {"type": "object", "properties": {"name": REFERENCE}, "required": ["name"]}
    return {"oneOf": [*tables, own]}


def _object(keys: Mapping[str, Schema], needed: Iterable[str]) -> Schema:
    found: Schema = {"type": "object", "properties": dict(keys), "additionalProperties": False}
    return {**found, "required": list(needed)} if list(needed) else found


def _list(inside: Schema) -> Schema:
    return {"type": "array", "items": inside} if inside else {"type": "array"}


def meanings(kind: type[Any]) -> dict[str, str]:
    """What ``kind`` and its bases say of each field in the section Args of their docstrings."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", inspect.cleandoc(vars(base).get("__doc__") or ""), re.M)
        for entry in re.finditer(r"^    (\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", section[1] if section else "", re.M):
            found |= dict.fromkeys(entry[1].split(", "), markdown(entry[2]))
    return found


def markdown(text: str) -> str:
    """Text of a docstring as Markdown: its literals and its references become code."""
    named = re.sub(r":\w+:`(?:~[\w.]*\.)?([^`]+)`", r"`\1`", " ".join(text.split()))
    return named.replace("``", "`")
