"""The layers of a plain sequence, one step each: forward, back to the input, and to the layer's own parameters."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.engine import narrow_relu, pooling
from privfl.engine.dropout import StreamDropout
from privfl.models.layouts import INNERMOST, images_relaid
from privfl.products import FEW, descend_, input_gradient, outputs, write_weight_gradient


class Step(Protocol):
    """A layer between two others. ``kept`` is what the forward pass leaves for the backward pass."""

    def forward(self, given: Tensor) -> tuple[Tensor, Any]:
        """The output for ``given`` [B, ...], and ``kept``."""

    def backward(self, back: Tensor, kept: Any) -> Tensor:
        """The gradient at the input from ``back``, that at the output, which may be overwritten."""


class Received(NamedTuple):
    """What a layer computed with: what it was ``given``, and its ``weight``; and the type in which the former came."""

    given: Tensor
    weight: Tensor
    dtype: torch.dtype


def cast_to(dtype: torch.dtype, values: Tensor) -> Tensor:
    """``values`` in ``dtype``; where they are in it PyTorch is not called, for whose calls workers queue up."""
    return values if values.dtype == dtype else values.to(dtype)


class Linear:
    """``nn.Linear`` on [B, in]."""

    def __init__(self, layer: nn.Linear, *, steady: bool = False, narrow: bool = False) -> None:
        """``steady``: the product has one form for all numbers of rows; ``narrow``: that of many rows is in bfloat16.

        With few rows the time goes into reading the weight, and to read it once more in order to cast it saves none.
        What a weight gets is a product in float32, be it of numbers in bfloat16.
        """
        self.layer, self.steady, self.narrow = layer, steady, narrow

    def forward(self, given: Tensor) -> tuple[Tensor, Received]:
        taken = torch.bfloat16 if self.narrow and given.shape[0] > FEW else torch.float32
        kept = Received(cast_to(taken, given), cast_to(taken, self.layer.weight), given.dtype)
        bias = None if self.layer.bias is None else cast_to(taken, self.layer.bias)
        return outputs(kept.given, kept.weight, bias, steady=self.steady), kept

    def backward(self, back: Tensor, kept: Received) -> Tensor:
        found = input_gradient(cast_to(kept.weight.dtype, back), kept.weight, steady=self.steady)
        return cast_to(kept.dtype, found)

    def write(self, back: Tensor, kept: Received, places: dict[str, Tensor]) -> None:
        back = cast_to(torch.float32, back)
        write_weight_gradient(back, cast_to(torch.float32, kept.given), places["weight"])
        if "bias" in places:
            torch.sum(back, 0, out=places["bias"])

    def descend(self, back: Tensor, kept: Received, rate: float) -> None:
        back = cast_to(torch.float32, back)
        descend_(self.layer.weight, back, cast_to(torch.float32, kept.given), rate)
        if self.layer.bias is not None:
            self.layer.bias.sub_(back.sum(0), alpha=rate)


def padding_of(layer: nn.Conv2d) -> list[int] | None:
    """Rows above and below, and columns beside, that ``layer`` pads with; ``None`` where the sides differ."""
    if not isinstance(layer.padding, str):
        return list(layer.padding)
    if layer.padding == "valid":
        return [0, 0]
    both = [apart * (size - 1) for apart, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    return None if any(one % 2 for one in both) else [one // 2 for one in both]


class Convolution:
    """``nn.Conv2d`` whose padding is of zeros."""

    def __init__(self, layer: nn.Conv2d, *, narrow: bool = False) -> None:
        """``narrow``: in bfloat16."""
        self.layer, self.narrow = layer, narrow
        self.dtype = torch.bfloat16 if narrow else torch.float32
        padding = padding_of(layer)
        assert padding is not None
        self.window = (list(layer.stride), padding, list(layer.dilation))
        self.bias = None if layer.bias is None else [layer.out_channels]

    def forward(self, given: Tensor) -> tuple[Tensor, Received]:
        layer = self.layer
        kept = Received(cast_to(self.dtype, given), cast_to(self.dtype, layer.weight), given.dtype)
        bias = None if layer.bias is None else cast_to(self.dtype, layer.bias)
        return torch.conv2d(kept.given, kept.weight, bias, *self.window, layer.groups), kept

    def _backward(self, back: Tensor, kept: Received, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        stride, padding, dilation = self.window
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            cast_to(self.dtype, back),
            kept.given,
            kept.weight,
            self.bias,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            self.layer.groups,
            wanted,
        )
        return found

    def backward(self, back: Tensor, kept: Received) -> Tensor:
        return cast_to(kept.dtype, self._backward(back, kept, [True, False, False])[0])

    def _sums(self, back: Tensor, kept: Received) -> tuple[Tensor, Tensor | None]:
        """What the weight and the bias get."""
        innermost = back.is_contiguous(memory_format=INNERMOST)
        if self.bias is None or not innermost:
            _, weight, bias = self._backward(back, kept, [False, True, self.bias is not None])
            return weight, bias if self.bias is not None else None
        _, weight, _ = self._backward(back, kept, [False, True, False])  # oneDNN's own sum takes twice as long
        return weight, back.permute(0, 2, 3, 1).reshape(-1, back.shape[1]).sum(0)

    def write(self, back: Tensor, kept: Received, places: dict[str, Tensor]) -> None:
        weight, bias = self._sums(back, kept)
        places["weight"].copy_(weight)
        if bias is not None:
            places["bias"].copy_(bias)

    def descend(self, back: Tensor, kept: Received, rate: float) -> None:
        weight, bias = self._sums(back, kept)
        self.layer.weight.sub_(weight, alpha=rate)
        if bias is not None and self.layer.bias is not None:
            self.layer.bias.sub_(bias, alpha=rate)


class Rectified:
    """``nn.ReLU``."""

    fresh = False
    """Whether nobody else holds what this layer is given, so that it may be overwritten."""

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        if self.fresh and narrow_relu.rectify_(given):
            return given, given
        output = given.clamp_min_(0) if self.fresh else given.clamp_min(0)
        return output, output

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        if narrow_relu.stop_(back, kept):
            return back
        found: Tensor = torch.ops.aten.threshold_backward.grad_input(back, kept, 0, grad_input=back)
        return found


class Leaking:
    """``nn.LeakyReLU`` whose slope is positive, so that the sign of what it gives is that of what it was given."""

    fresh = False
    """As of :class:`Rectified`."""

    def __init__(self, layer: nn.LeakyReLU) -> None:
        self.slope = layer.negative_slope

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        output = F.leaky_relu(given, self.slope, inplace=self.fresh)
        return output, output

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.leaky_relu_backward.grad_input(back, kept, self.slope, True, grad_input=back)
        return found


class Tanh:
    """``nn.Tanh``."""

    fresh = False
    """As of :class:`Rectified`."""

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        output = given.tanh_() if self.fresh else given.tanh()
        return output, output

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.tanh_backward.grad_input(back, kept, grad_input=back)
        return found


class Pooled:
    """``nn.MaxPool2d``, and the ReLU behind it where ``rectified``."""

    rectified = False

    def __init__(self, layer: nn.MaxPool2d) -> None:
        stride = layer.kernel_size if layer.stride is None else layer.stride
        window = (layer.kernel_size, stride, layer.padding, layer.dilation)
        self.settings = (*([one] * 2 if isinstance(one, int) else list(one) for one in window), layer.ceil_mode)
        self.by_fours = self.settings == ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def forward(self, given: Tensor) -> tuple[Tensor, pooling.Places | tuple[Tensor, Tensor, Tensor]]:
        quick = pooling.largest(given, rectified=self.rectified) if self.by_fours else None
        if quick is not None:
            return quick
        pooled, places = torch.ops.aten.max_pool2d_with_indices(given, *self.settings)
        if self.rectified:
            pooled.masked_fill_(pooled <= 0, 0)
        return pooled, (given, places, pooled)

    def backward(self, back: Tensor, kept: pooling.Places | tuple[Tensor, Tensor, Tensor]) -> Tensor:
        if isinstance(kept, pooling.Places):
            return pooling.spread(back, kept)
        given, places, pooled = kept
        if self.rectified:
            back = torch.ops.aten.threshold_backward(back, pooled, 0)
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            laid_as(back, given), given, *self.settings, places
        )
        return found


class Dropped:
    """Drop-out with the masks of the engine; what it hands on is in float32."""

    def __init__(self, layer: StreamDropout) -> None:
        self.layer = layer

    def forward(self, given: Tensor) -> tuple[Tensor, tuple[Tensor, torch.dtype] | None]:
        if not self.layer.training or self.layer.probability == 0:
            return given, None
        wide = cast_to(torch.float32, given)
        factors = laid_as(self.layer.factors(wide), given)
        return wide * factors, (factors, given.dtype)

    def backward(self, back: Tensor, kept: tuple[Tensor, torch.dtype] | None) -> Tensor:
        if kept is None:
            return back
        factors, dtype = kept
        return cast_to(dtype, cast_to(torch.float32, back).mul_(laid_as(factors, back)))


class Flattened:
    """``nn.Flatten`` of all but the rows."""

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        return given.flatten(1), given

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        return laid_as(back.reshape(kept.shape), kept)


class Relaid:
    """Where images are laid out with their channels innermost."""

    def forward(self, given: Tensor) -> tuple[Tensor, None]:
        return images_relaid(given), None

    def backward(self, back: Tensor, kept: None) -> Tensor:
        return back


def laid_as(values: Tensor, like: Tensor) -> Tensor:
    """``values`` in the memory format of ``like``, both [B, C, H, W] or both anything else."""
    innermost = like.dim() == 4 and like.is_contiguous(memory_format=INNERMOST)
    return values.contiguous(memory_format=INNERMOST) if innermost else values.contiguous()
