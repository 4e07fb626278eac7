"""Activations that go number by number, each with the kernel that autograd takes for its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_SELU = 1.6732632423543772, 1.0507009873554805
"""Slope below zero and scale of ``nn.SELU`` (Klambauer et al. 2017, appendix A.1)."""


@dataclass(frozen=True)
class Activated:
    """An activation between two other layers.

    Args:
        function: what the layer does, number by number.
        gradient: of ``(back, values)`` the gradient at the layer's input.
        of_output: whether those values are what the layer gave, or what it was given.
        rises: whether it never falls, so that the largest of several numbers stays the largest.
    """

    function: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    of_output: bool = False
    rises: bool = True

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The output for ``given``, and what the gradient needs."""
        output = self.function(given)
        return output, output if self.of_output else given

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        """The gradient at the input from ``back``, that at the output."""
        return self.gradient(back, kept)


def _log_softmax_gradient(back: Tensor, given: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten._log_softmax_backward_data(back, given, -1, torch.float32)
    return found


LOG_PROBABILITIES = Activated(
    lambda given: torch.log_softmax(given.float(), -1), _log_softmax_gradient, of_output=True, rises=False
)
"""``nn.LogSoftmax`` over the classes, [..., classes], in which many a model ends."""


def activated(layer: nn.Module) -> Activated | None:
    """The step that ``layer`` is, ``None`` for others than these; an activation in place is taken for the usual one."""
    make = _KNOWN.get(type(layer))
    return None if make is None else make(layer)


def _exponential(slope: float, scale: float = 1.0, width: float = 1.0) -> Activated:
    """``scale`` times x above zero and times ``slope`` (e^(x / width) − 1) below."""
    settings = (slope, scale, 1.0 / width)

    def gradient(back: Tensor, given: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.elu_backward(back, *settings, False, given)
        return found

    return Activated(lambda given: torch.ops.aten.elu(given, *settings), gradient, rises=slope >= 0)


def _bounded(least: float, most: float) -> Activated:
    return Activated(
        lambda given: torch.ops.aten.hardtanh(given, least, most),
        lambda back, given: torch.ops.aten.hardtanh_backward(back, given, least, most),
    )


def _gelu(layer: Any) -> Activated:
    form = layer.approximate
    return Activated(
        lambda given: torch.ops.aten.gelu(given, approximate=form),
        lambda back, given: torch.ops.aten.gelu_backward(back, given, approximate=form),
        rises=False,
    )


def _softplus(layer: Any) -> Activated:
    settings = (layer.beta, layer.threshold)
    return Activated(
        lambda given: torch.ops.aten.softplus(given, *settings),
        lambda back, given: torch.ops.aten.softplus_backward(back, given, *settings),
        rises=False,  # where it goes over into a line it falls by e^−threshold
    )


_KNOWN: dict[type[nn.Module], Callable[[Any], Activated]] = {
    nn.ELU: lambda layer: _exponential(layer.alpha),
    nn.SELU: lambda _: _exponential(*_SELU),
    nn.CELU: lambda layer: _exponential(layer.alpha, width=layer.alpha),
    nn.GELU: _gelu,
    nn.SiLU: lambda _: Activated(torch.ops.aten.silu, torch.ops.aten.silu_backward, rises=False),
    nn.Mish: lambda _: Activated(torch.ops.aten.mish, torch.ops.aten.mish_backward, rises=False),
    nn.Hardswish: lambda _: Activated(torch.ops.aten.hardswish, torch.ops.aten.hardswish_backward, rises=False),
    nn.Sigmoid: lambda _: Activated(torch.ops.aten.sigmoid, torch.ops.aten.sigmoid_backward, of_output=True),
    nn.Hardsigmoid: lambda _: Activated(torch.ops.aten.hardsigmoid, torch.ops.aten.hardsigmoid_backward),
    nn.Softplus: _softplus,
    nn.Hardtanh: lambda layer: _bounded(layer.min_val, layer.max_val),
    nn.ReLU6: lambda _: _bounded(0.0, 6.0),
}
