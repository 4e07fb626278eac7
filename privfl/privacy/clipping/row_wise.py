"""One row at a time: what is not known to work row by row sees a batch through ``torch.func.vmap``, one row in it.

A function under ``vmap`` runs once, on tensors that stand for one row each; nothing that it does lets the values of
one row meet another's. What it keeps could meet rows of a later batch, so keeping is refused (:class:`Made`), and so
are random numbers that no engine draws from a secret stream: one example more would shift those of all after it, and
PyTorch's generators are no secret. Every row is a batch of one to it. The backward pass is ordinary autograd outside of
``vmap``, and :class:`Watch` notes what a layer received and gave for every row, so that the rules for layers apply
(:mod:`privfl.privacy.clipping.rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import (
    current_level,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
)

from privfl.errors import ConfigError
from privfl.privacy.clipping.guard import Made
from privfl.privacy.clipping.quiet_vmap import vmap
from privfl.privacy.loss import Loss

FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
"""What code raises that ``vmap`` cannot run."""


@dataclass
class Shown:
    """One call of a layer, as it lies in memory.

    ``into`` and ``out`` are the dimensions of the outermost stack in ``received`` and ``output``. What arrives at
    ``output`` must first have its dimension ``rows`` moved to the front, unless that is ``None``.
    """

    received: Tensor
    into: int
    output: Tensor
    out: int
    rows: int | None = None

    def arrived(self, back: Tensor) -> Tensor:
        """The gradient ``back`` at the output, laid out so that :attr:`out` is its outermost stack."""
        return back if self.rows is None else back.movedim(self.rows, 0)


Seen = dict[nn.Module, list[Shown]]
"""Every call of every layer in one forward pass."""


class _Repeated(torch.autograd.Function):
    """The output of a layer, for every row anew, where a layer sees nothing of the row; noted on the way out.

    ``anchor`` belongs to every stack, or a function under ``vmap`` would not be asked for its rule.
    """

    @staticmethod
    def forward(received: Tensor, output: Tensor, anchor: Tensor, note: Callable[[Shown], None], depth: int) -> Tensor:
        raise AssertionError("what shows its layers runs under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: what runs in the backward pass was recorded outside of vmap."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        received: Tensor,
        output: Tensor,
        anchor: Tensor,
        note: Callable[[Shown], None],
        depth: int,
    ) -> tuple[Tensor, int]:
        """Note the input and a new tensor equal to the output, for which a gradient can be asked."""
        tensors, dims = (received, output, anchor), in_dims[:3]
        first = [_in_front(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, dims, strict=True)]
        if depth > 1:
            return _Repeated.apply(*first, note, depth - 1), 0  # type: ignore[no-untyped-call]
        watched = first[1].view_as(first[1])
        note(Shown(first[0].detach(), 0, watched, 0))
        return watched, 0


def _in_front(values: Tensor, dim: int | None, size: int) -> Tensor:
    return values.expand(size, *values.shape) if dim is None else values.movedim(dim, 0)


def _out_of_stacks(values: Tensor, depth: int) -> tuple[Tensor, list[int]] | None:
    """``values`` as they lie in memory, and their dimension in each stack from the innermost one, if they are in all.

    Only what is in no other transform can be taken out.
    """
    level, dims = current_level(), []
    for inner in range(depth):
        if not is_batchedtensor(values) or maybe_get_level(values) != level - inner:
            return None
        dims.append(maybe_get_bdim(values))
        values = get_unwrapped(values)
    return None if is_functorch_wrapped_tensor(values) else (values, dims)


def _rows_moved(dims: list[int]) -> tuple[int | None, int]:
    """Where the rows of a stack of rows in a stack lie, and where the stack is once they are moved to the front."""
    if len(dims) == 1:
        return None, dims[0]
    inner, outer = dims
    rows = inner if inner < outer else inner + 1
    return rows, outer + 1 if outer < rows else outer


class Watch:
    """What the layers of one network received and gave while it runs under ``vmap``."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self._anchor: Tensor | None = None
        self._depth = 1

    @contextmanager
    def watching(self) -> Iterator[Seen]:
        """Note the calls of the block."""
        seen: Seen = {}
        self.seen, self._anchor, self._depth = seen, None, 1
        try:
            yield seen
        finally:
            self.seen = self._anchor = None

    def enter_row(self, row: Tensor, depth: int) -> None:
        """Say that layers see one row from now on, ``depth`` stacks deep; ``row`` is a tensor of that row."""
        self._anchor, self._depth = row, depth

    def leave_row(self) -> None:
        """Forget the row."""
        self._anchor = None

    def show(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """The forward hook of a layer that has a rule."""
        if self.seen is None:
            return None
        calls = self.seen.setdefault(module, [])
        given, gave = _out_of_stacks(inputs[0], self._depth), _out_of_stacks(output, self._depth)
        if given is not None and gave is not None:
            (rows, into), (rows_out, out) = _rows_moved(given[1]), _rows_moved(gave[1])
            received = given[0].detach()
            calls.append(Shown(received if rows is None else received.movedim(rows, 0), into, gave[0], out, rows_out))
            return None
        anchor = output if self._anchor is None else self._anchor
        shown: Tensor = _Repeated.apply(inputs[0], output, anchor, calls.append, self._depth)  # type: ignore[no-untyped-call]
        return shown


def each_row(
    function: Loss,
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_kwargs: dict[str, Any] | None = None,
    watch: Watch | None = None,
    depth: int = 1,
) -> Tensor:
    """``function(network, inputs [1, ...], targets [1], **loss_kwargs)[0]`` of every row, stacked [B, ...], B ≥ 1.

    Raises:
        ConfigError: it cannot run under ``vmap``.
    """
    loss_kwargs = loss_kwargs or {}

    made = Made((maybe_current_level() or 0) + 1)

    def one(row: Tensor, target: Tensor) -> Tensor:
        if watch is not None:
            watch.enter_row(target, depth)
        with made.of(row, target):
            return function(network, row[None], target[None], **loss_kwargs)[0]

    try:
        answers: Tensor = vmap(one, randomness="error")(inputs, targets)
        if watch is not None:
            watch.leave_row()
        made.refuse_kept(said_of(function))
    except FAILURES as error:
        if isinstance(error, ConfigError) or out_of_memory(error):
            raise
        raise ConfigError(
            f"{said_of(function)} sees one row at a time, by torch.func.vmap, because privacy rests on it, and fails "
            f"there ({failure(error, network)}); write it without .item(), without branches on values, without "
            "changing tensors that it did not make, and draw by drop-out, torch.rand and torch.randn alone"
        ) from error
    return answers


def said_of(function: Loss) -> str:
    """What to call ``function`` in a sentence."""
    inner = function
    while hasattr(inner, "func"):
        inner = inner.func
    return f"the function {getattr(inner, '__name__', type(inner).__name__)}"


def failure(error: Exception, network: nn.Module) -> str:
    """What went wrong, in one line that names the innermost layer of ``network`` on the way to it, if there is one."""
    if isinstance(error, ConfigError) and error.__cause__ is not None:
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    names = {id(module): name for name, module in network.named_modules()}
    lines, place, trace = str(error).strip().splitlines(), "", error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if id(owner) in names:
            name = names[id(owner)]
            place = f"layer '{name}', {type(owner).__name__}: " if name else ""
        trace = trace.tb_next
    return place + (lines[0] if lines else type(error).__name__)


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says nothing but that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(mark in str(error) for mark in ("can't allocate memory", "STATUS_ALLOC_FAILED"))  # cuBLAS, cuDNN
