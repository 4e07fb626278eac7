"""Drop-out whose masks come from a stream per client, so that they do not depend on who trains a client, or how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from privfl.engine.layouts import INNERMOST
from privfl.privacy.noise.source import NoiseStream

Coins = torch.Generator | NoiseStream
"""Where masks come from. Under DP-SGD they are as secret as the noise: were they known, one example more or less would
shift the masks of all examples after it, and their gradients with them."""


class StreamDropout(nn.Module):
    """``nn.Dropout`` (and its channel-wise kin) with coins that the engine sets.

    ``noise_dims`` is the number of leading dimensions that get masks of their own: all for ``nn.Dropout``, two (sample
    and channel) for ``nn.Dropout1d``, ``nn.Dropout2d`` and ``nn.Dropout3d``. One client's network draws from
    ``generator``; a stacked one draws ``counts[i]`` rows for client i from ``stack[i]``, the same numbers. ``present``
    says how many rows of how many are not padding, which draws nothing; ``None`` if all are present.
    """

    def __init__(self, probability: float, noise_dims: int | None) -> None:
        super().__init__()
        self.probability, self.noise_dims = probability, noise_dims
        self.generator: Coins | None = None
        self.stack: Sequence[Coins] | None = None
        self.counts: Sequence[int] = ()
        self.present: tuple[int, int] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return inputs
        if self.probability == 1:
            return inputs * 0
        like = inputs.detach()
        if self.noise_dims is not None:
            for dim in range(self.noise_dims, like.dim()):
                like = like.narrow(dim, 0, 1)
        if self.stack is not None or is_functorch_wrapped_tensor(like):
            kept: Tensor = _Mask.apply(like, self)  # type: ignore[no-untyped-call]
            return inputs * kept.to(inputs.dtype).mul_(1 / (1 - self.probability))
        scaled = self.kept_rows(like).to(inputs.dtype).mul_(1 / (1 - self.probability))
        if like.dim() == 4 and like.is_contiguous(memory_format=INNERMOST):
            scaled = scaled.contiguous(memory_format=INNERMOST)  # a product of unlike layouts is slow
        return inputs * scaled

    def kept_rows(self, like: Tensor) -> Tensor:
        """Which values of ``like`` are kept in the network of one client; padding keeps everything."""
        if self.present is None:
            return self.kept(like.shape, like, self.generator)
        rows, length = self.present
        masks, count = torch.ones_like(like, dtype=torch.bool), len(like) * rows // length
        masks[:count] = self.kept((count, *like.shape[1:]), like, self.generator)
        return masks

    def kept(self, shape: Sequence[int], like: Tensor, coins: Coins | None) -> Tensor:
        """Which values of ``shape`` are kept, bool, on the device of ``like``."""
        if isinstance(coins, NoiseStream):
            shape = torch.Size(shape)
            dropped = torch.from_numpy(coins.bernoulli(self.probability, shape.numel()))
            return ~dropped.view(shape).to(like.device)
        # Half precision must not change who is dropped.
        wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        return torch.rand(shape, generator=coins, device=like.device, dtype=wide) < 1 - self.probability

    def extra_repr(self) -> str:
        return f"p={self.probability}"


class _Mask(torch.autograd.Function):
    """The masks of all rows of a stack, or of all clients and their rows, drawn outside of it."""

    @staticmethod
    def forward(like: Tensor, layer: StreamDropout) -> Tensor:
        """Masks shaped as ``like``, [clients, B, ...] of a cohort; rows that are padding keep everything."""
        if layer.stack is None:
            return layer.kept_rows(like)
        masks = torch.ones_like(like, dtype=torch.bool)
        for place, (coins, count) in enumerate(zip(layer.stack, layer.counts, strict=True)):
            masks[place, :count] = layer.kept((count, *like.shape[2:]), like, coins)
        return masks

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
    return streams
