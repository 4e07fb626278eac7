"""One row at a time: what is not known to work row by row sees a batch through ``torch.func.vmap``, one row in it.

A function under ``vmap`` runs once, on tensors that stand for one row each; nothing that it can do lets the values of
one row meet another's, and what it keeps PyTorch refuses afterwards. Every row is a batch of one to it. Random numbers
are refused too: one example more would shift those of all after it, and PyTorch's generators are no secret. The
backward pass is ordinary autograd outside of ``vmap``, and :class:`Shown` notes what a layer received and gave for
every row, so that the rules for layers apply (:mod:`privfl.privacy.clipping.rule`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from privfl.errors import ConfigError
from privfl.privacy.loss import Loss

FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
"""What code raises that ``vmap`` cannot run."""


class Calls:
    """What one layer's calls showed: input and output, each with the dimension that the outermost stack has in it."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, int, Tensor, int]] = []


class Shown(torch.autograd.Function):
    """The output of a layer, unchanged; on its way out of ``depth`` stacks, input and output are noted as they lie."""

    @staticmethod
    def forward(received: Tensor, output: Tensor, anchor: Tensor, calls: Calls, depth: int) -> Tensor:
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
        calls: Calls,
        depth: int,
    ) -> tuple[Tensor, int]:
        """Note the input and a new tensor equal to the output, for which a gradient can be asked.

        ``anchor`` belongs to this stack, or a layer that sees nothing of it would not get here; such a layer's input
        and output are repeated, so that every row has its own.
        """
        into, out = in_dims[0], in_dims[1]
        if depth > 1:
            tensors, dims = (received, output, anchor), (into, out, in_dims[2])
            first = [_in_front(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, dims, strict=True)]
            shown: Tensor = Shown.apply(*first, calls, depth - 1)  # type: ignore[no-untyped-call]
            return shown, 0
        if into is None:
            received, into = _in_front(received, None, info.batch_size), 0
        if out is None:
            output, out = _in_front(output, None, info.batch_size), 0
        watched = output.view_as(output)
        calls.seen.append((received.detach(), into, watched, out))
        return watched, out


def _in_front(values: Tensor, dim: int | None, size: int) -> Tensor:
    return values.expand(size, *values.shape) if dim is None else values.movedim(dim, 0)


class Watch:
    """What the layers of one network received and gave while it runs under ``vmap``."""

    def __init__(self) -> None:
        self.seen: dict[nn.Module, Calls] | None = None
        self._anchor: Tensor | None = None
        self._depth = 1

    @contextmanager
    def watching(self) -> Iterator[dict[nn.Module, Calls]]:
        """Note the calls of the block."""
        seen: dict[nn.Module, Calls] = {}
        self.seen, self._anchor, self._depth = seen, None, 1
        try:
            yield seen
        finally:
            self.seen = self._anchor = None

    def enter_row(self, row: Tensor, depth: int) -> None:
        """Say that layers see one row from now on, ``depth`` stacks deep; ``row`` is a tensor of that row."""
        self._anchor, self._depth = row, depth

    def show(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """The forward hook of a layer that has a rule."""
        if self.seen is None:
            return None
        anchor = output if self._anchor is None else self._anchor
        calls = self.seen.setdefault(module, Calls())
        shown: Tensor = Shown.apply(inputs[0], output, anchor, calls, self._depth)  # type: ignore[no-untyped-call]
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

    def one(row: Tensor, target: Tensor) -> Tensor:
        if watch is not None:
            watch.enter_row(target, depth)
        return function(network, row[None], target[None], **loss_kwargs)[0]

    try:
        answers: Tensor = vmap(one, randomness="error")(inputs, targets)
    except FAILURES as error:
        if isinstance(error, ConfigError) or out_of_memory(error):
            raise
        raise ConfigError(
            f"{said_of(function)} sees one row at a time, by torch.func.vmap, because privacy rests on it, and fails "
            f"there ({failure(error, network)}); write it without .item(), without branches on values, without "
            "changing tensors that it did not make, and with nn.Dropout as the only randomness"
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
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
