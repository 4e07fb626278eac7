"""Means over positions as steps of a sequence: of a whole image, or of each of its windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from privfl.engine.sequence_steps import laid_as


class Averaged:
    """The mean over positions [B, C, ...] -> [B, C]; [B, C, H, W] -> [B, C, 1, 1] where dimensions are ``kept``."""

    def __init__(self, *, kept: bool = False) -> None:
        self.kept = kept

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        means = given.flatten(2).mean(2)
        return means.view(*means.shape, 1, 1) if self.kept else means, given

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        positions, rows = kept[0, 0].numel(), kept.shape[:2]
        return torch.empty_like(kept).copy_((back / positions).reshape(*rows, *[1] * (kept.dim() - 2)))


class AveragePooled:
    """``nn.AvgPool2d``, and ``nn.AdaptiveAvgPool2d``, whose windows follow from how many there are to be."""

    def __init__(self, layer: nn.AvgPool2d | nn.AdaptiveAvgPool2d) -> None:
        self.layer = layer
        if isinstance(layer, nn.AvgPool2d):
            window = (layer.kernel_size, layer.stride, layer.padding)
            ends = (layer.ceil_mode, layer.count_include_pad, layer.divisor_override)
            self.settings = (*(_pair(one) for one in window), *ends)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer.forward(given), given

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        back = laid_as(back, kept)
        if isinstance(self.layer, nn.AvgPool2d):
            found: Tensor = torch.ops.aten.avg_pool2d_backward(back, kept, *self.settings)
        else:
            found = torch.ops.aten._adaptive_avg_pool2d_backward(back, kept)
        return found


def averaging(layer: Any) -> Averaged | AveragePooled | None:
    """The step that ``layer``, of one of these very types, is; ``None`` for any other one."""
    if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1), [1, 1]):
        return Averaged(kept=True)
    return AveragePooled(layer) if type(layer) in (nn.AvgPool2d, nn.AdaptiveAvgPool2d) else None


def _pair(size: int | tuple[int, int]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)
