"""ReLU, flattening and drop-out of images whose channels lie innermost, in one pass forward and one back.

Between its convolutions and its wide dense layer a CNN copies its images into another order, with a pass for ReLU
before and one for drop-out after, and the same on the way back: 0.23 ms of a step where the compiled loops take 0.10
(Intel Xeon, 10 images of 12 × 12 numbers and 64 channels). They give the bits of the steps that they stand for, but
that what ReLU makes 0 is never -0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays
from privfl.engine.pooling import AS_INTEGERS
from privfl.engine.sequence_steps import Dropped, Flattened, Rectified, Step
from privfl.models.layouts import INNERMOST

SAVED = 1.4e-9
"""Seconds that a number takes less by the compiled loops, forward and backward (Intel Xeon)."""
_NO_FACTORS = np.empty((1, 0), dtype=np.float32)
Numbers = NDArray[Any]


class Kept(NamedTuple):
    """What the loops leave: the ``images`` [B, C, H, W] that were given, and ``factors`` [B, C·H·W] if some dropped."""

    images: Tensor
    factors: Tensor | None


class FlatImages:
    """The steps from ReLU, where there is one, to drop-out, where there is one, with flattening between them."""

    def __init__(self, steps: list[Step]) -> None:
        """``steps``: :class:`Flattened`, perhaps behind :class:`Rectified`, perhaps before :class:`Dropped`."""
        self.steps = steps
        self.rectified = isinstance(steps[0], Rectified)
        self.dropped = steps[-1] if isinstance(steps[-1], Dropped) else None

    def forward(self, given: Tensor) -> tuple[Tensor, Kept | list[Any]]:
        """``given`` [B, C, H, W] flattened to [B, C·H·W]; in float32 where drop-out is on."""
        drops = self.dropped is not None and self.dropped.layer.training and self.dropped.layer.probability > 0
        loop = self._loop(given, drops=drops)
        if loop is None:
            kept: list[Any] = []
            for step in self.steps:
                given, needed = step.forward(given)
                kept.append(needed)
            return given, kept
        found = torch.empty(given.shape[0], given.shape[1:].numel())
        factors = self.dropped.layer.factors(found).contiguous() if drops and self.dropped is not None else None
        loop(_array(given), self.rectified, _NO_FACTORS if factors is None else factors.numpy(), found.numpy())
        return found, Kept(given, factors)

    def _loop(self, given: Tensor, *, drops: bool) -> Any:
        """What flattens ``given``; ``None`` where that is not compiled, or the type is to stay bfloat16."""
        if given.device.type != "cpu" or given.dim() != 4 or not given.is_contiguous(memory_format=INNERMOST):
            return None
        if given.dtype != torch.float32 and not (given.dtype == torch.bfloat16 and drops):
            return None
        return once_it_pays(_flatten if given.dtype == torch.float32 else _flatten_narrow, SAVED * given.numel())

    def backward(self, back: Tensor, kept: Kept | list[Any]) -> Tensor:
        """The gradient at the images from ``back`` [B, C·H·W], in their type and layout."""
        if not isinstance(kept, Kept):
            for step, needed in zip(reversed(self.steps), reversed(kept), strict=True):
                back = step.backward(back, needed)
            return back
        found = torch.empty_like(kept.images, memory_format=INNERMOST)
        loop = once_it_pays(_lay if found.dtype == torch.float32 else _lay_narrow, 0.0)
        assert loop is not None  # its twin flattened the images
        factors = _NO_FACTORS if kept.factors is None else kept.factors.numpy()
        loop(back.contiguous().numpy(), factors, _array(kept.images), self.rectified, _array(found))
        return found


def flat_images(steps: list[Step]) -> list[Step]:
    """``steps`` with :class:`FlatImages` where they flatten."""
    place = next((place for place, step in enumerate(steps) if isinstance(step, Flattened)), None)
    if place is None:
        return steps
    begin = place - 1 if place > 0 and isinstance(steps[place - 1], Rectified) else place
    end = place + 2 if place + 1 < len(steps) and isinstance(steps[place + 1], Dropped) else place + 1
    return [*steps[:begin], FlatImages(steps[begin:end]), *steps[end:]]


def _array(images: Tensor) -> Numbers:
    """``images`` as [B, H·W, C]."""
    rows, channels, height, width = images.shape
    found: Numbers = images.permute(0, 2, 3, 1).view(AS_INTEGERS[images.dtype]).numpy()
    return found.reshape(rows, height * width, channels)


def _flatten(images: Numbers, rectified: bool, factors: Numbers, found: Numbers) -> None:
    rows, places, channels = images.shape
    zero, some = images.dtype.type(0), factors.shape[1] > 0
    for row in range(rows):
        for channel in range(channels):
            into = found[row, channel * places : (channel + 1) * places]
            for place in range(places):
                value = images[row, place, channel]
                into[place] = zero if rectified & (value <= zero) else value
            if some:
                factor = factors[row, channel * places : (channel + 1) * places]
                for place in range(places):
                    into[place] *= factor[place]


def _flatten_narrow(images: Numbers, rectified: bool, factors: Numbers, found: Numbers) -> None:
    """The same of bfloat16, given as int16, the upper half of a float32, with factors."""
    rows, places, channels = images.shape
    wide = np.empty(places, np.float32)
    halves, zero = wide.view(np.int32), np.float32(0)
    for row in range(rows):
        for channel in range(channels):
            into = found[row, channel * places : (channel + 1) * places]
            factor = factors[row, channel * places : (channel + 1) * places]
            for place in range(places):
                halves[place] = np.int32(images[row, place, channel]) << np.int32(16)
            for place in range(places):
                value = wide[place]
                into[place] = (zero if rectified & (value <= zero) else value) * factor[place]


def _lay(back: Numbers, factors: Numbers, images: Numbers, rectified: bool, found: Numbers) -> None:
    rows, places, channels = images.shape
    zero, some, scaled = images.dtype.type(0), factors.shape[1] > 0, np.empty(places * channels, back.dtype)
    for row in range(rows):
        given, factor = back[row], factors[row % len(factors)]
        for i in range(len(given)):
            scaled[i] = given[i] * factor[i] if some else given[i]
        for place in range(places):
            into, image = found[row, place], images[row, place]
            for channel in range(channels):
                value = scaled[channel * places + place]
                into[channel] = zero if rectified & (image[channel] <= zero) else value


def _lay_narrow(back: Numbers, factors: Numbers, images: Numbers, rectified: bool, found: Numbers) -> None:
    """The same into bfloat16, rounded to the nearest, of two the even one, as PyTorch does."""
    rows, places, channels = images.shape
    scaled = np.empty(places * channels, np.float32)
    bits, wide = scaled.view(np.uint32), np.empty(channels, np.float32)
    halves, zero = wide.view(np.int32), np.float32(0)
    for row in range(rows):
        given, factor = back[row], factors[row]
        for i in range(len(given)):
            scaled[i] = given[i] * factor[i]
        for i in range(len(given)):
            word = np.int64(bits[i])
            nan = (word & 0x7FFFFFFF) > 0x7F800000
            word = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
            bits[i] = np.uint32(0x7FC0 if nan else word)
        for place in range(places):
            into, image = found[row, place], images[row, place]
            for channel in range(channels):
                halves[channel] = np.int32(image[channel]) << np.int32(16)
            for channel in range(channels):
                half = np.int16(bits[channel * places + place])
                into[channel] = np.int16(0) if rectified & (wide[channel] <= zero) else half
