"""A convolution of 3 × 3 windows and the max pooling behind it as one step, by Winograd's transforms.

With 10 images of 26 × 26, 32 to 64 channels, a step of a CNN takes 4.7 ms of an Intel Xeon where oneDNN's
convolution, its two gradients and a compiled pooling take 5.9 to 6.3. What is pooled away is never written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.compiling import installed
from privfl.engine import winograd
from privfl.engine.sequence_steps import Convolution, Pooled, Step, padding_of
from privfl.models.layouts import INNERMOST
from privfl.products import forms

FEWEST = 16
"""Channels on either side from which on fewer multiplications are worth the transforms."""


@dataclass
class Kept:
    """What the forward pass leaves.

    Args:
        images: padded, [B, H, W, in].
        size: height and width before they were padded.
        filters: transformed, [36, out, in].
        places: which of the four that are pooled was the largest, uint8 [B, down, across, out].
        weight: what the weight gets, once it is known: [out · in, 9], or [B, out · in · 9] where samples stay apart.
    """

    images: Tensor
    size: tuple[int, int]
    filters: Tensor
    places: Tensor
    weight: Tensor | None = None


class PooledConvolution:
    """``nn.Conv2d`` and the ``nn.MaxPool2d`` after it, see :func:`joined`; images have their channels innermost."""

    def __init__(self, layer: nn.Conv2d, *, apart: bool = False) -> None:
        """``apart``: gradients are formed for each sample."""
        self.layer, self.apart = layer, apart
        self.at_once = forms().transformed
        padding = padding_of(layer)
        assert padding is not None
        self.down, self.across = padding
        self.transform = winograd.filter_transform()
        self.zeros = torch.zeros(layer.out_channels)
        self._spaces: dict[str, Tensor] = {}
        self._views: dict[tuple[str, int], Tensor] = {}

    def forward(self, given: Tensor) -> tuple[Tensor, Kept]:
        """Convolved and pooled: ``given`` [B, C, H, W] to [B, out, down, across]."""
        layer = self.layer
        given = given.contiguous(memory_format=INNERMOST)
        height, width = given.shape[2] + 2 * self.down, given.shape[3] + 2 * self.across
        tall, wide = winograd.sides(height, width)
        margins = (self.across, self.across + wide - width, self.down, self.down + tall - height)
        images = (F.pad(given, margins) if any(margins) else given).permute(0, 2, 3, 1).contiguous()
        filters = torch.mm(self.transform, layer.weight.reshape(-1, 9).T).view(winograd.POINTS, *layer.weight.shape[:2])
        pooled = given.new_empty(given.shape[0], *winograd.pooled_size(height, width), layer.out_channels)
        size = given.shape[2], given.shape[3]
        kept = Kept(images, size, filters, torch.empty(pooled.shape, dtype=torch.uint8))
        bias = self.zeros if layer.bias is None else layer.bias.detach()
        for rows, tiles in self._turns(images):
            patches = self._patches(images[rows], tiles)
            products = self._space("products", patches.shape[1], layer.out_channels)
            torch.bmm(patches, filters.mT, out=products)
            winograd.largest(products, bias, pooled[rows], kept.places[rows])
        return pooled.permute(0, 3, 1, 2), kept

    def backward(self, back: Tensor, kept: Kept) -> Tensor:
        """The gradient at the input from ``back``, that of what was pooled."""
        found = torch.empty_like(kept.images)
        self._take(back, kept, found)
        height, width = kept.size
        inner = found[:, self.down : self.down + height, self.across : self.across + width]
        return inner.permute(0, 3, 1, 2)

    def write(self, back: Tensor, kept: Kept, places: dict[str, Tensor]) -> None:
        """Write what the weight and the bias get."""
        weight = self._weight(back, kept)
        places["weight"].view(-1).copy_(weight.sum(0) if self.apart else weight.view(-1))
        if "bias" in places:
            torch.sum(back, (0, 2, 3), out=places["bias"])

    def descend(self, back: Tensor, kept: Kept, rate: float) -> None:
        """Subtract ``rate`` times that, where samples are not kept apart."""
        assert not self.apart
        self.layer.weight.view(-1, 9).sub_(self._weight(back, kept), alpha=rate)
        if self.layer.bias is not None:
            self.layer.bias.sub_(back.sum((0, 2, 3)), alpha=rate)

    def formed(self, back: Tensor, kept: Kept) -> dict[str, Tensor]:
        """The gradients [B, values] of each sample, by parameter name."""
        found = {"weight": self._weight(back, kept)}
        return found if self.layer.bias is None else {**found, "bias": back.sum((2, 3))}

    def _weight(self, back: Tensor, kept: Kept) -> Tensor:
        if kept.weight is None:  # the gradient at the input was not asked for
            self._take(back, kept, None)
        assert kept.weight is not None
        return kept.weight

    def _take(self, back: Tensor, kept: Kept, found: Tensor | None) -> None:
        """Both gradients at once, that at the input into ``found`` unless that is ``None``."""
        back = back.contiguous(memory_format=INNERMOST).permute(0, 2, 3, 1).contiguous()
        size = self.layer.weight.numel()
        sums = torch.zeros(0 if self.apart else kept.filters.shape)
        each = torch.empty(kept.images.shape[0], size) if self.apart else sums
        for rows, tiles in self._turns(kept.images):
            images = kept.images[rows]
            spread = self._space("products", tiles, back.shape[3])
            winograd.spread(back[rows], kept.places[rows], spread)
            patches = self._patches(images, tiles)
            if self.apart:  # products of one shape, however many samples there are
                pair = (one.view(winograd.POINTS * images.shape[0], -1, one.shape[2]) for one in (spread, patches))
                of_spread, of_patches = pair
                points = torch.bmm(of_spread.mT, of_patches).view(winograd.POINTS, -1)
                winograd.filters(points, each[rows].view(-1, 9))
            else:
                sums.baddbmm_(spread.mT, patches)
            if found is not None:
                torch.bmm(spread, kept.filters, out=patches)  # the images' patches have done their part
                winograd.images(patches, found[rows])
        if not self.apart:
            each = sums.new_empty(size // 9, 9)
            winograd.filters(sums.view(winograd.POINTS, -1), each)
        kept.weight = each

    def _turns(self, images: Tensor) -> list[tuple[slice, int]]:
        """The rows that are taken at once, and how many tiles they have."""
        down, across = winograd.tile_counts(*images.shape[1:3])
        of_one = down * across
        widest = max(self.layer.in_channels, self.layer.out_channels)
        count = images.shape[0]
        turns = -(-count * winograd.POINTS * of_one * widest // self.at_once)
        size = -(-count // turns)
        pairs = [(begin, min(begin + size, count)) for begin in range(0, count, size)]
        return [(slice(begin, end), (end - begin) * of_one) for begin, end in pairs]

    def _patches(self, images: Tensor, tiles: int) -> Tensor:
        """The transformed patches of ``images`` [B, H, W, C], which have so many ``tiles``."""
        space = self._space("patches", tiles, images.shape[3])
        winograd.patches(images, space)
        return space

    def _space(self, name: str, tiles: int, channels: int) -> Tensor:
        """Work space [36, tiles, channels] that every batch uses again."""
        view = self._views.get((name, tiles))
        if view is None:
            size = winograd.POINTS * tiles * channels
            found = self._spaces.get(name)
            if found is None or found.shape[0] < size:
                found = self._spaces[name] = torch.empty(size)
                self._views = {key: kept for key, kept in self._views.items() if key[0] != name}
            view = self._views[name, tiles] = found[:size].view(winograd.POINTS, tiles, channels)
        return view


def joined(one: Step, other: Step, *, apart: bool = False) -> PooledConvolution | None:
    """What does both, or ``None``: 3 × 3 windows one step apart, pools of 2 × 2, channels enough, in float32."""
    if not isinstance(one, Convolution) or not isinstance(other, Pooled) or one.narrow or not installed():
        return None
    layer = one.layer
    window = (layer.kernel_size, layer.stride, layer.dilation, layer.groups)
    if window != ((3, 3), (1, 1), (1, 1), 1) or not other.by_fours:
        return None
    if min(layer.in_channels, layer.out_channels) < FEWEST:
        return None
    return PooledConvolution(layer, apart=apart)
