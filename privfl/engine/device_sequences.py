"""Stacked gradients of a plain sequence of layers on a device that each kernel launch costs more than its arithmetic.

The same steps as on a CPU (:mod:`privfl.engine.stacked_sequences`), laid out for few launches rather than few bytes:
the values of a window lie in the order of the layer's own weight, so that no weight is laid out anew and the gradient
of a weight comes out as the layer keeps it; a gather lays out what a convolution's input receives, so that one sum adds
it up; and padding is one zero beside the image, which windows point to.

Images are [clients, B, H, W, channels] here, in whatever order they lie in memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privfl.devices import to_device
from privfl.engine.dropout import StreamDropout
from privfl.engine.sequence_steps import Convolution, Dropped
from privfl.engine.sequences import Sequence as Single
from privfl.engine.stacked_sequences import Back, StackedSequence, Take, Views
from privfl.models.flat_network import Layout
from privfl.privacy.clipping.factors import zero_like
from privfl.privacy.clipping.formed_rules import FormedRule, OutputsFirstRule
from privfl.privacy.clipping.stacked import StackedBatch

LARGEST = 1 << 20
"""Values that all windows of one row may have, four mebibytes. Stacked convolutions elsewhere are grouped ones, whose
kernels a device launches client by client: five steps of 50 clients kept an H100 busy for 128 ms, with the sums of
their uploads, and an H200 by products for 28."""

MANY = 1 << 15
"""Values of all windows of one row beyond which bytes cost more than launches."""


class DeviceSequence(StackedSequence):
    """Copies of a network with parameters [clients, size], for :func:`stacked_sequence_of`.

    Rows of one pass may be rounded otherwise than those of another: who needs them alike finds out which passes are.
    """

    _windows_rule: type[FormedRule] = OutputsFirstRule

    @property
    def most_values(self) -> int:
        return LARGEST

    def __init__(self, single: Single, layout: Layout, *, steady: bool) -> None:
        super().__init__(single, layout, steady=steady)
        self._geometries: dict[Hashable, Geometry] = {}

    def plain_sum(self, parameters: Tensor, batch: StackedBatch) -> Tensor:
        gradient = torch.empty_like(parameters)
        places = self.views(gradient)

        def write(layer: nn.Linear | nn.Conv2d, given: Tensor, back: Tensor) -> None:
            if given.dim() == 4:
                given, back = given.flatten(1, 2), back.flatten(1, 2)
            torch.bmm(back.mT, given, out=places[id(layer.weight)].flatten(2))
            if layer.bias is not None:
                torch.sum(back, 1, out=places[id(layer.bias)])

        self._pass_through(parameters, batch, write, masked=True)
        return gradient

    def _pass(self, parameters: Tensor, batch: StackedBatch, take: Take) -> None:
        self._pass_through(parameters, batch, take, masked=False)  # who clips rows multiplies padding with 0

    def _pass_through(self, parameters: Tensor, batch: StackedBatch, take: Take, *, masked: bool) -> None:
        """Forward, and back from each row's cross-entropy; zero there, if ``masked``, where there is padding."""
        values, own, ways_back = batch.inputs, self.views(parameters), list[Back]()
        if values.dim() == 5:
            values = values.permute(0, 1, 3, 4, 2)
        for place, step in enumerate(self._steps):
            values, way_back = self._forward(step, values, own, wanted=place > self._first, short=False)
            ways_back.append(way_back)
        back = torch.softmax(values, 2)
        back.add_(batch.targets[:, :, None] == _classes(back.shape[2], back.device), alpha=-1)
        if masked:
            back = batch.rows_only(back)
        for way_back in reversed(ways_back[self._first :]):
            back = way_back(back, take)

    def in_windows(self) -> int:
        return sum(len(geometry.windows) for geometry in self._geometries.values())

    def _weight_of(self, layer: nn.Linear | nn.Conv2d, views: Views) -> Tensor:
        return views[id(layer.weight)]

    def _forward(self, step: Any, values: Tensor, own: Views, *, wanted: bool, short: bool) -> tuple[Tensor, Back]:
        if isinstance(step, Dropped):
            return _dropped(step.layer, values)
        return super()._forward(step, values, own, wanted=wanted, short=short)

    def _linear(
        self, layer: nn.Linear, values: Tensor, own: Views, *, wanted: bool, short: bool
    ) -> tuple[Tensor, Back]:
        weight = own[id(layer.weight)]
        output = torch.bmm(values, weight.mT)
        if layer.bias is not None:
            output += own[id(layer.bias)][:, None]

        def backward(back: Tensor, take: Take) -> Tensor:
            take(layer, values, back)
            return torch.bmm(back, weight) if wanted else back

        return output, backward

    def _convolution(self, step: Convolution, values: Tensor, own: Views, *, wanted: bool) -> tuple[Tensor, Back]:
        layer, (clients, rows) = step.layer, values.shape[:2]
        images = values.permute(0, 1, 4, 2, 3)
        outermost = images.is_contiguous() and not values.is_contiguous()
        key = (id(layer), values.shape[2:], outermost, values.device)
        if key not in self._geometries:
            self._geometries[key] = _geometry(step, values.shape[2:], values.device, outermost=outermost)
        geometry = self._geometries[key]
        height, width = geometry.output
        positions, (down, across) = height * width, step.window[0]
        if any(step.window[1]):
            flat = (images if outermost else values).reshape(clients * rows, -1)
            flat = torch.cat([flat, zero_like(flat).expand(len(flat), 1)], dim=1)
            windows = flat.index_select(1, geometry.windows)
        else:  # a copy, which is quicker than a gather
            high, wide = layer.kernel_size
            windows = values.flatten(0, 1).unfold(1, high, down).unfold(2, wide, across)
        windows = windows.reshape(clients, rows * positions, -1)
        weight = own[id(layer.weight)].flatten(2)
        output = torch.bmm(windows, weight.mT)
        if layer.bias is not None:
            output += own[id(layer.bias)][:, None]

        def backward(back: Tensor, take: Take) -> Tensor:
            back = back.reshape(clients, rows, positions, layer.out_channels)
            take(layer, windows.view(clients, rows, positions, -1), back)
            if not wanted:
                return back
            if geometry.many:
                return self._spread(step, geometry, back, own).view(values.shape)
            nowhere = zero_like(back).expand(clients, rows, 1, layer.out_channels)
            everywhere = torch.cat([back, nowhere], dim=2).flatten(1, 2)
            spread = torch.bmm(everywhere, weight).view(clients * rows, -1)
            shares = spread.index_select(1, geometry.shares)
            return shares.view(*values.shape, -1).sum(5)

        return output.view(clients, rows, height, width, -1), backward

    def _spread(self, step: Convolution, geometry: Geometry, back: Tensor, own: Views) -> Tensor:
        """What ``back`` [clients, B, positions, outputs] is at the image, added up place by place of the kernel.

        For many values: one addition of whole images for each place of the kernel takes a third of the time of a gather
        and its sum, and more launches.
        """
        layer, (clients, rows, _, outputs) = step.layer, back.shape
        (down, across), (above, beside), _ = step.window
        (high, wide), (height, width) = layer.kernel_size, geometry.output
        tall, broad = geometry.image
        weight = own[id(layer.weight)].permute(0, 1, 3, 4, 2).reshape(clients, outputs, -1)
        spread = torch.bmm(back.flatten(1, 2), weight).view(clients * rows, height, width, high, wide, -1)
        total = spread.new_zeros(clients * rows, tall + 2 * above, broad + 2 * beside, spread.shape[-1])
        for row in range(high):
            for column in range(wide):
                place = total[:, row : row + height * down : down, column : column + width * across : across]
                place.add_(spread[:, :, :, row, column])
        return total[:, above : above + tall, beside : beside + broad].reshape(clients, rows, tall, broad, -1)


