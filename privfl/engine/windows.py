"""The windows that convolutions see of images whose channels lie innermost, laid out and added up again.

The loops are compiled by Numba. What they give has the bits of PyTorch's operations, which stand in for them without it
and before it pays to load it: nothing is computed but sums, in the order in which the windows lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays

FEW_CHANNELS = 4
"""Channels up to which the numbers of a window are picked one by one: with more, PyTorch copies whole positions."""
PICKED = 2e-10
"""Seconds that a number takes less if a loop picks it (Intel Xeon: 0.34 ms instead of 0.49 for 720,000)."""
ADDED = 1e-9
"""Seconds that a number takes less if a loop adds it up (Intel Xeon: 0.13 ms instead of 0.60 for 360,000)."""
Numbers = NDArray[Any]


def picked(rows: Tensor, places: Tensor) -> Tensor:
    """``rows[:, places]`` of ``rows`` [N, n] on the CPU, by ``places``, each in [0, n), int64."""
    loop = once_it_pays(_pick, len(rows) * len(places) * PICKED)
    if loop is None:
        return rows.index_select(1, places)
    found = rows.new_empty(len(rows), len(places))
    loop(rows.numpy(), places.numpy().astype(np.uint32), found.numpy())
    return found


class Windows:
    """Which places of an image [H, W, channels], which is padded already, the windows of a convolution hold."""

    def __init__(self, image: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> None:
        """Windows of the ``kernel``'s height and width, ``stride`` apart."""
        self._image, (height, width, channels) = tuple(image), image
        self._stride = tuple(stride)
        (high, wide), (down, across) = kernel, stride
        self.shape = ((height - high) // down + 1, (width - wide) // across + 1, high, wide, channels)
        """Rows and columns of windows, and height, width and channels of each."""
        places = torch.arange(height * width).view(height, width)
        steps = (width * down, across, width, 1)
        self._positions = places.as_strided(self.shape[:4], steps).reshape(-1)
        self._numbers = (self._positions[:, None] * channels + torch.arange(channels)).view(-1)

    @property
    def values(self) -> int:
        """How many numbers all windows of an image hold."""
        return len(self._numbers)

    def laid_out(self, images: Tensor) -> Tensor:
        """The windows [N, rows · columns, height · width · channels] of ``images`` [N, H, W, channels], contiguous."""
        count, channels = len(images), self._image[2]
        if channels <= FEW_CHANNELS:
            found = picked(images.view(count, -1), self._numbers)
        else:
            found = images.view(count, -1, channels).index_select(1, self._positions)
        return found.view(count, self.shape[0] * self.shape[1], -1)

    def added_up(self, windows: Tensor) -> Tensor:
        """Images [N, H, W, channels] whose numbers are the sums of those at their places in ``windows``."""
        count, (height, width, channels) = len(windows), self._image
        loop = once_it_pays(_add_up, count * self.values * ADDED)
        if loop is None:
            total = windows.new_zeros(count, height * width, channels)
            total.index_add_(1, self._positions, windows.view(count, -1, channels))
            return total.view(count, height, width, channels)
        rows, columns, high, wide, _ = self.shape
        lines = windows.view(count, rows, columns, high, wide * channels)
        found = windows.new_empty(count, height, width * channels)
        loop(lines.numpy(), self._stride[0], self._stride[1] * channels, found.numpy())
        return found.view(count, height, width, channels)


def _pick(rows: Numbers, places: NDArray[np.uint32], found: Numbers) -> None:
    for row in range(len(rows)):
        given, into = rows[row], found[row]
        for i in range(len(places)):
            into[i] = given[places[i]]


def _add_up(windows: Numbers, down: int, across: int, found: Numbers) -> None:
    """``windows`` [N, rows, columns, height, n] into ``found`` [N, H, W · channels], ``down`` and ``across`` apart."""
    images, rows, columns, high, wide = windows.shape
    for image in range(images):
        total = found[image]
        total[:] = 0
        for row in range(rows):
            for column in range(columns):
                for line in range(high):
                    part = windows[image, row, column, line]
                    into = total[row * down + line, column * across : column * across + wide]
                    for i in range(wide):
                        into[i] += part[i]
