"""What users give is checked at the door: its type against the annotation, then its range, in one sentence each."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from privfl.errors import ConfigError, unknown

P = ParamSpec("P")
R = TypeVar("R")

_MISFIT: Any = object()
_PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "text in quotes", NoneType: "None"}
_LARGEST_FLOAT32 = 3.4028234663852886e38
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


class Settings:
    """Base of the dataclasses that users set up: fields that do not fit their annotations are refused.

    That happens before the class's own ``__post_init__``, which has ranges left to check. NumPy's numbers become
    Python's, lists and arrays become tuples where a tuple is meant; nothing else is bent.

    Raises:
        ConfigError: a field is of another type, or NaN, or a keyword names no field.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        kind: Any = cls
        valid = _keywords(kind) if kwargs else None
        for name in kwargs:
            if valid == ():
                raise ConfigError(f"{cls.__name__} has no settings, and is given '{name}'; leave it out")
            if valid is not None and name not in valid:
                raise unknown(f"setting of {cls.__name__}", name, valid)
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__post_init__")
        if own is not None:

            @functools.wraps(own)
            def checked_first(self: Any) -> None:
                _check_fields(self)
                own(self)

            cls.__post_init__ = checked_first  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        _check_fields(self)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let ``function`` refuse arguments that do not fit their annotations, as :class:`Settings` does for fields."""
    signature = inspect.signature(function)
    variadic = {name for name, one in signature.parameters.items() if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound, hints = signature.bind(*args, **kwargs), _hints(function)
        for name, value in bound.arguments.items():
            if name in hints and name not in variadic:
                typed = _fitted(value, hints[name])
                if typed is _MISFIT:
                    for other in _others(
                        name, value, {one: hint for one, hint in hints.items() if one not in variadic}
                    ):
                        raise ConfigError(f"{name} is {said(value)}, which has a place of its own; give it as {other}=")
                    raise _misfit(name, value, hints[name])
                bound.arguments[name] = typed
        return function(*bound.args, **bound.kwargs)

    return call


def _others(name: str, value: Any, hints: Mapping[str, Any]) -> Iterator[str]:
    """The other parameters whose very class, of the package's own settings, the object ``value`` is one of."""
    for other, hint in hints.items():
        kinds = [one for one in _kinds(hint) if isinstance(one, type) and issubclass(one, Settings)]
        if other != name and isinstance(value, tuple(kinds)):
            yield other


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ConfigError(f"{name} is {value!r}; give a whole number of at least {minimum}")


def check_number(
    name: str, value: object, low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a finite number in [low, high].

    ``above`` leaves ``low`` itself out, ``below`` leaves ``high`` out.
    """
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and low <= number <= high) or (above and number == low) or (below and number == high):
        bound = f"above {low:g}" if above else f"of at least {low:g}"
        limit = "" if math.isinf(high) else f" and {'below' if below else 'at most'} {high:g}"
        raise ConfigError(f"{name} is {value!r}; give a finite number {bound}{limit}")


def check_bound(name: str, value: float, least: float = 1e-25, most: float = 1e25) -> None:
    """Raise :class:`ConfigError` unless what has the norm ``value`` is far from float32's denormals and from ∞."""
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}; give a number between {least:g} and {most:g}")


def check_noise(name: str, value: float) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a noise multiplier: 0, or one that can be squared."""
    if value != 0 and not 1e-15 <= value <= 1e9:
        raise ConfigError(f"{name} is {value!r}; give 0, or a number between 1e-15 and 1e+09")


def check_rate(name: str, value: object) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a rate in (0, 1] that coins of 64 bits keep to."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not 1e-15 <= number <= 1:
        raise ConfigError(f"{name} is {value!r}; give a number between 1e-15 and 1")


def check_choice(name: str, value: str, valid: Collection[str]) -> None:
    """Raise :class:`ConfigError`, with the nearest valid name, unless ``value`` is one of ``valid``."""
    if value not in valid:
        raise unknown(name, str(value), valid)


def said(value: object) -> str:
    """``value`` in a few words of one line, for a sentence."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', 'given')}"
    if hasattr(value, "shape"):
        return f"{_a(type(value))} of shape {tuple(value.shape)}"
    if is_dataclass(value):
        return f"{type(value).__name__}(…)"
    if isinstance(value, str | int | float | tuple | list | dict):
        return " ".join(_REPR.repr(value).split())
    text = repr(value)
    return _a(type(value)) if "\n" in text or len(text) > 60 else text


