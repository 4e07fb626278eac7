"""Kernels that round a number by where it stands in memory.

A loop over many numbers takes them some at a time, by instructions for several, and what is left over at its end one by
one. A sum or a product comes out the same either way; a sigmoid does not, since the two ways approximate it
differently. So the last rows of a pass may be rounded otherwise than if more rows followed. It may happen to one number
in thousands, of the few that are left over, so comparing rows of public numbers does not find it out for
certain. Here the calls themselves are looked at: those that could, and how long their innermost loop is. Where
that is a multiple of what any instruction takes, nothing is left over; where it is the same whatever the number of
rows is, it goes along each row by itself.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SEVERAL = 64
"""Numbers that any loop takes at a time, or a multiple of it: two vectors of 512 bits hold 32 in float32, 64 in 16."""

_EXACT = frozenset({
    "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "clamp_max",
    "clamp_min", "clone", "copy", "copysign", "div", "eq", "floor", "fmax", "fmin", "ge", "gt", "hardtanh",
    "hardtanh_backward", "isfinite", "isinf", "isnan", "le", "leaky_relu", "leaky_relu_backward", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "masked_fill",
    "maximum", "minimum", "mul", "nan_to_num", "ne", "neg", "positive",
    "reciprocal", "relu", "relu6", "round", "rsub", "sgn", "sign", "signbit", "sqrt", "square", "sub",
    "threshold", "threshold_backward", "trunc", "where",
})  # fmt: skip
"""What a processor rounds correctly or does not round, whichever instruction it uses."""
_EXACT_IF_COMPLEX = frozenset({"add", "clone", "copy", "eq", "masked_fill", "ne", "neg", "sub", "where"})
_ALIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{
        name: lambda one, _, name=name: getattr(torch, name)(one)  # type: ignore[misc]
        for name in ("cos", "erf", "exp", "expm1", "log", "log1p", "sin", "tanh")
    },
    "add": lambda one, other: one.add(other, alpha=0.3),
    "sub": lambda one, other: one.sub(other, alpha=0.3),
    "addcdiv": lambda one, other: one.addcdiv(other, one, value=0.3),
    "addcmul": lambda one, other: one.addcmul(other, one, value=0.3),
    "lerp": lambda one, other: one.lerp(other, 0.3),
    "remainder": lambda one, other: one.remainder(other),
    "sigmoid_backward": torch.ops.aten.sigmoid_backward,
    "tanh_backward": torch.ops.aten.tanh_backward,
}
"""What loops are to do by the same instructions up to their end; whether they do is tried once."""
_UNMARKED = frozenset({
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "elu_backward",
    "glu", "glu_backward", "hardsigmoid_backward", "hardswish", "hardswish_backward", "huber_loss",
    "huber_loss_backward", "log_sigmoid_backward", "log_sigmoid_forward", "logsumexp", "mish_backward",
    "rrelu_with_noise", "rrelu_with_noise_backward", "smooth_l1_loss", "smooth_l1_loss_backward",
    "softplus_backward", "softshrink_backward",
})  # fmt: skip
"""What goes number by number too, or in a part of it, although PyTorch does not mark it so."""

_EACH = "_foreach_"
"""How functions of lists are called, each tensor of which is a loop of its own."""
_TRIED = 1 << 20
"""Numbers with which that is tried: of those that came out otherwise by any function, one in 10,000 at least did."""

Call = tuple[str, int, tuple[int, ...]]
"""What is called, the numbers of its innermost loop, and how far apart these lie in each tensor."""


class Calls(TorchDispatchMode):
    """Notes, while it is entered, the calls that may round a number by its place; not those :func:`unnoted`.

    PyTorch would tell its compiler to keep out of here, and import it for that, which takes more than a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``function``, and note it."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if _looked_at.elsewhere:
            return result
        tensors = [one for one in (*_flat(args), *_flat((result,))) if one.is_floating_point() or one.is_complex()]
        if tensors and _by_place(function, args, kwargs, tensors[-1].dtype):
            loops = [[one] for one in tensors] if function.__name__.startswith(_EACH) else [tensors]
            self.noted += [(function.__name__, *_innermost(loop)) for loop in loops]
        return result


