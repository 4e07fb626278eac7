"""Settings from plain data, as TOML has it, and back: one reader and one writer for every file.

A dataclass is the schema of its table. Knows no algorithm, attack or audit: the registries in which names are looked up
are handed in. What is in no registry is written, and read, as ``module:Name``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Callable as CallableType
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from inspect import signature
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from privfl.errors import ConfigError, brief, listed, unknown
from privfl.references import imported, reference
from privfl.validation import said

T = TypeVar("T")
Registry = Mapping[str, type[Any]]
Registries = Mapping[Any, Registry]
"""For each base class whose subclasses have names: the subclasses by name."""
NONE: Registries = MappingProxyType({})
BESIDE: Mapping[str, bool] = MappingProxyType({"beside": True})
"""Metadata of a field whose own fields stand beside it in its table, not in a table of their own."""

_WANTED = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "a text in quotes",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
}


@dataclass(frozen=True)
class Named:
    """What is known by a name, such as a dataset or a model, with settings of its own: the keys beside ``name``."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, thing: Callable[..., Any]) -> Named:
        """A function, class, ``functools.partial`` or instance of a dataclass by its reference and its arguments."""
        if isinstance(thing, partial):
            given = signature(thing.func).bind_partial(*thing.args, **thing.keywords).arguments
            return cls(reference(thing.func), {name: _write(Any, value, NONE) for name, value in given.items()})
        if hasattr(thing, "__qualname__"):
            return cls(reference(thing))
        options = plain(thing, NONE, object)
        name = options.pop("name")
        return cls(name, options) if is_dataclass(thing) else cls(f"{name}()")

    def load(self, key: str) -> Any:
        """What :meth:`of` was given: a dataclass is built from the settings, anything else is to be called with them.

        Raises:
            ConfigError: it cannot be imported, or a setting is unknown or impossible.
        """
        thing = imported(self.name, f"{key}.name")
        if isinstance(thing, type) and is_dataclass(thing):
            return build(thing, self.options, key)
        if not callable(thing):
            raise ConfigError(f"{key}.name is '{self.name}', which cannot be called; name a function or a class")
        return partial(thing, **self.options) if self.options else thing


KINDS = {
    "study": ("a study file", "privfl study run"),
    "attack": ("an attack file", "privfl attack"),
    "audit": ("an audit file", "privfl audit"),
}
"""The key that tells what a file is for, if it is no experiment, with the file's name in messages and its command."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of the TOML file ``path``; ``what`` it should be, such as "an experiment file", for messages.

    Raises:
        ConfigError: the file is missing, not TOML, or a file of another kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows write a mark first
    except OSError as error:
        raise ConfigError(f"cannot read {brief(str(path))}: {error.strerror}; give the path of {what}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{brief(str(path))} is not a TOML file: {error}") from error
    except ValueError as error:  # the path holds a NUL, or the file a number beyond all digits
        raise ConfigError(f"cannot read {brief(str(path))}: {error}; give the path of {what}") from error
    found = [key for key in KINDS if key in content]
    if found and what not in (KINDS[key][0] for key in found):
        kind, command = KINDS[found[0]]
        raise ConfigError(
            f"{brief(str(path))} is {kind}, since it has '{found[0]}', and no {what.partition(' ')[2]}; "
            f"start it by `{command}`"
        )
    return content


def override(settings: dict[str, Any], assignment: str) -> None:
    """Apply one ``key.path=value`` to ``settings`` in place; the value is TOML, or text if it is not.

    ``key.path=`` without a value takes the key away, so that its default holds again.

    Raises:
        ConfigError: the assignment has no ``=``, its path leads into a value, or what it takes away is not there.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {brief(assignment)} is not of the form key=value, such as training.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    *path, last = key.strip().split(".")
    table: Any = settings
    if not text.strip():
        for part in path:
            table = table.get(part) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table:
            raise ConfigError(f"--set {brief(assignment)} unsets a key that the file does not set; check the key")
        del table[last]
        return
    for part in path:
        table = table.setdefault(part, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f"--set {brief(key.strip())} leads into something that is not a table; check the key")
    table[last] = value


