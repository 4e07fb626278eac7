"""Max pooling of 2 × 2 numbers and the ReLU behind it in one pass, of images whose channels lie innermost.

PyTorch's own pooling notes a place of 8 bytes for every number that it keeps, and ReLU goes over these once forward and
once backward. Here a place is one byte, which also says that nothing goes back. The loops are compiled by Numba; what
they compute has the bits of PyTorch's pooling and ReLU, but that what ReLU makes 0 is never -0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays
from privfl.models.layouts import INNERMOST

SAVED = 8e-10
"""Seconds that a number of the image takes less by the compiled loops, forward and backward (AMD EPYC)."""
NOWHERE = np.uint8(4)
"""The place of what ReLU made 0: none of the four."""
AS_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.float32}
"""What the loops take each type for: Numba has no bfloat16."""
Numbers = NDArray[Any]


class Places(NamedTuple):
    """Which of four numbers was the largest, uint8 [B, H // 2, W // 2, C], row by row; and the images' shape."""

    of_four: Tensor
    shape: torch.Size


def largest(images: Tensor, *, rectified: bool) -> tuple[Tensor, Places] | None:
    """The largest of each four numbers of ``images`` [B, C, H, W], and its place; ``None`` where there is no loop.

    It is not a number where one of the four is not. ``rectified``: 0 instead of what is negative, which has no place.
    """
    if images.device.type != "cpu" or images.dtype not in AS_INTEGERS:
        return None
    if not images.is_contiguous(memory_format=INNERMOST):
        return None
    narrow = images.dtype == torch.bfloat16
    loop = once_it_pays(_largest_narrow if narrow else _largest, images.numel() * SAVED)
    if loop is None:
        return None
    rows, channels, height, width = images.shape
    found = images.new_empty(rows, height // 2, width // 2, channels)
    places = torch.empty(found.shape, dtype=torch.uint8)
    loop(_array(images.permute(0, 2, 3, 1)), rectified, _array(found), places.numpy())
    return found.permute(0, 3, 1, 2), Places(places, images.shape)


def spread(back: Tensor, places: Places) -> Tensor:
    """The gradient at the images from ``back``, that at what was kept of them, in its type."""
    rows, channels, height, width = places.shape
    found = back.new_empty(rows, height, width, channels)
    loop = once_it_pays(_spread, 0.0)
    assert loop is not None  # what made the places
    loop(_array(back.permute(0, 2, 3, 1).contiguous()), places.of_four.numpy(), _array(found))
    return found.permute(0, 3, 1, 2)


def _array(values: Tensor) -> Numbers:
    found: Numbers = values.view(AS_INTEGERS[values.dtype]).numpy()
    return found


def _largest(images: Numbers, rectified: bool, pooled: Numbers, places: NDArray[np.uint8]) -> None:
    zero = images.dtype.type(0)
    rows, down, across, channels = pooled.shape
    for line in range(rows * down):
        image, row = line // down, line % down
        for tile in range(across):
            one, two = images[image, 2 * row, 2 * tile], images[image, 2 * row, 2 * tile + 1]
            three, four = images[image, 2 * row + 1, 2 * tile], images[image, 2 * row + 1, 2 * tile + 1]
            values, chosen = pooled[image, row, tile], places[image, row, tile]
            for i in range(channels):
                best, place = one[i], np.uint8(0)
                larger = (two[i] > best) | (two[i] != two[i])
                best, place = two[i] if larger else best, np.uint8(1) if larger else place
                larger = (three[i] > best) | (three[i] != three[i])
                best, place = three[i] if larger else best, np.uint8(2) if larger else place
                larger = (four[i] > best) | (four[i] != four[i])
                best, place = four[i] if larger else best, np.uint8(3) if larger else place
                low = rectified & (best <= zero)
                values[i], chosen[i] = zero if low else best, NOWHERE if low else place


def _largest_narrow(images: Numbers, rectified: bool, pooled: Numbers, places: NDArray[np.uint8]) -> None:
    """The same of bfloat16, given as int16: the upper half of a float32."""
    rows, down, across, channels = pooled.shape
    wide, bits = np.empty((4, channels), np.float32), np.empty(channels, np.float32)
    halves, kept = wide.view(np.int32), bits.view(np.int32)
    for line in range(rows * down):
        image, row = line // down, line % down
        for tile in range(across):
            for corner in range(4):
                given, half = images[image, 2 * row + corner // 2, 2 * tile + corner % 2], halves[corner]
                for i in range(channels):
                    half[i] = np.int32(given[i]) << np.int32(16)
            one, two, three, four = wide[0], wide[1], wide[2], wide[3]
            values, chosen = pooled[image, row, tile], places[image, row, tile]
            for i in range(channels):
                best, place = one[i], np.uint8(0)
                larger = (two[i] > best) | (two[i] != two[i])
                best, place = two[i] if larger else best, np.uint8(1) if larger else place
                larger = (three[i] > best) | (three[i] != three[i])
                best, place = three[i] if larger else best, np.uint8(2) if larger else place
                larger = (four[i] > best) | (four[i] != four[i])
                best, place = four[i] if larger else best, np.uint8(3) if larger else place
                low = rectified & (best <= np.float32(0))
                bits[i], chosen[i] = np.float32(0) if low else best, NOWHERE if low else place
            for i in range(channels):
                values[i] = np.int16(kept[i] >> np.int32(16))


def _spread(back: Numbers, places: NDArray[np.uint8], found: Numbers) -> None:
    zero = back.dtype.type(0)
    rows, down, across, channels = back.shape
    if 2 * down < found.shape[1] or 2 * across < found.shape[2]:
        found[:] = zero
    for line in range(rows * down):
        image, row = line // down, line % down
        for tile in range(across):
            values, chosen = back[image, row, tile], places[image, row, tile]
            for corner in range(4):
                into = found[image, 2 * row + corner // 2, 2 * tile + corner % 2]
                for i in range(channels):
                    into[i] = values[i] if chosen[i] == corner else zero