def _check_fields(settings: Any) -> None:
    kind: Any = type(settings)
    for name, hint in _field_hints(kind):
        value = getattr(settings, name)
        typed = _fitted(value, hint)
        if typed is _MISFIT:
            raise _misfit(f"{_owner(kind)}'s {name}", value, hint, kind)
        if isinstance(typed, float | tuple) and _beyond_float32(typed):
            raise ConfigError(
                f"{_owner(kind)}'s {name} is {said(value)}; give at most 3.4e+38 in size, the largest float32"
            )
        if typed is not value:
            object.__setattr__(settings, name, typed)


def _beyond_float32(value: Any) -> bool:
    """Whether a finite number in ``value`` is larger than what training computes with; ∞ has a meaning of its own."""
    if isinstance(value, tuple):
        return any(map(_beyond_float32, value))
    return isinstance(value, float) and math.isfinite(value) and abs(value) > _LARGEST_FLOAT32


def _owner(kind: Any) -> str:
    """What a class is called: one with a name of its own, such as an algorithm, goes by that."""
    own = getattr(kind, "name", None)
    return own if isinstance(own, str) and "name" not in dict(_field_hints(kind)) else str(kind.__name__)


@functools.cache
def _keywords(kind: Any) -> tuple[str, ...] | None:
    """What the class ``kind`` can be made with by name; ``None`` if its constructor is not that of its fields."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    names = tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    own = is_dataclass(kind) and set(names) != {item.name for item in fields(kind) if item.init}
    return None if own else names


@functools.cache
def _field_hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields that the dataclass ``kind`` is made with, each with its annotation, as far as that is known."""
    hints = _hints(kind)
    return tuple((item.name, hints[item.name]) for item in fields(kind) if item.init and item.name in hints)


@functools.cache
def _hints(annotated: Any) -> Mapping[str, Any]:
    """The annotations of a function's parameters, or of a class's fields.

    A class written inside a function may name types that only this function knows: of these only what it inherits.
    """
    if not isinstance(annotated, type):
        parameters = {name: hint for name, hint in annotated.__annotations__.items() if name != "return"}
        return get_type_hints(SimpleNamespace(__annotations__=parameters), annotated.__globals__)
    hints: dict[str, Any] = {}
    for base in reversed(annotated.__mro__):
        with suppress(NameError):
            hints |= inspect.get_annotations(base, eval_str=True)
    return hints


def _misfit(name: str, value: Any, kind: Any, owner: type | None = None) -> ConfigError:
    """What is said of a ``value`` that is no ``kind``; ``owner`` is the class whose field it is."""
    for one in _kinds(kind):
        if get_origin(one) in (tuple, Sequence) and isinstance(value, list | tuple):
            entries = (entry for entry in value if _fitted(entry, get_args(one)[0]) is _MISFIT)
            for wrong in entries:
                for field, _ in _places(wrong, owner) if owner is not None else ():
                    return ConfigError(f"{name} holds {said(wrong)}, which has a place of its own; give it as {field}")
                return ConfigError(f"{name} holds {said(wrong)}; {_mend(wrong, get_args(one)[0])}")
    return ConfigError(f"{name} is {said(value)}; {_mend(value, kind)}")