def build(
    kind: type[T], values: Mapping[str, Any], key: str = "", registries: Registries = NONE, *, named: bool = False
) -> T:
    """``kind`` from the table ``values`` of its fields, each checked against its type; ``kind`` itself checks ranges.

    Args:
        key: where in the file the table stands, for messages; the empty string is the top.
        named: the table had a ``name`` as well, which chose ``kind``.

    Raises:
        ConfigError: a setting is unknown, missing or impossible.
    """
    values = _table(values, key)
    known = _keys(kind)
    if "name" in values and "name" not in known:
        kind = _subclass(kind, values["name"], f"{key}.name")
        values, known = {name: value for name, value in values.items() if name != "name"}, _keys(kind)
        named = True
    for name in values:
        if name not in known:
            _refuse_beside(kind, name, values[name], key)
            valid = [*known, "name"] if named else known
            raise unknown("key", _dotted(key, name), [_dotted(key, other) for other in valid])
    hints, given = _hints(kind), {}
    for item in _settable(kind):
        name, hint = item.name, hints.get(item.name, Any)
        if "beside" in item.metadata:
            inside = _keys(hint)
            given[name] = build(hint, {one: values[one] for one in values if one in inside}, key, registries)
        elif name in values:
            given[name] = _read(hint, values[name], _dotted(key, name), registries)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"{key or 'the file'} needs {name}; add a line '{name} = …'{key and f' to [{key}]'}")
    try:
        return kind(**given)
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if told.startswith(key) else f"{key}: {told}") from error
    except TypeError as error:
        raise ConfigError(f"{key}: {reference(kind)} cannot be built from its fields ({error})") from error


def choose(
    registry: Mapping[str, type[T]], table: Any, key: str, base: Any = object, registries: Registries = NONE
) -> T:
    """The member of ``registry``, or the subclass ``module:Name`` of ``base``, that ``table`` names and sets.

    Raises:
        ConfigError: there is no name, it is unknown, or a setting is unknown or impossible.
    """
    name, values = _name(_table(table, key), key, registry)
    return build(_kind(registry, name, key, base), values, key, registries, named=True)


def choose_each(
    registry: Mapping[str, type[T]], tables: Any, key: str, base: Any = object, registries: Registries = NONE
) -> tuple[T, ...]:
    """One member of ``registry`` for every table of a list, ``[[key]]``; messages name each by its name."""
    chosen = []
    for table in _list_of_tables(tables, key):
        name, values = _name(table, key, registry)
        chosen.append(build(_kind(registry, name, key, base), values, name, registries, named=True))
    return tuple(chosen)


def plain(component: Any, registries: Registries = NONE, base: Any = None) -> dict[str, Any]:
    """The fields of ``component`` as plain data, ``None`` included; :func:`build` and :func:`choose` read it.

    Its ``name`` stands with them if a registry knows it, or if it is of another class than ``base``.

    >>> from privfl.federation.cohorts import COHORTS, Cohort, FixedCohort
    >>> plain(FixedCohort(3), {Cohort: COHORTS})
    {'name': 'fixed', 'size': 3}
    """
    if isinstance(component, Named):
        return {"name": component.name, **_write(Any, component.options, registries)}
    kind = type(component)
    named = [name for registry in registries.values() for name, member in registry.items() if member is kind]
    found = {"name": named[0] if named else reference(kind)} if named or base not in (None, kind) else {}
    if not is_dataclass(component):
        own = {name: value for name, value in getattr(component, "__dict__", {}).items() if not name.startswith("_")}
        return found | {name: _write(Any, value, registries) for name, value in own.items()}
    hints = _hints(kind)
    for item in _settable(kind):
        value, hint = getattr(component, item.name), hints.get(item.name, Any)
        found |= plain(value, registries) if "beside" in item.metadata else {item.name: _write(hint, value, registries)}
    return found


def _read(hint: Any, value: Any, key: str, registries: Registries) -> Any:
    arms = _arms(hint, registries)
    if value is None and NoneType in arms:
        return None
    for arm in arms:
        if arm in registries:
            return choose(registries[arm], value, key, arm, registries)
        if arm is Named:
            return Named(*_name(_table(value, key), key, {}))
        if isinstance(arm, type) and is_dataclass(arm):
            return build(arm, value, key, registries)
        if get_origin(arm) is Mapping:
            return {name: _tuples(item) for name, item in _table(value, key).items()}
        if get_origin(arm) in (set, frozenset) and isinstance(value, list | tuple):
            value = get_origin(arm)(value)
        if get_origin(arm) is CallableType and isinstance(value, str) and ":" in value:
            return imported(value, key)
        inside = get_args(arm)[0] if get_origin(arm) is tuple else None
        if inside is Named:
            return tuple(Named(*_name(table, key, {})) for table in _list_of_tables(value, key))
        if inside in registries:
            return choose_each(registries[inside], value, key, inside, registries)
        if isinstance(inside, type) and is_dataclass(inside):
            return tuple(build(inside, table, key, registries) for table in _list_of_tables(value, key))
    try:
        return _adapter(hint).validate_python(_tuples(value))
    except ValidationError as error:
        depth = max(len(problem["loc"]) for problem in error.errors())
        deepest = [str(problem["msg"]) for problem in error.errors() if len(problem["loc"]) == depth]
        wanted = [text.removeprefix("Input should be ") for text in deepest]
        choices = " or ".join(dict.fromkeys(_WANTED.get(text, text) for text in wanted))
        raise ConfigError(f"{key} is {said(value)}; give {choices}") from error


