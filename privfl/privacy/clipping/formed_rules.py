"""Rules for layers that form their per-sample gradients, since these are small: convolutions and normalisations.

The tensors whose norms are taken are the very ones that are added up, so rounding on the way to them harms no row's
bound; :mod:`privfl.privacy.clipping.lengths` sees to it that it is the same in every batch.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.privacy.clipping.factors import Clipping, exact_sums, full_products, row_norms
from privfl.privacy.clipping.rule import Calls, Formed, Places, SumRule
from privfl.products import steady_product, sums_over_rows


class FormedRule:
    """A rule that forms its per-sample gradients: cheap where the layer has few parameters."""

    takes_rows_first: ClassVar[bool] = True
    forms_rows: ClassVar[bool] = True

    def __init__(self, layer: nn.Module, trained: frozenset[str]) -> None:
        self.layer, self.trained = layer, trained
        self.formed: dict[str, Tensor] = {}

    def receive(self, calls: Calls | Formed, *, apart: bool = False) -> None:
        self.formed = {}
        if isinstance(calls, dict):
            self.formed = {name: gradient for name, gradient in calls.items() if name in self.trained}
            return
        for given, back in calls:
            rows, several = len(given), apart and self.takes_several(given)
            if several:  # one row was given to the layer as several: their gradients belong to that row
                given, back = given.flatten(0, 1), back.flatten(0, 1)
            for name, gradient in self.form(given, back).items():
                if several and len(gradient) != rows:
                    gradient = gradient.view(rows, -1, gradient.shape[1]).sum(1)
                self.formed[name] = self.formed[name] + gradient if name in self.formed else gradient

    def takes_several(self, given: Tensor) -> bool:
        """Whether ``given`` [B, ...], received row by row, has a batch dimension of the layer's own after the first."""
        return False

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        """Per-sample gradients [B, values] by parameter name."""
        raise AssertionError("every subclass forms its own gradients")

    def gradients(self) -> dict[str, Tensor]:
        formed, self.formed = self.formed, {}
        return formed

    def squared_norms(self) -> Tensor:
        first, *others = (row_norms(gradient).square() for gradient in self.formed.values())
        for other in others:
            first += other
        return first

    @full_products
    def write_clipped_sum(self, clipping: Clipping, places: Places, *, by_rows: bool = False) -> None:
        clients = next(iter(places.values())).shape[0]
        for exact in clipping.regimes(places):
            for name, gradient in self.formed.items():
                place = places[name]
                if clients == 1 and not exact and place.is_contiguous():
                    torch.mv(clipping.kept(gradient).T, clipping.narrow, out=place.view(-1))
                    continue
                rows, factors = clipping.kept(gradient), clipping.factors if exact else clipping.narrow
                if by_rows:
                    rows, factors = rows.view(-1, clients, rows.shape[-1]).transpose(0, 1), factors.view(-1, clients).T
                else:
                    rows, factors = rows.view(clients, -1, rows.shape[-1]), factors.view(clients, -1)
                sums = exact_sums(factors, rows) if exact else steady_product(factors[:, None], rows)
                place.copy_(sums.view(place.shape))
        self.formed = {}


