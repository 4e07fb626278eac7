"""Ranges of settings: a value outside its range is refused in one sentence, before any work starts."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from privfl.errors import ConfigError, unknown


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ConfigError(f"{name} is {value!r}: give a whole number of at least {minimum}.")


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
        raise ConfigError(f"{name} is {value!r}: give a finite number {bound}{limit}.")


def as_tuple(name: str, value: object) -> tuple[Any, ...]:
    """``value`` as a tuple (configuration files deliver lists); raises :class:`ConfigError` for anything else."""
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} is {value!r}: give a list with one entry per cluster.")
    return tuple(value)


def check_choice(name: str, value: str, valid: Collection[str]) -> None:
    """Raise :class:`ConfigError`, with the nearest valid name, unless ``value`` is one of ``valid``."""
    if value not in valid:
        raise unknown(name, str(value), valid)
