"""What a claim about one example takes for granted of a task's rows, and what is found of it in the data.

A mechanism at the door bounds what one row of one client does. A row that its client lists three times does three times
that; equal rows are one person's as like as not; and of examples that are tested on as well, test figures tell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.mapped import Rows
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task

MOST, ROOM = 10_000, 1 << 26
"""Rows that are drawn at most, and the bytes that they may take."""
NARROW = 8
"""Values of an example below which whole numbers may well coincide."""
SEVERAL, SHARE = 8, 0.05
"""Equals that must be found, and the share of all examples that they must stand for: real data hold a few by chance."""

COPIES = (
    "of {looked:,} training examples that were drawn, {found:,} equal another of them, target included; every claim is "
    "about one copy"
)
TESTED = (
    "of {looked:,} training examples that were drawn, {found:,} are test examples too; the claims take these for "
    "public, and test figures tell about them"
)


def check_listed_once(clients: ClientIndex) -> None:
    """Refuse ``clients`` one of whom lists a row more than once.

    Raises:
        ConfigError: a row is there twice, so that to leave one example out changes a gradient by more than one clipped.
    """
    rows = clients.rows.cpu().numpy()
    if not clients.overlap:
        return
    owners = np.repeat(np.arange(len(clients)), clients.sizes)
    order = np.lexsort((rows, owners))
    same = (np.diff(rows[order]) == 0) & (np.diff(owners[order]) == 0)
    if same.any():
        place = order[same.argmax()]
        client, row = int(owners[place]), int(rows[place])
        times = int((clients[client] == row).sum())
        raise ConfigError(
            f"client {client} lists row {row} of the training data {times} times, and DP-SGD and statistics cover an "
            "example that is there once; list it once, or leave these mechanisms out"
        )


def found_in_rows(task: Task) -> tuple[str, ...]:
    """What is to be said of training examples that are there twice, or among the test examples too.

    It follows from the data, so it is for whoever runs the experiment, and stays out of the statement.
    """
    if not len(task.inputs):  # the server of a federation holds none
        return ()
    rows = np.flatnonzero(np.bincount(task.clients.rows.cpu().numpy()))
    room = max(SEVERAL, ROOM // (math.prod(task.inputs.shape[1:]) * task.inputs.dtype.itemsize))
    count = min(len(rows), MOST, room)
    drawn = np.sort(np.random.default_rng(0).choice(rows, count, replace=False))
    examples = list(_hashes(task.inputs, task.targets, drawn))
    times = Counter(examples)
    equal = sum(times[one] > 1 for one in examples if one is not None)
    held_out = np.arange(min(len(task.test_inputs), 10 * room))
    tested = set(_hashes(task.test_inputs, task.test_targets, held_out)) - {None}
    both = sum(one in tested for one in examples)
    said = []
    if equal >= SEVERAL and equal * len(rows) >= SHARE * count**2:  # of a pair both must be drawn
        said.append(COPIES.format(found=equal, looked=count))
    if both >= SEVERAL and both >= SHARE * count:
        said.append(TESTED.format(found=both, looked=count))
    return tuple(said)


def _hashes(inputs: Rows | Tensor, targets: Tensor, rows: NDArray[np.int64]) -> Iterator[int | None]:
    """What tells each of the ``rows`` and its target from others; ``None`` of a row that may equal others by chance."""
    for piece in np.array_split(rows, -(-len(rows) // 1000)) if len(rows) else ():
        places = torch.from_numpy(piece).to(targets.device)
        values, aims = inputs[places].flatten(1).cpu().numpy(), targets[places].cpu().numpy()
        chance = (values == values[:, :1]).all(1)
        if values.shape[1] < NARROW:
            chance |= (values == np.round(values)).all(1)
        for value, aim, by_chance in zip(values, aims, chance.tolist(), strict=True):
            yield None if by_chance else hash((value.tobytes(), aim.tobytes()))