class ConvolutionRule(FormedRule, SumRule):
    """``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``: one grouped convolution, a group (or more) for each sample.

    With up to four input channels, as the first layer of an image network has, grouped kernels run at a third of their
    speed, and where filters are many and positions few, as in the last layers of a deep one, at a tenth. There the
    windows that the filters saw are laid out and multiplied with what arrived at the output.
    """

    def takes_several(self, given: Tensor) -> bool:
        layer = self.layer
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        return given.dim() == len(layer.kernel_size) + 3

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        layer, samples = self.layer, len(given)
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        formed = {"bias": back.flatten(2).sum(2)} if "bias" in self.trained else {}
        if "weight" not in self.trained:
            return formed
        given, padding = _padded(layer, given)
        if _few_channels(layer):
            windows = _windows(layer, F.pad(given, [side for size in reversed(padding) for side in (size, size)]))
            weight = steady_product(windows, back.flatten(2).mT).mT
            return {"weight": weight.reshape(samples, -1), **formed}
        if _few_positions(layer, back):
            windows = _windows(layer, F.pad(given, [side for size in reversed(padding) for side in (size, size)]))
            return {"weight": steady_product(back.flatten(2), windows.mT).flatten(1), **formed}
        shape = (samples * layer.out_channels, *layer.weight.shape[1:])
        _, weight, _ = torch.ops.aten.convolution_backward(
            back.reshape(1, samples * back.shape[1], *back.shape[2:]),
            given.reshape(1, samples * given.shape[1], *given.shape[2:]),
            given.new_empty(shape),  # only its shape matters for the gradient of the weight
            None,
            layer.stride,
            padding,
            layer.dilation,
            False,
            [0] * len(layer.kernel_size),
            samples * layer.groups,
            [False, True, False],
        )
        return {"weight": weight.reshape(samples, -1), **formed}

    def _weight_sum(self, given: Tensor, back: Tensor, padding: tuple[int, ...]) -> Tensor:
        layer = self.layer
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        zero, only_weight = [0] * len(layer.kernel_size), [False, True, False]
        settings = (layer.stride, padding, layer.dilation, False, zero, layer.groups, only_weight)
        weight: Tensor = torch.ops.aten.convolution_backward(back, given, layer.weight, None, *settings)[1]
        return weight

    def write_sum(self, calls: Calls, places: Places) -> None:
        layer = self.layer
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        sums: dict[str, Tensor] = {}
        for given, back in calls:
            given, padding = _padded(layer, given)
            if "weight" in places:
                weight = self._weight_sum(given, back, padding)
                sums["weight"] = sums["weight"] + weight if "weight" in sums else weight
            if "bias" in places:
                bias = back.sum([0, *range(2, back.dim())])  # the kernel's own takes several times as long
                sums["bias"] = sums["bias"] + bias if "bias" in sums else bias
        for name, total in sums.items():
            places[name][0].copy_(total)


class WindowsRule(FormedRule):
    """A convolution that shows windows [B, positions, n] and backs [B, positions, outputs]: a product for each sample.

    The gradient of its weight is [n, outputs], and so is the place of its sum.
    """

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        formed = {"weight": sums_over_rows(given, back, steady=True).flatten(1)}
        return {**formed, "bias": back.sum(1)} if "bias" in self.trained else formed


class OutputsFirstRule(WindowsRule):
    """The same, but the gradient of the weight is [outputs, n], as the layer keeps it."""

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        formed = {"weight": torch.bmm(back.mT, given).flatten(1)}
        return {**formed, "bias": back.sum(1)} if "bias" in self.trained else formed


def _padded(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, given: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded if the kernel cannot do it, and the padding that is left to the kernel."""
    if not isinstance(layer.padding, str) and layer.padding_mode == "zeros":
        return given, layer.padding
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(given, layer._reversed_padding_repeated_twice, mode=mode), (0,) * len(layer.kernel_size)


def _few_channels(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    """Whether laying out the windows is faster than a grouped convolution and takes at most five times the output."""
    values = layer.in_channels * math.prod(layer.kernel_size)
    return layer.groups == 1 and layer.in_channels <= 4 and values <= 5 * layer.out_channels


def _few_positions(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, back: Tensor) -> bool:
    """Whether the windows are at most a quarter as large as the gradients, so that laying them out costs little.

    On an AMD EPYC ten samples of 4 × 4 positions, 256 to 256 channels, then take 5 ms instead of 9 to 30.
    """
    return layer.groups == 1 and 4 * math.prod(back.shape[2:]) <= layer.out_channels


def _windows(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, padded: Tensor) -> Tensor:
    """What each filter value saw at each output position [B, C·kernel, positions], from ``padded`` [B, C, ...]."""
    for axis, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        padded = padded.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    axes = len(layer.kernel_size)
    windows = padded.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    return windows.flatten(2 + axes).flatten(1, 1 + axes)


class GroupNormRule(FormedRule):
    """``nn.GroupNorm`` on [B, C, ...]."""

    def takes_several(self, given: Tensor) -> bool:
        return True

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        layer = self.layer
        assert isinstance(layer, nn.GroupNorm)
        normalised = F.group_norm(given, layer.num_groups, eps=layer.eps)
        joined = (len(given), given.shape[1], -1)
        formed = {"weight": (back * normalised).reshape(joined).sum(2), "bias": back.reshape(joined).sum(2)}
        return {name: formed[name] for name in self.trained}


class LayerNormRule(FormedRule):
    """``nn.LayerNorm`` on [B, ..., normalised shape]."""

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        layer = self.layer
        assert isinstance(layer, nn.LayerNorm)
        normalised = F.layer_norm(given, layer.normalized_shape, eps=layer.eps)
        values = math.prod(layer.normalized_shape)
        joined = (len(given), -1, values)
        formed = {"weight": (back * normalised).reshape(joined).sum(1), "bias": back.reshape(joined).sum(1)}
        return {name: formed[name] for name in self.trained}
