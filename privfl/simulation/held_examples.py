"""Parts of one's own that hold training examples: no mechanism covers what they make of them.

A step, a loss or a model sees data through the door alone, and what passes there is clipped, noised and charged. What
its code reads as a global, in a closure, from a field or a buffer passes no door. Examples are looked for there before
a run whose mechanisms would claim something. What was computed of examples beforehand (class weights, a mean image)
cannot be told from public numbers, so the statement says which parts hold arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.federation.task import Task
from privfl.models import OwnModel
from privfl.references import called, of_privfl
from privfl.simulation.every_state import EveryState
from privfl.simulation.held_tables import Array, arrays_of, lists_of, tables_in
from privfl.simulation.same_rows import WIDE, Columns, alike, alike_by_columns, equals

LOOKED_FOR = 256
"""Training examples that are looked for, drawn by a fixed seed: whoever holds a twentieth of all, picked without it,
holds fewer than two of them with a probability of 3e-5."""
FEW, SEVERAL = 2, 8
"""Examples that must be found, of many values and of few: a mask of zeros and ones may happen to equal one."""
ALL_BUT = 0.1
"""Share of the examples looked for that may be missing where a part holds all of them, each column at its own scale."""
_AT_ONCE = 1 << 24

Parts = Sequence[tuple[str, Any]]
"""What a user may have written besides the model: what it is, and the thing itself."""


class _Built(EveryState):
    """Of a network that was built, since what builds one may well ask an example for its shape."""

    def _body(self, kind: type) -> dict[str, Any]:
        body = super()._body(kind)
        if issubclass(kind, nn.Module):
            body.pop("__init__", None)
        return body


def check_held_examples(task: Task, parts: Parts) -> tuple[str, ...]:
    """Refuse parts, and a model of one's own, that hold examples of ``task``.

    Returns:
        Those of ``parts`` that are not privfl's own and hold other arrays, and what builds a model of one's own from
        arrays, such as weights that were trained before: in words, with how many numbers.

    Raises:
        ConfigError: a part holds training examples.
    """
    met = [(name, part, EveryState(part)) for name, part in parts]
    model = [("model", one, _Built(one)) for one in ([task.model(0)] if isinstance(task.model, OwnModel) else [])]
    for name, part, identity in met + model:
        found, looked = _found(task, [*arrays_of(identity), *lists_of(identity)])
        if found:
            raise ConfigError(
                f"the {name} {called(part)} holds training examples ({found} of {looked} that were looked for), and "
                "no mechanism covers what it makes of them; let its code read public numbers only, or leave the "
                "mechanisms out"
            )
    if isinstance(task.model, OwnModel):  # which may ask examples, but not begin from them
        build = _Built(task.model.build)
        met.append(("model", task.model.build, build))
    numbers = [(name, part, _numbers(identity, task)) for name, part, identity in met]
    return tuple(
        f"the {name} {called(part)} ({count:,} number{'s' * (count > 1)})"
        for name, part, count in numbers
        if count and not of_privfl(part)
    )


def _has_fractions(task: Task) -> bool:
    """Whether examples hold other numbers than whole ones, which many lists hold."""
    values = _values(task, torch.arange(min(len(task.inputs), LOOKED_FOR)))
    return bool((values != values.round()).any())


def _numbers(identity: EveryState, task: Task) -> int:
    """How many numbers the arrays hold that ``identity`` met, those aside that hold examples of ``task``."""
    return sum(math.prod(one.shape) for one in arrays_of(identity) if not _found(task, [one])[0])


def _found(task: Task, arrays: Sequence[Array]) -> tuple[int, int]:
    """How many of the training examples looked for ``arrays`` hold, none if too few; and how many were looked for."""
    shape, total = tuple(task.inputs.shape[1:]), len(task.inputs)
    width = math.prod(shape)
    telling = width >= WIDE or (total > 0 and _has_fractions(task))
    tables = [table for array in arrays for table in tables_in(array, shape, telling=telling)]
    if not tables or not total:
        return 0, 0
    held_out = list(tables_in(task.test_inputs, shape, telling=False))
    examples = _looked_for(task, torch.arange(total), held_out)
    like = _seen(alike, examples, held_out)  # those at another scale could be held-out ones
    found = int(_seen(equals, examples[like], tables).sum() + _seen(alike, examples[~like], tables).sum())
    if found >= (FEW if width >= WIDE else SEVERAL):
        return found, len(examples)
    return max(_by_columns(task, table, held_out) for table in tables)


def _looked_for(task: Task, rows: Tensor, held_out: Sequence[Array]) -> Tensor:
    """Examples [E, width] that are looked for of these ``rows`` of the task: all different, and none that is public.

    Public are held-out ones, which lie there at the same scale: what is merely like one of them may be another's.
    """
    examples = _drawn(task, rows)
    left: Tensor = examples[~_seen(equals, examples, held_out)]
    return left


def _drawn(task: Task, rows: Tensor) -> Tensor:
    """Some examples [E, width] of these ``rows`` of the task, all different."""
    drawn = np.random.default_rng(0).choice(len(rows), min(len(rows), LOOKED_FOR), replace=False)
    places = rows[torch.from_numpy(np.sort(drawn).astype(np.int64))]
    examples = torch.unique(_values(task, places), dim=0)
    distinct: Tensor = examples[(examples != examples[:, :1]).any(1)]  # of a blank one nobody can say whose it is
    return distinct


def _values(task: Task, rows: Tensor) -> Tensor:
    """The examples of these ``rows`` as float64 [R, width]."""
    values: Tensor = task.inputs[rows.to(task.targets.device)].reshape(len(rows), -1).cpu().double()
    return values


def _by_columns(task: Task, table: Array, held_out: Sequence[Array]) -> tuple[int, int]:
    """The same of a ``table`` that may hold all of the examples, or all of a client's, each column at its own scale."""
    owners = np.flatnonzero(task.clients.sizes == len(table)).tolist()
    groups = [task.clients[client].cpu() for client in owners]
    if len(table) == len(task.inputs):
        groups.append(torch.arange(len(table)))
    other = Columns.of(_pieces(table)) if groups else None
    for rows in groups:
        assert other is not None
        examples = _drawn(task, rows)
        own = Columns.of(_values(task, some) for some in torch.split(rows, _length(examples.shape[1])))
        known = alike_by_columns(examples, own, _pieces(table), other)
        if int(known.sum()) < SEVERAL:  # of most clients, and held-out ones are many
            continue
        known = known[~_seen(equals, examples, held_out)]
        if int(known.sum()) >= max(SEVERAL, (1 - ALL_BUT) * len(known)):
            return int(known.sum()), len(known)
    return 0, 0


def _seen(known: Callable[[Tensor, Tensor], Tensor], examples: Tensor, tables: Sequence[Array]) -> Tensor:
    """Which of ``examples`` [E, width] are ``known`` among the rows of ``tables``, each [n, width]: [E]."""
    seen = torch.zeros(len(examples), dtype=torch.bool)
    if len(examples):
        for table in tables:
            for piece in _pieces(table):
                seen |= known(examples, piece)
    return seen


def _length(width: int) -> int:
    """Rows of so many values that are looked at at once."""
    return max(1, _AT_ONCE // max(width, LOOKED_FOR))


def _pieces(table: Array) -> Iterator[Tensor]:
    """``table`` [R, width] as float64 on the host, some rows at a time."""
    length = _length(table.shape[1])
    for first in range(0, len(table), length):
        rows = table[first : first + length]
        yield rows.cpu().double() if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows, np.float64))
