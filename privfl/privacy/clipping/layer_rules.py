"""Per-sample gradient rules, one per layer type: norms first, then the clipped sum.

A rule receives, for every call of its layer in one forward pass, the layer's input and the gradient that arrived at its
output, both with the samples along the first dimension. A layer that was called several times (a recurrent cell) is
one layer whose calls are joined along a time dimension. Samples of several clients lie one client after the other,
equally many for each, or (``by_rows``, for rules that form their gradients) the first samples of all clients before the
second ones; the places that sums are written to have a first dimension of clients, which is 1 in the loop.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Calls = list[tuple[Tensor, Tensor]]
Places = dict[str, Tensor]
"""Where the sums go: ``[clients, *shape]`` for each trained parameter of a layer, by its name."""


class Rule(Protocol):
    """What a layer contributes to the norms and to the clipped sum of per-sample gradients."""

    takes_rows_first: ClassVar[bool]

    def receive(self, calls: Calls) -> None:
        """Take the (input, gradient of the output) pairs of this pass."""

    def squared_norms(self, samples: int) -> Tensor:
        """Squared L2 norm [B] of each sample's gradient of this layer's parameters."""

    def write_clipped_sum(
        self, factors: Tensor, finite: Tensor | None, places: Places, *, by_rows: bool = False
    ) -> None:
        """Write each client's Σ factors_i·gradient_i into ``places``; samples not in ``finite`` [B] count as zero."""


class SumRule:
    """A rule that can write the plain sum of its layer's gradients for less than autograd."""

    def write_sum(self, calls: Calls, places: Places) -> None:
        """Write the sum over samples and calls into ``places``, which have one client."""
        raise AssertionError("every subclass writes its own sums")


def factors_for(squares: Tensor, max_grad_norm: float) -> tuple[Tensor, Tensor | None]:
    """Clipping factors [B] from squared norms [B], and which samples are finite (``None`` if all are).

    A norm whose square overflows counts as not finite.
    """
    finite = squares.isfinite()
    if math.isinf(max_grad_norm):
        factors = torch.ones_like(squares)
    else:
        factors = (max_grad_norm * (1 - 1e-5) / squares.sqrt().clamp_min(1e-30)).clamp(max=1.0)
    return (factors, None) if bool(finite.all()) else (factors.where(finite, 0), finite)


def _keep(values: Tensor, finite: Tensor | None) -> Tensor:
    """``values`` [B, ...] with the rows outside ``finite`` set to zero (a product with 0 would keep NaN)."""
    return values if finite is None else values.where(finite.view(-1, *[1] * (values.dim() - 1)), 0)


