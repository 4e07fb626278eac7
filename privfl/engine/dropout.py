"""Drop-out whose masks come from a stream per client, so that they do not depend on who trains a client, or how.

A mask is made of bytes of a key stream, which the CPU makes faster than any generator of PyTorch's makes random
numbers, and which are the same on every device. A GPU makes them itself; where it cannot, they travel there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from privfl.compiling import once_it_pays
from privfl.models.layouts import INNERMOST
from privfl.privacy.noise.device_coins import coins, rows_of_coins
from privfl.privacy.noise.source import NoiseStream

_NOBODY = NoiseStream(bytes(32))
SAVED = 1.5e-10
"""Seconds that a number takes less by the compiled loop (AMD EPYC)."""


class StreamDropout(nn.Module):
    """``nn.Dropout`` (and its channel-wise kin) with coins that the engine sets.

    ``noise_dims`` is the number of leading dimensions that get masks of their own: all for ``nn.Dropout``, two (sample
    and channel) for ``nn.Dropout1d``, ``nn.Dropout2d`` and ``nn.Dropout3d``. One client's network draws from
    ``generator``; a stacked one draws ``counts[i]`` rows for client i from ``stack[i]``, the same numbers. ``present``
    says how many rows of how many are not padding, which draws nothing; ``None`` if all are present.

    Under DP-SGD the streams are as secret as the noise: were masks known, one example more or less would shift the
    masks of all examples after it, and their gradients with them.
    """

    def __init__(self, probability: float, noise_dims: int | None) -> None:
        super().__init__()
        self.probability, self.noise_dims = probability, noise_dims
        self.generator: NoiseStream | None = None
        self.stack: Sequence[NoiseStream] | None = None
        self.counts: Sequence[int] = ()
        self.present: tuple[int, int] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return inputs
        if self.probability == 1:
            return inputs * 0
        like = self._like(inputs)
        if self.stack is not None or is_functorch_wrapped_tensor(like):
            mask: Tensor = _Mask.apply(like, self)  # type: ignore[no-untyped-call]
            return inputs * mask
        mask = self.one_mask(like)
        if like.dim() == 4 and like.is_contiguous(memory_format=INNERMOST):
            mask = mask.contiguous(memory_format=INNERMOST)  # a product of unlike layouts is slow
        return inputs * mask

    def factors(self, inputs: Tensor) -> Tensor:
        """What ``inputs`` [B, ...] of one client's network are multiplied with, in training mode, in their shape."""
        if self.probability == 1:
            return torch.zeros_like(inputs)
        return self.one_mask(self._like(inputs)).expand_as(inputs)

    def _like(self, inputs: Tensor) -> Tensor:
        """A tensor of the shape in which masks are drawn."""
        like = inputs.detach()
        if self.noise_dims is not None:
            for dim in range(self.noise_dims, like.dim()):
                like = like.narrow(dim, 0, 1)
        return like

    def one_mask(self, like: Tensor) -> Tensor:
        """What the values ``like`` [B, ...] of one client's network are multiplied with."""
        stream = self.generator or NoiseStream(bytes(32))  # what is tried on public rows has no stream yet
        rows, length = self.present or (1, 1)
        if (like.device.type, like.dtype) == ("cpu", torch.float32):  # the same in fewer calls
            drawn = like.shape[0] * rows // length * math.prod(like.shape[1:])
            least, coin_bytes = self._side
            factors = torch.from_numpy(_factors(coins(stream, drawn, coin_bytes), least, self.scale))
            if drawn < like.numel():  # padding, or public rows, is kept
                factors = F.pad(factors, (0, like.numel() - drawn), value=self.scale)
            return factors.view(like.shape)
        return self.masks(like[None], [stream], [len(like) * rows // length])[0]

    def masks(self, like: Tensor, streams: Sequence[NoiseStream], counts: Sequence[int]) -> Tensor:
        """What ``like`` [clients, B, ...] is multiplied with: 0, or 1 / (1 - p); padding is left as it is or not."""
        there = self.kept(like.shape, streams, counts, like.device)
        factor = torch.tensor(self.scale, dtype=like.dtype)
        if there.device.type == "cpu":  # widened from bytes first, which is quicker than a product with bools
            return there.view(torch.int8).to(like.dtype).mul_(factor)
        return there * factor

    @property
    def scale(self) -> float:
        """What values that are kept are multiplied with."""
        return 1 / (1 - self.probability)

    def kept(
        self, shape: Sequence[int], streams: Sequence[NoiseStream], counts: Sequence[int], device: torch.device
    ) -> Tensor:
        """Which values of this ``shape`` [clients, B, ...] are kept, on ``device``."""
        size = math.prod(shape[2:])
        counts = [*counts, *[0] * (shape[0] - len(counts))]
        streams = [*streams, *[_NOBODY] * (shape[0] - len(streams))]  # who fills a stack draws nothing
        numbers = [count * size for count in counts[: shape[0]]]
        least, coin_bytes = self._side
        return rows_of_coins(streams[: shape[0]], numbers, shape[1] * size, least, coin_bytes, device).view(*shape)

    @property
    def _side(self) -> tuple[int, int]:
        """From which number on a coin keeps its value, and its bytes: one if that settles it, else four."""
        coin_bytes = 1 if (self.probability * 256).is_integer() else 4
        return round(self.probability * 256**coin_bytes), coin_bytes

    def extra_repr(self) -> str:
        return f"p={self.probability}"


def _factors(coins: NDArray[Any], least: int, scale: float) -> NDArray[np.float32]:
    """``scale`` in float32 where ``coins`` are ``least`` and more, else 0."""
    loop = once_it_pays(_choose, len(coins) * SAVED)
    if loop is None:
        return np.multiply(coins >= least, np.float32(scale), dtype=np.float32)
    found = np.empty(len(coins), dtype=np.float32)
    loop(coins, coins.dtype.type(least), np.float32(scale), found)
    return found


def _choose(coins: NDArray[Any], least: Any, scale: Any, found: NDArray[np.float32]) -> None:
    for i in range(len(coins)):
        found[i] = scale if coins[i] >= least else np.float32(0)


class _Mask(torch.autograd.Function):
    """The masks of all rows of a stack, or of all clients and their rows, drawn outside of it."""

    @staticmethod
    def forward(like: Tensor, layer: StreamDropout) -> Tensor:
        """Masks shaped as ``like``, [clients, B, ...] of a cohort."""
        return layer.one_mask(like) if layer.stack is None else layer.masks(like, layer.stack, layer.counts)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """A mask has no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], like: Tensor, layer: StreamDropout) -> tuple[Tensor, int]:
        """One level out, with what this level stacks as the first dimension."""
        dim = in_dims[0]
        assert dim is not None
        masks: Tensor = _Mask.apply(like.movedim(dim, 0), layer)  # type: ignore[no-untyped-call]
        return masks, 0


_CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def give_dropout_streams(network: nn.Module) -> list[StreamDropout]:
    """Replace the drop-out layers of ``network`` in place; return the new ones. Functional drop-out is left alone."""
    streams = []
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.Dropout, *_CHANNELWISE)):
                layer = StreamDropout(child.p, 2 if isinstance(child, _CHANNELWISE) else None)
                layer.train(child.training)
                setattr(parent, name, layer)
                streams.append(layer)
    apart = outside_of_graphs(network)
    if apart is not None:
        for layer in streams:
            layer.forward = apart(layer.forward)  # type: ignore[method-assign]
    return streams


def outside_of_graphs(network: nn.Module) -> Callable[[Any], Any] | None:
    """What keeps a function out of the graphs that ``torch.compile`` makes of ``network``; ``None`` if it makes none.

    It cannot follow how masks are made, and would fail.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")  # which nobody has loaded who compiles nothing
    if dynamo is None or not any(isinstance(one, dynamo.OptimizedModule) for one in network.modules()):
        return None
    disable: Callable[[Any], Any] = dynamo.disable
    return disable
