"""Steps of residual networks: group normalisation, and branches that meet again in a sum.

A branch is two steps of one sequence. :class:`Fork` keeps what it passes on, and :class:`Join` adds it, by the block's
shortcut, to what the steps between them made of it; on the way back :class:`Join` keeps what arrived at the sum, and
:class:`Fork` adds what the shortcut makes of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.models.layouts import INNERMOST
from privfl.models.residual import BasicBlock, Subsample


@dataclass
class Standardised:
    """What normalising leaves.

    Args:
        given: [B, C, ...], laid out without gaps.
        mean: of each group, [B, groups].
        inverse: one over the deviation of each group, likewise.
        formed: what each sample gives the parameters, by name, once it is known; see :meth:`Normalised.backward`.
    """

    given: Tensor
    mean: Tensor
    inverse: Tensor
    formed: dict[str, Tensor] | None = None


class Normalised:
    """``nn.GroupNorm`` on [B, C, ...]."""

    def __init__(self, layer: nn.GroupNorm) -> None:
        self.layer = layer

    def _sizes(self, given: Tensor) -> tuple[int, int, int, int]:
        rows, channels = given.shape[:2]
        return rows, channels, given[0, 0].numel(), self.layer.num_groups

    def forward(self, given: Tensor) -> tuple[Tensor, Standardised]:
        layer, given = self.layer, _dense(given, given)
        output, mean, inverse = torch.native_group_norm(given, layer.weight, layer.bias, *self._sizes(given), layer.eps)
        return output, Standardised(given, mean, inverse)

    def _backward(self, back: Tensor, kept: Standardised, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        given = kept.given
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_group_norm_backward(
            _dense(back, given), given, kept.mean, kept.inverse, self.layer.weight, *self._sizes(given), wanted
        )
        return found

    def backward(self, back: Tensor, kept: Standardised) -> Tensor:
        """The gradient at the input; on the way, where it costs nothing, what each sample gives the parameters.

        To the kernel the channels of all samples are those of one, whose parameters it keeps apart.
        """
        given, (rows, channels, values, groups) = kept.given, self._sizes(kept.given)
        if not given.is_contiguous():
            return self._backward(back, kept, [True, False, False])[0]
        found, weight, bias = torch.ops.aten.native_group_norm_backward(
            back.reshape(1, -1, values),
            given.view(1, -1, values),
            kept.mean.view(1, -1),
            kept.inverse.view(1, -1),
            self.layer.weight.repeat(rows),
            1,
            rows * channels,
            values,
            rows * groups,
            [True, True, True],
        )
        kept.formed = {"weight": weight.view(rows, channels), "bias": bias.view(rows, channels)}
        gradient: Tensor = found.view(given.shape)
        return gradient

    def write(self, back: Tensor, kept: Standardised, places: dict[str, Tensor]) -> None:
        _, weight, bias = self._backward(back, kept, [True, True, True])
        places["weight"].copy_(weight)
        places["bias"].copy_(bias)

    def descend(self, back: Tensor, kept: Standardised, rate: float) -> None:
        _, weight, bias = self._backward(back, kept, [True, True, True])
        self.layer.weight.sub_(weight, alpha=rate)
        self.layer.bias.sub_(bias, alpha=rate)


class Fork:
    """Where a block begins; keeps what it is given until the block's :class:`Join`."""

    def __init__(self) -> None:
        self.given: Tensor | None = None
        self.joined: Join | None = None

    def forward(self, given: Tensor) -> tuple[Tensor, None]:
        self.given = given
        return given, None

    def backward(self, back: Tensor, kept: None) -> Tensor:
        assert self.joined is not None
        return self.joined.add_shortcut_gradient_(back)


class Join:
    """Where a block's shortcut meets the rest of it."""

    def __init__(self, fork: Fork, shortcut: Subsample | None) -> None:
        self.fork, self.shortcut = fork, shortcut
        self.arrived: Tensor | None = None
        fork.joined = self

    def forward(self, given: Tensor) -> tuple[Tensor, None]:
        begun, self.fork.given = self.fork.given, None
        assert begun is not None
        if self.shortcut is None:
            return given.add_(begun), None  # what a normalisation gave is nobody else's
        given[:, : begun.shape[1]].add_(self._chosen(begun))
        return given, None

    def backward(self, back: Tensor, kept: None) -> Tensor:
        self.arrived = back
        return back

    def add_shortcut_gradient_(self, back: Tensor) -> Tensor:
        """Add to ``back``, a block's gradient at its input without its shortcut, what comes by that; in place."""
        arrived, self.arrived = self.arrived, None
        assert arrived is not None
        if self.shortcut is None:
            return back.add_(arrived)
        self._chosen(back).add_(arrived[:, : back.shape[1]])
        return back

    def _chosen(self, values: Tensor) -> Tensor:
        """The positions of ``values`` that the shortcut takes."""
        assert self.shortcut is not None
        return values[(slice(None), slice(None), *[slice(None, None, self.shortcut.stride)] * (values.dim() - 2))]


def _dense(values: Tensor, like: Tensor) -> Tensor:
    """``values`` [B, C, ...] laid out as ``like``, without gaps: the kernels of normalisation look at sizes alone."""
    innermost = like.dim() == 4 and not like.is_contiguous() and like.is_contiguous(memory_format=INNERMOST)
    return values.contiguous(memory_format=INNERMOST if innermost else torch.contiguous_format)


def parts_of(block: BasicBlock) -> list[Any] | None:
    """The layers and steps of ``block`` in order; ``None`` if it has other ones, or projects in its shortcut."""
    shortcut, inner = block.shortcut, (block.conv1, block.norm1, block.conv2, block.norm2)
    plain = type(shortcut) is nn.Identity
    if block.activation is not F.relu or block.linear_sum or not (plain or type(shortcut) is Subsample):
        return None
    if tuple(map(type, inner)) != (nn.Conv2d, nn.GroupNorm) * 2:
        return None
    fork = Fork()
    join = Join(fork, shortcut if isinstance(shortcut, Subsample) else None)
    return [fork, block.conv1, block.norm1, nn.ReLU(), block.conv2, block.norm2, join, nn.ReLU()]
