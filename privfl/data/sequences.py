"""Amazon 2014 5-core: what each user bought next, from prepared sequences or from the official review files."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.errors import DataError
from privfl.validation import check_choice, check_count

Sequences = dict[str, list[int]]


def load_amazon(
    entry: DatasetInfo,
    located: Located,
    *,
    seed: int,
    length: int = 50,
    targets: str = "all",
    holdout: str = "test",
) -> Dataset:
    """Rows int64 [N, length] of item ids, the next item as target, the user as natural client.

    A row holds the last ``length`` items before the target, in time order, padded with 0 in front. Items are numbered
    from 1, so there is one class more than items; 0 never is a target.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, the division is fixed (leave the last item out).
        length: items per row.
        targets: training targets of a user: ``all`` items from the second on, or only the ``last``.
        holdout: ``test`` tests on each user's last item; ``validation`` forgets that and tests on the last but one.
    """
    check_count("length", length)
    check_choice("targets", targets, ("all", "last"))
    check_choice("holdout", holdout, ("test", "validation"))
    (path,) = located.paths.values()
    users = read_sequences(path) if located.format == "sequences" else read_reviews(path)
    items = max(max(sequence) for sequence in users.values())
    distinct = len({item for sequence in users.values() for item in sequence})
    entry.check_counts(users=len(users), items=distinct, interactions=sum(map(len, users.values())))
    used = [sequence[:-1] if holdout == "validation" else sequence for sequence in users.values()]
    short = next((name for name, sequence in zip(users, used, strict=True) if len(sequence) < 3), None)
    if short is not None:
        raise DataError(f"{path}: user {short} has too few items for holdout={holdout!r}; leave the user out.")
    sizes = np.array([len(sequence) for sequence in used])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    flat = np.concatenate([np.array(sequence, np.int64) for sequence in used])
    last = starts + sizes - 1
    user_of = np.repeat(np.arange(len(used)), sizes)
    train = np.setdiff1d(np.arange(len(flat)), np.concatenate([starts, last])) if targets == "all" else last - 1
    x, y, clients = _rows(flat, train, starts, user_of, length)
    test_x, test_y, test_clients = _rows(flat, last, starts, user_of, length)
    return Dataset(
        entry.name, x, y, test_x, test_y, items + 1, clients, test_clients,
        client_names=tuple(users), vocabulary=items + 1,
    )  # fmt: skip


def read_sequences(path: Path) -> Sequences:
    """Gzip text, one line ``user item item ...`` per user, items from 1 in time order.

    Raises:
        DataError: the file is cut short, a line holds something else, or a user occurs twice.
    """
    users: Sequences = {}
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            for number, line in enumerate(lines, start=1):
                user, *items = line.split()
                if user in users or not items or not all(item.isdecimal() and int(item) > 0 for item in items):
                    raise DataError(
                        f"{path}, line {number}, is not a new user and item numbers from 1; fetch it again."
                    )
                users[user] = [int(item) for item in items]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a complete gzip file of item sequences ({error}); fetch it again.") from error
    return users


def read_reviews(path: Path) -> Sequences:
    """The official 5-core reviews: gzip, one JSON object per line with reviewerID, asin and unixReviewTime.

    Items are numbered from 1 in order of first appearance in the file; a user's reviews are sorted by time, those of
    the same second keep the order of the file.

    Raises:
        DataError: the file is cut short, or a line is not such an object.
    """
    reviews: dict[str, list[tuple[int, int]]] = {}
    numbers: dict[str, int] = {}
    number = 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                review = json.loads(line)
                item = numbers.setdefault(review["asin"], len(numbers) + 1)
                reviews.setdefault(review["reviewerID"], []).append((int(review["unixReviewTime"]), item))
                number += 1
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} stops being a file of reviews in line {number} ({error!r}); fetch it again."
        ) from error
    if not reviews:
        raise DataError(f"{path} is empty; fetch it again.")
    return {user: [item for _, item in sorted(own, key=lambda pair: pair[0])] for user, own in reviews.items()}


def _rows(
    flat: NDArray[np.int64],
    target: NDArray[np.int64],
    starts: NDArray[np.int64],
    user_of: NDArray[np.int64],
    length: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and clients for the targets at positions ``target`` of the joined sequences."""
    users = user_of[target]
    before = target[:, None] - np.arange(length, 0, -1)
    inputs = np.where(before >= starts[users, None], flat[before.clip(min=0)], 0)
    return torch.from_numpy(inputs), torch.from_numpy(flat[target]), torch.from_numpy(users)