class LinearRule(SumRule):
    """``nn.Linear`` on [B, in] or [B, ..., in]; no per-sample gradient is formed when norms come cheaper without."""

    takes_rows_first: ClassVar[bool] = False

    def __init__(self, layer: nn.Module, trained: frozenset[str]) -> None:
        self.trained = trained

    def receive(self, calls: Calls) -> None:
        if len(calls) == 1 and calls[0][0].dim() == 2:
            self.inputs, self.backs = calls[0]
            return
        flat = [(a.reshape(len(a), -1, a.shape[-1]), g.reshape(len(g), -1, g.shape[-1])) for a, g in calls]
        self.inputs, self.backs = (torch.cat(part, dim=1) for part in zip(*flat, strict=True))

    def squared_norms(self, samples: int) -> Tensor:
        a, g = self.inputs, self.backs
        if a.dim() == 2:
            squares = a.square().sum(1) if "weight" in self.trained else 0
            return (squares + 1 if "bias" in self.trained else squares) * g.square().sum(1)
        steps, width = a.shape[1], a.shape[2] * g.shape[2]
        if "weight" not in self.trained:
            squares = a.new_zeros(len(a))
        elif steps * (a.shape[2] + g.shape[2]) < width:  # Gram matrices over time are smaller than the gradients
            squares = (torch.bmm(a, a.mT) * torch.bmm(g, g.mT)).sum((1, 2)).clamp_min(0)
        else:
            squares = torch.bmm(g.mT, a).square().sum((1, 2))
        return squares + g.sum(1).square().sum(1) if "bias" in self.trained else squares

    def write_clipped_sum(
        self, factors: Tensor, finite: Tensor | None, places: Places, *, by_rows: bool = False
    ) -> None:
        clients = len(next(iter(places.values())))
        a = _keep(self.inputs, finite).flatten(0, -2)
        g = (_keep(self.backs, finite) * factors.view(-1, *[1] * (self.backs.dim() - 1))).flatten(0, -2)
        if "weight" in places and clients == 1:
            torch.mm(g.T, a, out=places["weight"][0])
        elif "weight" in places:
            places["weight"].copy_(torch.bmm(g.view(clients, -1, g.shape[-1]).mT, a.reshape(clients, -1, a.shape[-1])))
        if "bias" in places:
            torch.sum(g.view(clients, -1, g.shape[-1]), 1, out=places["bias"])
        del self.inputs, self.backs

    def write_sum(self, calls: Calls, places: Places) -> None:
        for place in places.values():
            if len(calls) != 1:
                place.zero_()
        for given, back in calls:
            a, g = given.reshape(-1, given.shape[-1]), back.reshape(-1, back.shape[-1])
            if "weight" in places and len(calls) == 1:
                torch.mm(g.T, a, out=places["weight"][0])
            elif "weight" in places:
                places["weight"][0].addmm_(g.T, a)
            if "bias" in places and len(calls) == 1:
                torch.sum(g, 0, out=places["bias"][0])
            elif "bias" in places:
                places["bias"][0].add_(g.sum(0))


class _FormedRule:
    """A rule that forms its per-sample gradients: cheap where the layer has few parameters."""

    takes_rows_first: ClassVar[bool] = True

    def __init__(self, layer: nn.Module, trained: frozenset[str]) -> None:
        self.layer, self.trained = layer, trained
        self.formed: dict[str, Tensor] = {}

    def receive(self, calls: Calls) -> None:
        self.formed = {}
        for given, back in calls:
            for name, gradient in self.form(given, back).items():
                self.formed[name] = self.formed[name] + gradient if name in self.formed else gradient

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        """Per-sample gradients [B, values] by parameter name."""
        raise AssertionError("every subclass forms its own gradients")

    def squared_norms(self, samples: int) -> Tensor:
        return torch.stack([gradient.square().sum(1) for gradient in self.formed.values()]).sum(0)

    def write_clipped_sum(
        self, factors: Tensor, finite: Tensor | None, places: Places, *, by_rows: bool = False
    ) -> None:
        clients = len(next(iter(places.values())))
        for name, gradient in self.formed.items():
            kept = _keep(gradient, finite)
            if clients == 1:
                torch.mv(kept.T, factors, out=places[name].view(-1))
            elif by_rows:
                rows = kept.view(-1, clients, kept.shape[-1]).transpose(0, 1)
                sums = torch.bmm(factors.view(-1, clients).T[:, None], rows)
                places[name].copy_(sums.view(places[name].shape))
            else:
                sums = torch.bmm(factors.view(clients, 1, -1), kept.view(clients, -1, kept.shape[-1]))
                places[name].copy_(sums.view(places[name].shape))
        self.formed = {}


class ConvolutionRule(_FormedRule, SumRule):
    """``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``: one grouped convolution, a group (or more) for each sample.

    With up to four input channels, as the first layer of an image network has, grouped kernels run at a third of their
    speed; there the windows that the filters saw are laid out and multiplied with what arrived at the output.
    """

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        layer, samples = self.layer, len(given)
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        formed = {"bias": back.flatten(2).sum(2)} if "bias" in self.trained else {}
        if "weight" not in self.trained:
            return formed
        given, padding = _padded(layer, given)
        if _few_channels(layer):
            windows = _windows(layer, F.pad(given, [side for size in reversed(padding) for side in (size, size)]))
            weight = torch.bmm(windows, back.flatten(2).mT).mT
            return {"weight": weight.reshape(samples, -1), **formed}
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


