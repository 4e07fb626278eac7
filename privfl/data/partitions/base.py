"""What a partition is, and the few ways of dealing out samples that all partitions share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from privfl.errors import ConfigError, DataError
from privfl.validation import Settings, check_count, said


class Assignment(NamedTuple):
    """Who gets what: sample ``indices[j]`` goes to client ``owners[j]`` of ``clients`` (both int64, same length)."""

    indices: np.ndarray
    owners: np.ndarray
    clients: int


@dataclass(frozen=True)
class Partition(Settings, ABC):
    """A rule that deals the samples of one dataset to clients; its fields are the rule's settings.

    Class attributes:
        needs_classes: it looks at the class of each sample; a rule that does not may deal out any kind of task.
    """

    needs_classes: ClassVar[bool] = True

    def split(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Deal the samples out: one int64 index array per client, ascending, without repeats, never empty.

        ``targets`` is the integer class of every sample, shape (samples,), values 0 … ``classes`` − 1; ``clients`` is
        the natural client of every sample where the dataset knows it. The result depends on these, on the settings and
        on the state of ``rng`` only. Clients are disjoint unless the rule says otherwise. Raises :class:`DataError`
        for malformed targets and :class:`ConfigError` for settings that this dataset cannot satisfy.
        """
        targets = check_targets(targets, classes)
        return _group(self.assign(targets, classes, rng, clients), len(targets), self)

    def profiles(self, classes: int, rng: np.random.Generator) -> np.ndarray | None:
        """The label law that each client aims at, float64 (clients, classes), or ``None`` if the rule has no such aim.

        Drawn before anything else, so a generator in the state that :meth:`split` was given returns the same profiles.
        """
        return None

    @abstractmethod
    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        """Deal the samples out, which are checked already: the one method of a rule of one's own.

        Arguments are those of :meth:`split`. Indices, owners and their lengths are checked afterwards, and that every
        client has a sample.
        """


def _group(assignment: Assignment, samples: int, partition: Partition) -> list[np.ndarray]:
    indices, owners, clients = assignment
    check_count(f"{partition}: the number of clients", clients)
    indices, owners = _whole(indices, f"{partition}: the indices"), _whole(owners, f"{partition}: the owners")
    if len(indices) != len(owners):
        raise DataError(f"{partition} gives {len(indices)} indices and {len(owners)} owners; give one owner each")
    for what, values, bound in (("indices", indices, samples), ("owners", owners, clients)):
        if len(values) and (values.min() < 0 or values.max() >= bound):
            raise DataError(
                f"{partition}: the {what} go from {values.min()} to {values.max()}; number them from 0 to {bound - 1}"
            )
    sizes = np.bincount(owners, minlength=clients)
    if not sizes.all():
        raise ConfigError(
            f"{partition} leaves client {int(sizes.argmin())} of {clients} without an example; use fewer clients or a "
            "milder setting"
        )
    flat = np.sort(owners * samples + indices) % samples  # one key, so a single sort groups and orders
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    return [flat[start:stop] for start, stop in pairwise(bounds.tolist())]


def check_parts(parts: Any, partition: Partition) -> list[np.ndarray]:
    """What the method ``split`` of ``partition`` gave, as one int64 array of rows for each client.

    Raises:
        DataError: it is no list of such; which rows there are, and who has none, is for the report to say.
    """
    if not isinstance(parts, list | tuple) or not len(parts):
        found = "no clients" if isinstance(parts, list | tuple) else said(parts)
        raise DataError(f"{partition} splits the rows into {found}; give a list with one array of rows for each client")
    return [_whole(part, f"{partition}: the rows of client {client}") for client, part in enumerate(parts)]


def _whole(values: Any, what: str) -> np.ndarray:
    """``values`` as int64 [N]; ``what`` begins the sentence about those that are no whole numbers."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == np.int64:
        return values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise DataError(f"{what} are uneven; give whole numbers [N]") from None
    if array.shape == (0,):
        return array.astype(np.int64)
    if array.dtype == np.bool_:
        raise DataError(f"{what} are a mask of {array.size} truth values; give np.flatnonzero(mask)")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{what} are {array.dtype} of shape {array.shape}; give whole numbers [N]")
    if int(array.max()) >= 2**63:
        raise DataError(f"{what} go up to {array.max()}; give row numbers")
    return array.astype(np.int64)


def check_targets(targets: np.ndarray, classes: int) -> np.ndarray:
    """``targets`` as int64; raises :class:`DataError` unless they are one class 0 … ``classes`` − 1 per sample."""
    check_count("the number of classes", classes)
    targets = np.asarray(targets)
    if targets.ndim != 1 or not np.issubdtype(targets.dtype, np.integer) or not len(targets):
        raise DataError(
            f"targets have shape {targets.shape} and type {targets.dtype}; a partition needs at least one example and "
            "one whole-number class for each example"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise DataError(f"targets range from {low} to {high}; number them from 0 to {classes - 1}")
    return targets.astype(np.int64, copy=False)


def check_enough(samples: int, clients: int, min_size: int = 1) -> None:
    """Raise :class:`ConfigError` unless every client can have ``min_size`` of the ``samples``."""
    if clients * min_size > samples:
        raise ConfigError(
            f"{clients} clients with at least {min_size} examples each need {clients * min_size} examples and the "
            f"dataset has {samples}; lower clients or min_size"
        )


def consecutive(order: np.ndarray, sizes: np.ndarray) -> Assignment:
    """Client 0 gets the first ``sizes[0]`` entries of ``order``, client 1 the next ``sizes[1]``, and so on."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return Assignment(order[: len(owners)], owners, len(sizes))


def class_pools(targets: np.ndarray, classes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The samples of each class, in random order."""
    order = rng.permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(targets, minlength=classes))[:-1])


def even_sizes(total: int, parts: int) -> np.ndarray:
    """``total`` in ``parts`` whole numbers that differ by at most one, the larger ones first.

    >>> even_sizes(10, 4).tolist()
    [3, 3, 2, 2]
    """
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def proportional_sizes(weights: np.ndarray, total: int, minimum: int, *, exhaust: bool) -> np.ndarray:
    """Whole sizes ∝ ``weights`` (≥ 0), each at least ``minimum`` ≥ 1, rounded down; their sum is at most ``total``.

    Parts that would fall below ``minimum`` get ``minimum`` and the others share what is left. With ``exhaust`` the
    samples lost to rounding go to the parts that lost most, so that the sum is ``total``.

    >>> proportional_sizes(np.array([8.0, 1.0, 0.0]), 100, 5, exhaust=True).tolist()
    [84, 11, 5]
    """
    share = weights * total / weights.sum()
    floored = np.zeros(len(weights), dtype=bool)
    while (low := ~floored & (share < minimum)).any():
        floored |= low
        share[floored] = minimum
        if floored.all():
            break
        share[~floored] = weights[~floored] * (total - minimum * floored.sum()) / weights[~floored].sum()
    sizes = np.floor(share * (1 + 1e-12)).astype(np.int64)  # 2.9999999999999996 is 3
    if exhaust:
        lost = np.argsort(sizes - share, kind="stable")
        sizes[lost[: total - sizes.sum()]] += 1
    return np.asarray(sizes)
