"""Copies to a device that the host does not wait for.

A copy to CUDA from ordinary memory stops the host until the device has taken it. From pinned memory it does not, and
PyTorch keeps such memory until the copy is done. On other devices these are ordinary copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 8
"""Bytes at whose multiples the parts of a joint copy begin, so that each can be viewed in its own type."""


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """``values``, which lie on the CPU, on ``device``."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def in_one_copy(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """All ``parts``, which lie on the CPU, on ``device``; on CUDA they are views into one tensor."""
    if device.type == "cpu":
        return list(parts)
    if device.type != "cuda":
        return [part.to(device) for part in parts]
    sizes = [part.numel() * part.element_size() for part in parts]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + math.ceil(size / ALIGNED) * ALIGNED)
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    for part, start, size in zip(parts, starts, sizes, strict=False):
        host[start : start + size].view(part.dtype).copy_(part.reshape(-1))
    there = host.to(device, non_blocking=True)
    return [
        there[start : start + size].view(part.dtype).view(part.shape)
        for part, start, size in zip(parts, starts, sizes, strict=False)
    ]
