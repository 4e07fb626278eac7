"""The axes of a study, and the settings of every run that they span.

A table of changes is laid over the experiment's settings: keys replace keys, tables merge, and a table that names
another part (``algorithm = {name = "ditto"}``) takes the place of the one that was there with all its settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from privfl import validation
from privfl.errors import ConfigError

METHOD = "method"
"""The axis whose choices are compared; all others make up the level at which they are."""
NO_PRIVACY = "no privacy"
Settings = dict[str, Any]
MOST_RUNS = 100_000


@dataclass(frozen=True)
class Variant(validation.Settings):
    """One named choice: settings that are laid over those of the experiment.

    Args:
        name: what tables and figures call it.
        settings: the changes, by the keys of an experiment file.
        axis: variants of one axis exclude each other; those of different axes are combined.
        unset: dotted keys that are taken away, such as ``privacy.training``.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    axis: str = METHOD
    unset: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Any) -> Variant:
        """From a table of a file: ``name``, ``axis`` and ``unset`` beside the keys of an experiment.

        Raises:
            ConfigError: there is no name, or one of the three is of the wrong type.
        """
        if not isinstance(table, Mapping):
            raise ConfigError(f"study.variant is {table!r}; write [[study.variant]] once for each")
        settings = dict(table)
        name, axis, unset = settings.pop("name", None), settings.pop("axis", METHOD), settings.pop("unset", ())
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a study.variant has the name {name!r}; give each a name in quotes")
        if not isinstance(axis, str) or not axis:
            raise ConfigError(f"the variant '{name}' has the axis {axis!r}; give the name of an axis in quotes")
        if not isinstance(unset, list | tuple) or not all(isinstance(one, str) for one in unset):
            raise ConfigError(f"the variant '{name}' has unset = {unset!r}; give a list of keys in quotes")
        return cls(name, settings, axis, tuple(unset))


@dataclass(frozen=True)
class Point:
    """One run that the axes span: what it is compared as (``method``), at which ``level``, and its settings."""

    method: str
    level: str
    seed: int
    settings: Settings = field(hash=False)

    def __str__(self) -> str:
        return f"{self.method}, {self.level}, seed {self.seed}"


def points(
    base: Mapping[str, Any],
    *,
    variants: Sequence[Variant] = (),
    zipped: Mapping[str, Any] | None = None,
    grid: Mapping[str, Any] | None = None,
    epsilon: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
) -> list[Point]:
    """Every run, methods outermost and seeds innermost; ``base`` are the settings that all share.

    Args:
        variants: named choices; an axis for each :attr:`Variant.axis`.
        zipped: lists of equal length, by key, that vary together: one axis.
        grid: a list of values by key: an axis each.
        epsilon: targets for one example over the whole run, which DP-SGD's noise is solved for; ∞ takes
            ``privacy.training`` away.
        seeds: of the runs.

    Raises:
        ConfigError: an axis is empty or no list, lists that vary together differ in length, two runs share a name, or
            there are too many.
    """
    axes = [*_variant_axes(variants), *_zip_axis(zipped or {}), *_grid_axes(grid or {})]
    found: list[Point] = []
    number = math.prod(len(choices) for _, choices in axes) * len(_levels_of(epsilon)) * len(seeds)
    if number > MOST_RUNS:
        raise ConfigError(f"the study has {number:,} runs; give axes and seeds that make at most {MOST_RUNS:,}")
    combined = product(product(*(choices for _, choices in axes)), _levels_of(epsilon))
    for chosen, (privacy, target) in combined:
        settings: Settings = _copy(base)
        named: dict[str, str] = {}
        for (axis, _), (label, changes, unset) in zip(axes, chosen, strict=True):
            for key in unset:
                _remove(settings, key)
            settings = merged(settings, changes)
            named[axis] = label
        if target is not None:
            settings = with_target(settings, target)
        others = [text for axis, text in named.items() if axis not in (METHOD, "algorithm", "algorithm.name")]
        method = named.get(METHOD) or named.get("algorithm") or named.get("algorithm.name") or _algorithm(settings)
        level = ", ".join([*others, *([privacy] if privacy else [])]) or "as given"
        found += [Point(method, level, seed, {**settings, "seed": seed}) for seed in seeds]
    _check_names(found)
    return found


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """``settings`` with ``changes`` laid over them; neither is touched."""
    result: Settings = _copy(settings)
    for key, value in changes.items():
        there = result.get(key)
        if not isinstance(value, Mapping):
            result[key] = value
        elif isinstance(there, Mapping) and value.get("name", there.get("name")) == there.get("name"):
            result[key] = merged(there, value)
        else:
            result[key] = merged({}, value)
    return result