def _write(hint: Any, value: Any, registries: Registries) -> Any:
    if hasattr(value, "tolist"):  # an array or a number of NumPy or torch
        value = value.tolist()
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, Mapping):
        return {str(name): _write(Any, item, registries) for name, item in value.items()}
    arms = _arms(hint, registries)
    if isinstance(value, list | tuple):
        inside = next((get_args(arm)[0] for arm in arms if get_origin(arm) is tuple and get_args(arm)), Any)
        return [_write(inside, item, registries) for item in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        try:
            return _adapter(hint).validate_python(value)  # so that 1 and 1.0 are written alike where both are allowed
        except (ValidationError, PydanticUserError):
            return value
    if isinstance(value, partial):
        return plain(Named.of(value))
    if hasattr(value, "__qualname__"):
        return reference(value)
    return plain(value, registries, type(value) if type(value) in arms else object)


def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _arms(hint: Any, registries: Registries) -> tuple[Any, ...]:
    """The members of a union that is not itself the base of a registry; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) and hint not in registries else (hint,)


def _settable(kind: type[Any]) -> Iterator[Any]:
    return (item for item in fields(kind) if item.init)


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        known: Any = kind
        return _resolved_hints(known)
    except NameError:  # a class of the user's own, whose types are imported for type checkers only: nothing is checked
        return {}


@cache
def _resolved_hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _keys(kind: type[Any]) -> list[str]:
    """The keys of the table of ``kind``."""
    hints = _hints(kind)
    keys: list[str] = []
    for item in _settable(kind):
        keys += _keys(hints[item.name]) if "beside" in item.metadata else [item.name]
    return keys


def _refuse_beside(kind: type[Any], name: str, value: Any, key: str) -> None:
    """Refuse a table ``name`` of its own for keys of ``kind`` that stand beside the others."""
    for item in _settable(kind):
        if item.name == name and "beside" in item.metadata:
            inside = _keys(_hints(kind)[name])
            near = next((one for one in value if one in inside), inside[0]) if isinstance(value, Mapping) else inside[0]
            where = f"in [{key}]" if key else "at the top level"
            raise ConfigError(
                f"'{_dotted(key, name)}' is no table of its own: its keys ({', '.join(inside)}) stand {where}; write "
                f"'{_dotted(key, near)}' in the place of '{_dotted(key, name)}.{near}'"
            )


def _dotted(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is {said(value)}; write a table, [{key}], with one setting a line")
    return value


def _list_of_tables(value: Any, key: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(value, list | tuple) or not all(isinstance(table, Mapping) for table in value):
        raise ConfigError(f"{key} is not a list of tables; write [[{key}]] once for each")
    return value


def _name(table: Mapping[str, Any], key: str, valid: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The ``name`` in ``table``, and the other settings."""
    values = {name: _tuples(value) if name != "name" else value for name, value in table.items()}
    name = values.pop("name", None)
    choices = listed(key) or f"choose from {', '.join(sorted(valid))}"
    if name is None:
        raise ConfigError(f"[{key}] has no name; add a line 'name = \"…\"', {choices}")
    if not isinstance(name, str):
        raise ConfigError(f"{key}.name is {said(name)}; give a name in quotes, {choices}")
    return name, values


def _kind(registry: Mapping[str, type[T]], name: str, key: str, base: Any) -> type[T]:
    if ":" in name and base is not object:
        return _subclass(base, name, f"{key}.name")
    if name not in registry:
        raise unknown(key.replace("_", " "), name, registry)
    return registry[name]


def _subclass(base: Any, name: Any, key: str) -> type[Any]:
    kind = imported(name, key)
    if not (isinstance(kind, type) and issubclass(kind, base) and is_dataclass(kind)):
        wanted = getattr(base, "__name__", "mechanism")
        raise ConfigError(f"{key} is '{name}', which is no {wanted}; name a dataclass derived from {wanted}")
    return kind


def _tuples(value: Any) -> Any:
    """``value`` with tuples for lists, all the way down."""
    if isinstance(value, Mapping):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
