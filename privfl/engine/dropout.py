"""Drop-out layers that draw from a stream of their own, so that masks do not depend on which worker trains a client."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StreamDropout(nn.Module):
    """``nn.Dropout`` (and its channel-wise kin) with a generator that the engine sets for every client.

    ``noise_dims`` is the number of leading dimensions that get masks of their own: all for ``nn.Dropout``, two (sample
    and channel) for ``nn.Dropout1d``, ``nn.Dropout2d`` and ``nn.Dropout3d``.
    """

    def __init__(self, probability: float, noise_dims: int | None) -> None:
        super().__init__()
        self.probability, self.noise_dims = probability, noise_dims
        self.generator: torch.Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return inputs
        if self.probability == 1:
            return inputs * 0
        shape = inputs.shape
        if self.noise_dims is not None:
            shape = torch.Size([*shape[: self.noise_dims], *[1] * (len(shape) - self.noise_dims)])
        kept = 1 - self.probability
        mask = torch.rand(shape, generator=self.generator, device=inputs.device, dtype=inputs.dtype) < kept
        return inputs * mask / kept

    def extra_repr(self) -> str:
        return f"p={self.probability}"


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