@dataclass(frozen=True)
class Geometry:
    """What a convolution sees of an image [H, W, channels].

    Args:
        output: height and width of what comes out.
        windows: the places of an image in memory that its windows hold, from window to window, each in the order of the
            layer's weight; padding is the place behind the image.
        shares: for every value of an image, which of the values that go back from all windows are its own; where there
            are fewer than for others, the first one of the window behind the last.
        image: its height and width.
        many: whether what goes back is added up place by place of the kernel rather than by ``shares``.
    """

    output: tuple[int, int]
    windows: Tensor
    shares: Tensor
    image: tuple[int, int]
    many: bool


def _geometry(step: Convolution, image: Sequence[int], device: torch.device, *, outermost: bool) -> Geometry:
    """For an ``image`` [H, W, channels], whose channels lie ``outermost`` in memory or innermost."""
    height, width, channels = image
    (down, across), (above, beside), _ = step.window
    high, wide = step.layer.kernel_size
    inside = ((above, above), (beside, beside), (0, 0))
    values = np.arange(height * width * channels)

    def seen(places: NDArray[np.int64], behind: int) -> NDArray[np.int64]:
        """What windows hold of an image that holds ``places``: [H', W', channels, high, wide]."""
        wanted = np.lib.stride_tricks.sliding_window_view(
            np.pad(places, inside, constant_values=behind), (high, wide), axis=(0, 1)
        )
        return wanted[::down, ::across]

    innermost = values.reshape(height, width, channels)
    windows = seen(values.reshape(channels, height, width).transpose(1, 2, 0) if outermost else innermost, values.size)
    goals = seen(innermost, -1).ravel()
    sources = np.argsort(goals, kind="stable")
    sources = sources[goals[sources] >= 0]
    goals = goals[sources]
    place = np.arange(goals.size) - np.searchsorted(goals, goals)
    shares = np.full((values.size, place.max() + 1), windows.size)
    shares[goals, place] = sources
    shown, shared = (to_device(torch.from_numpy(table.ravel().astype(np.int64)), device) for table in (windows, shares))
    return Geometry((windows.shape[0], windows.shape[1]), shown, shared, (height, width), windows.size > MANY)


def _dropped(layer: StreamDropout, values: Tensor) -> tuple[Tensor, Back]:
    if not layer.training or layer.probability in (0, 1):
        return (values * 0 if layer.training and layer.probability == 1 else values), lambda back, _: back
    images = values.dim() == 5  # masks are drawn in the order in which one client's network draws them
    assert layer.stack is not None
    shape = values.permute(0, 1, 4, 2, 3).shape if images else values.shape
    kept = layer.kept(shape, layer.stack, layer.counts, values.device)
    kept = kept.permute(0, 1, 3, 4, 2) if images else kept
    scaled = torch.ops.aten.native_dropout_backward  # zero or scaled: forth the same as back
    return scaled(values, kept, layer.scale), lambda back, _: scaled(back, kept, layer.scale)


@cache
def _classes(number: int, device: torch.device) -> Tensor:
    return to_device(torch.arange(number), device)
