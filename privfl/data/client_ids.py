"""Client ids: numbered by the set of them, so that no row's coming or going gives another client another number."""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.errors import DataError

Order = tuple[Any, ...]
"""What ids are sorted by: the name of a kind, then what compares within it."""


def number_clients(name: str, clients: Any, numbers: dict[Hashable, int]) -> Tensor:
    """Client numbers by the sorted set of ids; ``numbers`` grows with ids not seen before, which come last.

    Ids that are equal are one client, whatever their types: 1, 1.0 and True.

    Raises:
        DataError: some row has no id, or ids cannot be told apart or sorted by what they are.
    """
    try:
        ids = clients.tolist() if isinstance(clients, Tensor | np.ndarray) else list(clients)
        present = set(ids)
    except TypeError:
        raise DataError(
            f"{name}: clients must be one id for each row, each hashable (number, string, tuple); turn them into such."
        ) from None
    absent = next((row for row, key in enumerate(ids) if key is None or key != key), None)
    if absent is not None:
        raise DataError(
            f"{name}: clients[{absent}] is {ids[absent]}; give every row an id, or leave clients out and give a "
            "partition."
        )
    new = {key: _order(key) for key in present if key not in numbers}
    orders = [order for order in new.values() if order is not None]
    if len(set(orders)) < len(new):
        key = next((key for key, order in new.items() if order is None), next(iter(new)))
        raise DataError(
            f"{name}: clients hold {type(key).__name__} objects that no text tells apart, so nothing sorts them; give "
            "numbers or strings as ids."
        )
    for _, key in sorted(zip(orders, new, strict=True), key=itemgetter(0)):
        numbers[key] = len(numbers)
    return torch.tensor([numbers[key] for key in ids], dtype=torch.int64)


def client_name(key: Hashable) -> str:
    """What the client with the id ``key`` is called: the same for all ids that are equal."""
    return str(_plain(key))


def _plain(key: Any) -> Any:
    """``key`` as ids equal to it are written too: numbers as int where they are whole, tuples of such."""
    if isinstance(key, tuple):
        return tuple(_plain(one) for one in key)
    if isinstance(key, complex | np.complexfloating) and key.imag == 0:
        key = key.real
    if isinstance(key, Decimal):
        key = Fraction(key) if key.is_finite() else float(key)
    if isinstance(key, Fraction):
        key = int(key) if key.denominator == 1 else float(key) if Fraction(float(key)) == key else key
    if isinstance(key, int | np.integer | np.bool_):
        return int(key)
    if isinstance(key, float | np.floating):
        return int(key) if key.is_integer() else float(key)
    return str.__str__(key) if isinstance(key, str) else key


def _order(key: Any) -> Order | None:
    """Where ``key`` is sorted, the same for equal ids of numbers, texts and tuples; ``None``: nothing tells it apart.

    ``<`` is not asked of other types: between sets it is no order, and it may not exist.
    """
    key = _plain(key)
    if isinstance(key, int | float | Fraction):
        return ("number", key) if key == key else None  # NaN inside a tuple
    if isinstance(key, str | bytes):
        return (type(key).__name__, key)
    if isinstance(key, tuple | frozenset):
        orders = [one for one in map(_order, key) if one is not None]
        if len(orders) < len(key):
            return None
        return ("tuple", *orders) if isinstance(key, tuple) else ("frozenset", *sorted(orders))
    kind = type(key)
    if vars(object)["__repr__"] is getattr(kind, "__repr__", None):  # it tells where in memory the object is
        return None
    return (f"{kind.__module__}.{kind.__qualname__}", repr(key))
