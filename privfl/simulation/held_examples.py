"""Parts of one's own that hold training examples: no mechanism covers what they make of them.

A step, a loss or a model sees data through the door alone, and what passes there is clipped, noised and charged. What
its code reads as a global, in a closure, from a field or a buffer passes no door. Examples are looked for there before
a run whose mechanisms would claim something. What was computed of examples beforehand (class weights, a mean image)
cannot be told from public numbers, so the statement says which parts hold arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.federation.task import Task
from privfl.models import OwnModel
from privfl.references import called, of_privfl
from privfl.simulation.every_state import EveryState

LOOKED_FOR = 256
"""Training examples that are looked for, drawn by a fixed seed: whoever holds a twentieth of all, picked without it,
holds fewer than two of them with a probability of 3e-5."""
WIDE = 8
"""Values of an example from which on it is known again whatever public factor and offset it was given."""
FEW, SEVERAL = 2, 8
"""Examples that must be found, of many values and of few: a mask of zeros and ones may happen to equal one."""
SAME = 1e-4
"""By how much of a value, or of its deviation over the examples, two examples differ that are the same."""
ROUNDED = 1e-6
"""By how much of its largest value an example in float32 may be off at another one, such as 0."""
NEAR = 1e-3
"""By how much of an example's own length the row that is the same may miss it: deviations may be those of outliers."""
FAINT, ENOUGH = 20, 4
"""Known at another factor and offset is an example by at least :data:`ENOUGH` values whose usual deviation over the
examples is :data:`FAINT` times what rounding leaves open: not beside a date in seconds."""
MANY = 2048
"""Values of an example of which this is asked, spread over all."""
_AT_ONCE = 1 << 24

Array = Tensor | NDArray[Any]
Parts = Sequence[tuple[str, Any]]
"""What a user may have written besides the model: what it is, and the thing itself."""


class _Built(EveryState):
    """Of a network that was built, since what builds one may well ask an example for its shape."""

    def _body(self, kind: type) -> dict[str, Any]:
        body = super()._body(kind)
        if issubclass(kind, nn.Module):
            body.pop("__init__", None)
        return body


def _listed(numbers: list[Any]) -> NDArray[np.float64]:
    """A list of ``numbers`` as an array; one may be a parameter, or lie on a device."""
    return np.array([one.item() if isinstance(one, Tensor) else one for one in numbers], dtype=np.float64)


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
        arrays = [*identity.arrays, *map(_listed, identity.lists)]
        found, looked = _found(task, arrays)
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


def _numbers(identity: EveryState, task: Task) -> int:
    """How many numbers the arrays hold that ``identity`` met, those aside that hold examples of ``task``."""
    return sum(math.prod(one.shape) for one in identity.arrays if not _found(task, [one])[0])


def _found(task: Task, arrays: Sequence[Array]) -> tuple[int, int]:
    """How many of the training examples looked for ``arrays`` hold, none if too few; and how many were looked for."""
    width, total = math.prod(task.inputs.shape[1:]), len(task.inputs)
    tables = [table for array in arrays for table in _tables(array, width)]
    if not tables or not total:
        return 0, 0
    drawn = np.random.default_rng(0).choice(total, min(total, LOOKED_FOR), replace=False)
    places = torch.from_numpy(np.sort(drawn).astype(np.int64))
    examples = torch.unique(task.inputs[places.to(task.targets.device)].reshape(-1, width).cpu().double(), dim=0)
    examples = examples[(examples != examples[:, :1]).any(1)]  # of a blank one nobody can say whose it is
    examples = examples[~_among(examples, list(_tables(task.test_inputs, width)))]  # held-out ones are public
    found = int(_among(examples, tables).sum())
    return (found if found >= (FEW if width >= WIDE else SEVERAL) else 0), len(examples)


def _among(examples: Tensor, tables: Sequence[Array]) -> Tensor:
    """Which of ``examples`` [E, width] are among the rows of ``tables``, each [n, width]: [E]."""
    seen = torch.zeros(len(examples), dtype=torch.bool)
    if not len(examples):
        return seen
    length = max(1, _AT_ONCE // max(examples.shape[1], LOOKED_FOR))
    for table in tables:
        for first in range(0, len(table), length):
            rows = table[first : first + length]
            values = rows.cpu().double() if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows, np.float64))
            seen |= _alike(examples, values)
    return seen


def _tables(array: Array, width: int) -> Iterator[Array]:
    """``array`` as rows of ``width`` values, where its last dimensions hold so many; columns may be such rows too."""
    if isinstance(array, Tensor):
        if array.is_meta or array.is_complex():
            return
        array = array.detach() if array.layout == torch.strided else array.detach().to_dense()
    shape = tuple(array.shape)
    if width > 1 and any(math.prod(shape[place:]) == width for place in range(len(shape))):
        yield array.reshape(-1, width)
    if width > 1 and len(shape) == 2 and shape[0] == width:  # as a table of pandas lies in memory
        yield array.T


def _alike(examples: Tensor, rows: Tensor) -> Tensor:
    """Which of ``examples`` [E, width] are among ``rows`` [R, width].

    With many values the row of the nearest direction is brought to the example's factor and offset, and must then come
    near in every value: where one is large in all examples (an income beside shares), all directions are near. By the
    example's own length too: beside examples a million times as large, every row is near to a small one.
    """
    equal = torch.isin(_hashes(examples), _hashes(rows))
    if examples.shape[1] < WIDE:
        return equal
    first, second = (one - one.mean(1, keepdim=True) for one in (examples, rows))
    cosines: Tensor = first @ second.mT / (first.norm(dim=1, keepdim=True) * second.norm(dim=1))
    nearest = second[cosines.nan_to_num(-1).argmax(1)]
    factor = (first * nearest).sum(1, keepdim=True) / nearest.square().sum(1, keepdim=True)
    missed, deviation = first - factor * nearest, examples.std(0, correction=0)
    least = ROUNDED * examples.abs().amax(1, keepdim=True)
    near = (missed.abs() <= SAME * (deviation + examples.abs()) + least).all(1)
    near &= missed.norm(dim=1) <= NEAR * first.norm(dim=1) + least[:, 0] * math.sqrt(examples.shape[1])
    some = slice(None, None, 1 + examples.shape[1] // MANY)
    columns = examples[:, some].T.contiguous()
    apart = (columns - columns.median(1, keepdim=True).values).abs()
    usual = apart.kthvalue(1 + int(0.9 * (len(examples) - 1)), 1).values  # not that of outliers
    usual = torch.where(usual > 0, usual, torch.minimum(deviation, first.abs())[:, some])
    telling = (FAINT * least <= usual).sum(1) >= ENOUGH
    return equal | (telling & near & (factor > 0)[:, 0])


def _hashes(rows: Tensor) -> Tensor:
    """Numbers [R] that are the same where ``rows`` [R, width] are in float32, and else most likely not."""
    bits = (rows.float() + 0.0).contiguous().view(torch.int32).long()  # zeros have one sign
    odd = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, rows.shape[1]) * 2 + 1
    return (bits * torch.from_numpy(odd)).sum(1)