class _CallsOfCompiled(Calls):  # type: ignore[no-untyped-call]
    """The same beside a compiler that is there already, and is told."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return super().__torch_dispatch__(function, types, args, kwargs)


class _LookedAt(threading.local):
    elsewhere = False


_looked_at = _LookedAt()


@contextmanager
def unnoted(*, elsewhere: bool = True) -> Iterator[None]:
    """What the block calls is looked at ``elsewhere``."""
    before, _looked_at.elsewhere = _looked_at.elsewhere, elsewhere
    try:
        yield
    finally:
        _looked_at.elsewhere = before


def calls_of(run: Callable[[], object]) -> list[Call]:
    """The calls of ``run()`` that may round a number by its place."""
    calls = _CallsOfCompiled() if "torch._dynamo" in sys.modules else Calls()
    with unnoted(elsewhere=False), calls:
        run()
    return calls.noted


def wherever_it_stands(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """``function``, number by number, of ``values`` of one shape [B, ...] or []: each row rounded alike in any pass.

    For terms of a loss, whose passes would otherwise have to be longer, and numbers of which a stack of clients has one
    each: every row fills what a loop takes at a time.
    """
    shape = values[0].shape
    rows, numbers = math.prod(shape[:1]), math.prod(shape[1:])
    missing = -numbers % SEVERAL
    if missing == 0:
        return function(*values)
    filled = (F.pad(value.reshape(rows, numbers), (0, missing)) for value in values)
    return function(*filled)[:, :numbers].reshape(shape)


def nothing_is_left_over(calls: Iterable[Call]) -> bool:
    """Whether every loop takes all of its numbers several at a time."""
    return all(length % SEVERAL == 0 for _, length, _ in calls)


def placed_alike(some: Sequence[Call], others: Sequence[Call]) -> bool:
    """Whether each row is rounded alike by two passes of different lengths, as far as that depends on its place."""
    if nothing_is_left_over(some) and nothing_is_left_over(others):
        return True
    return len(some) == len(others) and all(
        one == other or (one[0] == other[0] and nothing_is_left_over((one, other)))
        for one, other in zip(some, others, strict=True)
    )


def _by_place(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> bool:
    name = function.overloadpacket.__name__.removeprefix(_EACH).rstrip("_")
    alpha = kwargs.get("alpha", args[2] if name == "rsub" and len(args) > 2 else 1)
    if dtype.is_complex:  # a product is a sum of products
        return name not in _EXACT_IF_COMPLEX and (name in _EXACT or torch.Tag.pointwise in function.tags)
    if name == "pow" and isinstance(args[1], int | float) and args[1] in (0.5, 1, 2):
        return False
    if name in _EXACT and alpha in (1, -1) and kwargs.get("rounding_mode") is None:
        return False
    if name in _ALIKE and alike_up_to_the_end(name, dtype):
        return False
    if name in _UNMARKED or name in _EXACT:
        return True
    other_form = function.__name__.startswith(_EACH) or _writes(function)
    return torch.Tag.pointwise in function.tags or (other_form and _is_marked(name))


@cache
def alike_up_to_the_end(name: str, dtype: torch.dtype) -> bool:
    """Whether the function of that ``name`` came out the same in a loop as where loops are too short for several."""
    draws = torch.Generator().manual_seed(0)
    numbers = [torch.rand(_TRIED // 16, 16, generator=draws).mul_(4).add_(0.01).to(dtype) for _ in range(2)]
    function = _ALIKE[name]
    with torch.no_grad():
        whole = function(*numbers)[:, :15]
        return torch.equal(function(*(one[:, :15] for one in numbers)), whole)


def _writes(function: Any) -> bool:
    """Whether this form of a function writes into a tensor that it is given; PyTorch does not mark all of these."""
    return any(one.alias_info is not None and one.alias_info.is_write for one in function._schema.arguments)


def _is_marked(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)


def _flat(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _flat(value)
    return found


def _innermost(tensors: Sequence[Tensor]) -> tuple[int, tuple[int, ...]]:
    """How many numbers the innermost loop over ``tensors``, as large as the largest of them, takes, and its steps."""
    largest = max(tensors, key=Tensor.numel)
    together = [one for one in tensors if _fits(one, largest)]
    strides = [one.expand(largest.shape).stride() for one in together]
    own = largest.stride()
    dims = sorted((dim for dim, size in enumerate(largest.shape) if size > 1), key=lambda dim: (own[dim], -dim))
    if not dims:
        return 1, ()
    length, steps = largest.shape[dims[0]], tuple(stride[dims[0]] for stride in strides)
    for dim in dims[1:]:
        if any(stride[dim] != step * length for stride, step in zip(strides, steps, strict=True)):
            break
        length *= largest.shape[dim]
    return length, steps


def _fits(one: Tensor, largest: Tensor) -> bool:
    try:
        return bool(torch.broadcast_shapes(one.shape, largest.shape) == largest.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