def _windows(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, padded: Tensor) -> Tensor:
    """What each filter value saw at each output position [B, C·kernel, positions], from ``padded`` [B, C, ...]."""
    for axis, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        padded = padded.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    axes = len(layer.kernel_size)
    windows = padded.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    return windows.flatten(2 + axes).flatten(1, 1 + axes)


class GroupNormRule(_FormedRule):
    """``nn.GroupNorm`` on [B, C, ...]."""

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        layer = self.layer
        assert isinstance(layer, nn.GroupNorm)
        normalised = F.group_norm(given, layer.num_groups, eps=layer.eps)
        joined = (len(given), given.shape[1], -1)
        formed = {"weight": (back * normalised).reshape(joined).sum(2), "bias": back.reshape(joined).sum(2)}
        return {name: formed[name] for name in self.trained}


class LayerNormRule(_FormedRule):
    """``nn.LayerNorm`` on [B, ..., normalised shape]."""

    def form(self, given: Tensor, back: Tensor) -> dict[str, Tensor]:
        layer = self.layer
        assert isinstance(layer, nn.LayerNorm)
        normalised = F.layer_norm(given, layer.normalized_shape, eps=layer.eps)
        values = math.prod(layer.normalized_shape)
        joined = (len(given), -1, values)
        formed = {"weight": (back * normalised).reshape(joined).sum(1), "bias": back.reshape(joined).sum(1)}
        return {name: formed[name] for name in self.trained}


class EmbeddingRule:
    """``nn.Embedding`` on token ids [B, ...]: a sample's gradient rows of equal tokens add up before the norm."""

    takes_rows_first: ClassVar[bool] = False

    def __init__(self, layer: nn.Module, trained: frozenset[str]) -> None:
        assert isinstance(layer, nn.Embedding)
        self.padding = layer.padding_idx

    def receive(self, calls: Calls) -> None:
        self.calls = [(ids.reshape(len(ids), -1), back.reshape(len(ids), -1, back.shape[-1])) for ids, back in calls]
        if self.padding is not None:
            self.calls = [(ids, back.masked_fill((ids == self.padding)[..., None], 0)) for ids, back in self.calls]

    def squared_norms(self, samples: int) -> Tensor:
        self.ids, self.backs = (torch.cat(part, dim=1) for part in zip(*self.calls, strict=True))
        same = self.ids[:, :, None] == self.ids[:, None, :]
        return (torch.bmm(self.backs, self.backs.mT) * same).sum((1, 2)).clamp_min(0)

    def write_clipped_sum(
        self, factors: Tensor, finite: Tensor | None, places: Places, *, by_rows: bool = False
    ) -> None:
        rows = _keep(self.backs, finite) * factors[:, None, None]
        place = places["weight"].zero_()
        ids = self.ids.view(len(place), -1)
        place.scatter_add_(1, ids[..., None].expand(-1, -1, rows.shape[-1]), rows.reshape(*ids.shape, -1))
        del self.calls, self.ids, self.backs


_RULES: tuple[tuple[type[nn.Module], type[LinearRule] | type[_FormedRule] | type[EmbeddingRule]], ...] = (
    (nn.Linear, LinearRule),
    (nn.Conv1d, ConvolutionRule),
    (nn.Conv2d, ConvolutionRule),
    (nn.Conv3d, ConvolutionRule),
    (nn.GroupNorm, GroupNormRule),
    (nn.LayerNorm, LayerNormRule),
    (nn.Embedding, EmbeddingRule),
)


def rule_for(layer: nn.Module) -> type[LinearRule] | type[_FormedRule] | type[EmbeddingRule] | None:
    """The rule of ``layer``'s type, ``None`` for a layer whose per-sample gradients need ``vmap``."""
    return next((rule for kind, rule in _RULES if isinstance(layer, kind)), None)