def with_target(settings: Mapping[str, Any], epsilon: float) -> Settings:
    """``settings`` whose DP-SGD has the target ``epsilon``, or without DP-SGD if that is ∞."""
    if math.isinf(epsilon):
        result: Settings = _copy(settings)
        _remove(result, "privacy.training")
        return result
    result = merged(settings, {"privacy": {"training": {"target_epsilon": float(epsilon)}}})
    result["privacy"]["training"].pop("noise_multiplier", None)
    return result


def flat(tables: Mapping[str, Any], where: str, key: str = "") -> Iterator[tuple[str, Sequence[Any]]]:
    """The dotted keys of ``tables`` with their lists of values; ``where`` they stand, for messages.

    Raises:
        ConfigError: a value is no list, or an empty one.
    """
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, where, f"{key}{name}.")
        elif not isinstance(value, list | tuple):
            raise ConfigError(f"{where}.{key}{name} is {value!r}; give a list of values")
        elif not value:
            raise ConfigError(f"{where}.{key}{name} is empty; give at least one value, or leave it out")
        else:
            yield f"{key}{name}", value


def keys_of(settings: Mapping[str, Any], key: str = "") -> Iterator[str]:
    """The dotted keys of the values in ``settings``."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from keys_of(value, f"{key}{name}.")
        else:
            yield f"{key}{name}"


_Choice = tuple[str, Mapping[str, Any], tuple[str, ...]]
"""Label, changes, keys taken away."""


def _variant_axes(variants: Sequence[Variant]) -> list[tuple[str, list[_Choice]]]:
    axes: dict[str, list[_Choice]] = {}
    for one in variants:
        choices = axes.setdefault(one.axis, [])
        if one.name in (label for label, *_ in choices):
            raise ConfigError(f"two variants of the axis '{one.axis}' are called '{one.name}'; give each its own name")
        choices.append((one.name, one.settings, one.unset))
    return list(axes.items())


def _zip_axis(zipped: Mapping[str, Any]) -> list[tuple[str, list[_Choice]]]:
    lists = dict(flat(zipped, "study.zip"))
    if not lists:
        return []
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ConfigError(f"the lists of study.zip vary together and need one length ({told}); make them equally long")
    choices: list[_Choice] = []
    for values in zip(*lists.values(), strict=True):
        changes: Settings = {}
        for key, value in zip(lists, values, strict=True):
            changes = merged(changes, nested(key, value))
        choices.append((", ".join(map(_label, lists, values)), changes, ()))
    return [("zip", choices)]


def _grid_axes(grid: Mapping[str, Any]) -> list[tuple[str, list[_Choice]]]:
    return [(key, [(_label(key, value), nested(key, value), ()) for value in values])
            for key, values in flat(grid, "study.grid")]  # fmt: skip


def _levels_of(epsilon: Sequence[float]) -> list[tuple[str, float | None]]:
    for one in epsilon:
        if not one > 0:
            raise ConfigError(f"study.epsilon holds {one!r}; give positive numbers, or inf for no privacy")
    return [(NO_PRIVACY if math.isinf(one) else f"ε = {one:g}", one) for one in epsilon] or [("", None)]


def _label(key: str, value: Any) -> str:
    """How a value of the axis ``key`` is called: parts by their name alone, numbers with the last word of the key."""
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name} = {text_of(item)}" for name, item in value.items() if name != "name")
        return f"{value['name']} ({rest})" if "name" in value and rest else str(value.get("name", rest))
    if key.endswith("name"):
        return str(value)
    return f"{key.rpartition('.')[2]} = {text_of(value)}"


def text_of(value: Any) -> str:
    """``value`` in a label: numbers with the digits that tell them apart from neighbours."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def nested(key: str, value: Any) -> Settings:
    """Tables that hold ``value`` under the dotted ``key`` alone."""
    for part in reversed(key.split(".")):
        value = {part: value}
    found: Settings = value
    return found


def _remove(settings: Settings, key: str) -> None:
    """Take the dotted ``key`` away, if it is there."""
    *path, last = key.split(".")
    table: Any = settings
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(last, None)


def _copy(value: Any) -> Any:
    """``value`` with dictionaries of its own, all the way down."""
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _algorithm(settings: Mapping[str, Any]) -> str:
    algorithm = settings.get("algorithm")
    return str(algorithm.get("name", "fedavg")) if isinstance(algorithm, Mapping) else "fedavg"


def _check_names(found: Sequence[Point]) -> None:
    seen: set[str] = set()
    for point in found:
        if str(point) in seen:
            raise ConfigError(
                f"two runs of the study are called '{point}'; a value stands twice on an axis, or in seeds"
            )
        seen.add(str(point))
