"""Random numbers of every row, for code that sees one row at a time under ``torch.func.vmap``.

They come from the stream of the client whose row it is, as drop-out masks do, and under DP-SGD are as secret: were they
known, one example more would shift those of all after it. A row that is padding draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.engine.dropout import StreamDropout
from privfl.privacy.noise.source import NoiseStream

Draw = Callable[[NoiseStream, int], NDArray[np.float64]]
"""So many numbers of a stream."""
FILLER = 0.5
"""What padding gets: a number that a coin, a logarithm and a quotient can be made of."""


class _Numbers(torch.autograd.Function):
    """Numbers [*stacks, *shape] for all rows at once, drawn outside of their stacks; ``row`` stands for one row."""

    @staticmethod
    def forward(row: Tensor, shape: tuple[int, ...], draw: Draw, layer: StreamDropout) -> Tensor:
        """``row`` [B, ...], or [clients, B, ...] of a cohort, is looked at for how many there are."""
        size = math.prod(shape)
        if layer.stack is None:
            present, length = layer.present or (1, 1)
            stacks, streams = row.shape[:1], [layer.generator or NoiseStream(bytes(32))]
            counts = [len(row) * present // length]
        else:
            stacks, streams, counts = row.shape[:2], list(layer.stack), list(layer.counts)
        drawn = np.full((math.prod(stacks[:-1]), stacks[-1], size), FILLER)
        for own, stream, count in zip(drawn, streams, counts, strict=False):
            if count * size:
                own[:count] = draw(stream, count * size).reshape(count, size)
        return torch.from_numpy(drawn).to(row.device).view(*stacks, *shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Numbers have no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        row: Tensor,
        shape: tuple[int, ...],
        draw: Draw,
        layer: StreamDropout,
    ) -> tuple[Tensor, int]:
        """One level out, with what this level stacks as the first dimension."""
        dim = in_dims[0]
        assert dim is not None
        numbers: Tensor = _Numbers.apply(row.movedim(dim, 0), shape, draw, layer)  # type: ignore[no-untyped-call]
        return numbers, 0


def uniform(row: Tensor, shape: tuple[int, ...], layer: StreamDropout) -> Tensor:
    """Numbers of ``shape`` uniform in [0, 1), float64, of the ``row`` in turn."""
    found: Tensor = _Numbers.apply(row, shape, NoiseStream.uniform, layer)  # type: ignore[no-untyped-call]
    return found


def normal(row: Tensor, shape: tuple[int, ...], layer: StreamDropout) -> Tensor:
    """Standard normal numbers of ``shape``, float64, of the ``row`` in turn."""
    found: Tensor = _Numbers.apply(row, shape, NoiseStream.normal, layer)  # type: ignore[no-untyped-call]
    return found


def numbers_of(
    row: Tensor, layer: StreamDropout, function: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> Tensor | None:
    """What the random ``function`` of PyTorch gives for this ``row``; ``None`` if it is not served.

    Raises:
        TypeError: it is asked for what is not served.
    """
    make = _MADE.get(function)
    return None if make is None else make(row, layer, *args, **named)


def _factory(draw: Callable[[Tensor, tuple[int, ...], StreamDropout], Tensor]) -> Callable[..., Tensor]:
    def make(row: Tensor, layer: StreamDropout, *sizes: Any, dtype: torch.dtype | None = None, **named: Any) -> Tensor:
        shape, device = named.pop("size", sizes), named.pop("device", None)
        _refuse_others(named)
        flat = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return draw(row, tuple(flat), layer).to(device or row.device, dtype or torch.get_default_dtype())

    return make


def _like(draw: Callable[[Tensor, tuple[int, ...], StreamDropout], Tensor]) -> Callable[..., Tensor]:
    def make(
        row: Tensor, layer: StreamDropout, input: Tensor, *, dtype: torch.dtype | None = None, **named: Any
    ) -> Tensor:
        _refuse_others(named)
        return draw(row, tuple(input.shape), layer).to(dtype or input.dtype)

    return make


def _refuse_others(named: dict[str, Any]) -> None:
    """Nothing is left but options that say how what is usual is to be had."""
    if any(value not in (None, False, torch.strided, torch.preserve_format) for value in named.values()):
        raise TypeError(f"random numbers of single rows take no {', '.join(named)}")


def _bernoulli(row: Tensor, layer: StreamDropout, input: Tensor, p: float | None = None) -> Tensor:
    return (uniform(row, tuple(input.shape), layer) < (input if p is None else p)).to(input.dtype)


def _bernoulli_(row: Tensor, layer: StreamDropout, input: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return input.copy_(uniform(row, tuple(input.shape), layer) < p)


def _uniform_(row: Tensor, layer: StreamDropout, input: Tensor, start: float = 0, to: float = 1) -> Tensor:
    return input.copy_(start + (to - start) * uniform(row, tuple(input.shape), layer))


def _normal_(row: Tensor, layer: StreamDropout, input: Tensor, mean: float = 0, std: float = 1) -> Tensor:
    return input.copy_(mean + std * normal(row, tuple(input.shape), layer))


def _exponential_(row: Tensor, layer: StreamDropout, input: Tensor, lambd: float = 1) -> Tensor:
    return input.copy_(-torch.log1p(-uniform(row, tuple(input.shape), layer)) / lambd)


def _normal(row: Tensor, layer: StreamDropout, mean: Any, std: Any = 1.0, size: Any = None) -> Tensor:
    like: Tensor = mean + torch.zeros_like(std) if isinstance(std, Tensor) else mean
    shape, dtype = (tuple(size), torch.get_default_dtype()) if size is not None else (tuple(like.shape), like.dtype)
    found: Tensor = normal(row, shape, layer).to(dtype) * std + mean
    return found


def _empty(row: Tensor, layer: StreamDropout, *sizes: Any, dtype: torch.dtype | None = None, **named: Any) -> Tensor:
    """An empty tensor of every row, since numbers of every row may be written to it."""
    shape, device = named.pop("size", sizes), named.pop("device", None)
    _refuse_others(named)
    flat = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    one = torch.zeros_like(row.flatten()[:0].sum(), dtype=dtype or torch.get_default_dtype())
    return one.to(device or row.device).expand(tuple(flat)).clone()


_MADE: dict[Any, Callable[..., Tensor]] = {
    torch.empty: _empty,
    torch.rand: _factory(uniform),
    torch.randn: _factory(normal),
    torch.rand_like: _like(uniform),
    torch.randn_like: _like(normal),
    torch.normal: _normal,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _bernoulli),
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
    Tensor.exponential_: _exponential_,
}
