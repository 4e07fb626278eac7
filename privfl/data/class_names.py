"""Classes that are texts: numbered by a list of names that is known beforehand, and never by the texts that occur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError

Classes = int | tuple[str, ...] | None
"""What is said of the classes: how many there are, what they are called in the order of their numbers, or nothing."""
_FEW = 8


def check_names(label: str, names: Sequence[str]) -> None:
    """Refuse ``names`` of classes that are fewer than two, blank or there twice; ``label`` is what the user calls them.

    Raises:
        ConfigError: with the first that is wrong.
    """
    if len(names) < 2:
        raise ConfigError(f"{label} names {len(names)} classes; name all of them, two or more")
    for place, one in enumerate(names):
        if not one.strip():
            raise ConfigError(f"{label}[{place}] is {one!r}; give every class a name")
        if one in names[:place]:
            raise ConfigError(f"{label} names {one!r} twice; name every class once")


def numbered(values: Sequence[Any], names: Sequence[str]) -> tuple[NDArray[np.int64], int | None]:
    """The place [N] of each value's text among ``names``, and the first row whose text is none of them, if any is."""
    places = {one: place for place, one in enumerate(names)}
    found = np.array([places.get(str(value), -1) for value in values], dtype=np.int64)
    strange = np.flatnonzero(found < 0)
    return found, int(strange[0]) if len(strange) else None


def listed(names: Sequence[str]) -> str:
    """``names`` in words, the first few of many."""
    return ", ".join(map(repr, names[:_FEW])) + (", …" if len(names) > _FEW else "")