def _fitted(value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` takes it, or ``_MISFIT``; called often, so what fits is found soon."""
    if kind is Any or (type(value) is kind and (kind not in (int, float) or abs(value) < 2**63)):
        return value
    origin, args = get_origin(kind), get_args(kind)
    if _is_numpy(value, "generic"):
        value = sys.modules["numpy"].generic.item(value)
    if isinstance(value, int | float) and type(value) not in (int, float, bool) and kind in (int, float):
        value = float.__float__(value) if isinstance(value, float) else int.__int__(value)  # not its own arithmetic
    if origin in (Union, UnionType):
        return next((found for one in args if (found := _fitted(value, one)) is not _MISFIT), _MISFIT)
    if origin is Literal:
        fits = any(type(value) is type(one) and value == one for one in args)
    elif origin is tuple:
        return _tuple(value, args)
    elif kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and _is_number(value)
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and _is_number(value)
        value = float(value) if fits and abs(value) > 2**63 else value  # arithmetic of NumPy ends there for integers
    elif origin is Sequence:
        fits = isinstance(value, Sequence) and not isinstance(value, str) and _tuple(tuple(value), args) is not _MISFIT
    else:
        needed = origin or kind
        fits = not isinstance(needed, type) or getattr(needed, "_is_protocol", False) or isinstance(value, needed)
    return value if fits else _MISFIT


def _is_numpy(value: Any, kind: str) -> bool:
    """Whether ``value`` is of NumPy's class ``kind``; NumPy is not loaded for the question."""
    return "numpy" in sys.modules and isinstance(value, getattr(sys.modules["numpy"], kind))


def _is_number(value: float) -> bool:
    """Whether it is one that arithmetic can go on with: neither NaN nor an integer beyond all floats."""
    return not math.isnan(value) if isinstance(value, float) else abs(value) <= sys.float_info.max


def _tuple(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not (isinstance(value, tuple | list) or _is_numpy(value, "ndarray")) or getattr(value, "ndim", 1) == 0:
        return _MISFIT
    if len(kinds) == 1 or kinds[1] is ...:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        return _MISFIT
    items = tuple(_fitted(item, kind) for item, kind in zip(value, kinds, strict=True))
    if any(item is _MISFIT for item in items):
        return _MISFIT
    unchanged = type(value) is tuple and all(new is old for new, old in zip(items, value, strict=True))
    return value if unchanged else items


def _mend(value: Any, kind: Any) -> str:
    """What to give instead of ``value``."""
    kinds = list(_kinds(kind))
    classes = [one for one in kinds if isinstance(one, type) and one not in _PLAIN]
    for one in kinds:
        if get_origin(one) in (tuple, Sequence) and _fitted((value,), one) is not _MISFIT:
            return f"give a list, such as [{said(value)}]"
    texts = [text for one in kinds if get_origin(one) is Literal for text in get_args(one) if isinstance(text, str)]
    for text in get_close_matches(value, texts, n=1) if isinstance(value, str) else ():
        return f"did you mean {text!r}? Valid: {_wanted(kind)}"
    for one in classes:
        if isinstance(value, type) and issubclass(value, one):
            return f"give an object of it, {value.__name__}(…)"
        near = _nearest(value, one)
        if near:
            return f"give an object, such as {near}(…)"
        for field, alone in _places(value, one):
            return f"give {one.__name__}({field}={said(value) if alone else f'[{said(value)}]'})"
    if all(get_origin(one) is Literal for one in kinds):
        return f"choose {_wanted(kind)}"
    return f"give {_wanted(kind)}"


def _kinds(kind: Any) -> Iterator[Any]:
    """The kinds that a union consists of."""
    if get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _kinds(one)
    else:
        yield kind


def _nearest(value: Any, kind: type) -> str | None:
    """The class of this ``kind`` whose name is nearest to the text ``value``."""
    if not isinstance(value, str):
        return None
    found, names = [kind], {}
    for one in found:
        found += one.__subclasses__()
        names[one.__name__.lower()] = one.__name__
    near = get_close_matches(value.lower().replace("-", "").replace("_", ""), names, n=1)
    return names[near[0]] if near else None


def _places(value: Any, kind: type) -> Iterator[tuple[str, bool]]:
    """The fields of the dataclass ``kind`` that would take the object ``value``, alone (true) or in a list."""
    if is_dataclass(kind) and is_dataclass(value):
        for name, hint in _hints(kind).items():
            alone = any(isinstance(value, one) for one in _kinds(hint) if isinstance(one, type))
            if alone or (get_origin(hint) is tuple and _fitted((value,), hint) is not _MISFIT):
                yield name, alone


def _wanted(kind: Any) -> str:
    """``kind`` in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Literal):
        parts = [repr(one) if origin is Literal else _wanted(one) for one in args]
        return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    if origin in (tuple, Sequence):
        return f"a list, each entry of it {_wanted(args[0])}"
    if origin is Callable:
        return "a function"
    if origin in (dict, Mapping):
        return "a dictionary"
    return _PLAIN.get(kind) or _a(kind)


def _a(kind: type) -> str:
    return f"a{'n' if kind.__name__[0] in 'AEIOU' else ''} {kind.__name__}"
