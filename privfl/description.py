"""Settings objects as plain data, for ``config.toml`` and for telling two runs apart."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any


def describe(value: Any) -> Any:
    """``value`` as JSON-able data: a dataclass becomes its class name and its fields, the rest stays as it is.

    >>> from privfl.privacy.mechanisms.clip import Clip
    >>> describe([Clip(max_norm=1.0)])
    [{'name': 'Clip', 'max_norm': 1.0}]
    """
    if is_dataclass(value):
        return {
            "name": type(value).__name__,
            **{item.name: describe(getattr(value, item.name)) for item in fields(value)},
        }
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return value
