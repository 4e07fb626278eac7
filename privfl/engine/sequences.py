"""Gradients without autograd, for networks that are a plain sequence of known layers: of sums, and clipped by rows.

What autograd spends a step on besides the layers' kernels (its graph, a gradient that is written and read again, max
pooling behind a ReLU that is four times as large) is a third of a step of a small CNN. A network counts as known only
if every part of it is of one of the exact types below, nothing is hooked or replaced, and its loss is privfl's cross-
entropy; and its gradients are compared with autograd's at the start of every run, on the run's own network. Under
DP-SGD the sequence only says what every layer received and what arrived at its output
(:class:`~privfl.privacy.clipping.rule.Arrivals`): norms, factors and sums are the clipper's, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.data.mapped import Rows
from privfl.engine.dropout import StreamDropout
from privfl.engine.layouts import INNERMOST, InnermostPool, images_relaid, relays
from privfl.federation.losses import cross_entropy
from privfl.models.base import Network
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.known import known_ranks
from privfl.privacy.loss import Loss

FEW = 32
"""Rows up to which a wide layer's product is quicker with the weight in front."""
WIDE = 1 << 16
"""Weights from which on a layer is wide."""


class Step(Protocol):
    """A layer between two others. ``kept`` is what the forward pass leaves for the backward pass."""

    def forward(self, given: Tensor) -> tuple[Tensor, Any]:
        """The output for ``given`` [B, ...], and ``kept``."""

    def backward(self, back: Tensor, kept: Any) -> Tensor:
        """The gradient at the input from ``back``, that at the output."""


class Linear:
    """``nn.Linear`` on [B, in]."""

    def __init__(self, layer: nn.Linear, few: int) -> None:
        """``few``: rows up to which a wide weight comes first in the product."""
        self.layer, self.few = layer, few if layer.weight.numel() >= WIDE else 0

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.layer.weight, self.layer.bias
        if len(given) > self.few:
            return F.linear(given, weight, bias), given
        product = torch.mm(weight, given.T).T.contiguous()
        return product if bias is None else product.add_(bias), given

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        return torch.mm(back, self.layer.weight)

    def write(self, back: Tensor, kept: Tensor, places: dict[str, Tensor]) -> None:
        torch.mm(back.T, kept, out=places["weight"])
        if "bias" in places:
            torch.sum(back, 0, out=places["bias"])

    def descend(self, back: Tensor, kept: Tensor, rate: float) -> None:
        self.layer.weight.addmm_(back.T, kept, alpha=-rate)
        if self.layer.bias is not None:
            self.layer.bias.sub_(back.sum(0), alpha=rate)


class Convolution:
    """``nn.Conv2d`` whose padding is of zeros."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer
        assert not isinstance(layer.padding, str)
        self.window = (list(layer.stride), list(layer.padding), list(layer.dilation))
        self.bias = None if layer.bias is None else [layer.out_channels]

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layer
        return torch.conv2d(given, layer.weight, layer.bias, *self.window, layer.groups), given

    def _backward(self, back: Tensor, kept: Tensor, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        stride, padding, dilation = self.window
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            back,
            kept,
            self.layer.weight,
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

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        return self._backward(back, kept, [True, False, False])[0]

    def write(self, back: Tensor, kept: Tensor, places: dict[str, Tensor]) -> None:
        _, weight, bias = self._backward(back, kept, [False, True, self.bias is not None])
        places["weight"].copy_(weight)
        if self.bias is not None:
            places["bias"].copy_(bias)

    def descend(self, back: Tensor, kept: Tensor, rate: float) -> None:
        _, weight, bias = self._backward(back, kept, [False, True, self.bias is not None])
        self.layer.weight.sub_(weight, alpha=rate)
        if self.layer.bias is not None:
            self.layer.bias.sub_(bias, alpha=rate)


class Rectified:
    """``nn.ReLU``."""

    fresh = False
    """Whether nobody else holds what this layer is given, so that it may be overwritten."""

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        output = given.clamp_min_(0) if self.fresh else given.clamp_min(0)
        return output, output

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.threshold_backward(back, kept, 0)
        return found


class Pooled:
    """``nn.MaxPool2d``."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        stride = layer.kernel_size if layer.stride is None else layer.stride
        window = (layer.kernel_size, stride, layer.padding, layer.dilation)
        self.settings = (*([one] * 2 if isinstance(one, int) else list(one) for one in window), layer.ceil_mode)

    def forward(self, given: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pooled, places = torch.ops.aten.max_pool2d_with_indices(given, *self.settings)
        return pooled, (given, places)

    def backward(self, back: Tensor, kept: tuple[Tensor, Tensor]) -> Tensor:
        given, places = kept
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            _laid_as(back, given), given, *self.settings, places
        )
        return found


class Dropped:
    """Drop-out with the masks of the engine."""

    def __init__(self, layer: StreamDropout) -> None:
        self.layer = layer

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.layer.training or self.layer.probability == 0:
            return given, None
        factors = self.layer(torch.ones_like(given))
        return given * factors, factors

    def backward(self, back: Tensor, kept: Tensor | None) -> Tensor:
        return back if kept is None else back * _laid_as(kept, back)


class Flattened:
    """``nn.Flatten`` of all but the rows."""

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        return given.flatten(1), given

    def backward(self, back: Tensor, kept: Tensor) -> Tensor:
        return _laid_as(back.reshape(kept.shape), kept)


class _Relaid:
    def forward(self, given: Tensor) -> tuple[Tensor, None]:
        return images_relaid(given), None

    def backward(self, back: Tensor, kept: None) -> Tensor:
        return back


class Sequence:
    """The network in ``own`` as a sequence of steps, see :func:`sequence_of`."""

    def __init__(self, own: FlatNetwork, steps: list[Step]) -> None:
        self.own, self.steps = own, steps
        self.first = next(place for place, step in enumerate(steps) if isinstance(step, Linear | Convolution))
        views = dict(zip(map(id, own.parameters), own.gradient_views, strict=True))
        self._places: list[dict[str, Tensor]] = [
            {name: views[id(value)] for name, value in step.layer.named_parameters()}
            if isinstance(step, Linear | Convolution)
            else {}
            for step in steps
        ]

    def serves(self, loss: Loss) -> bool:
        """Whether the gradient of ``loss`` is what this computes."""
        return loss is cross_entropy

    def write_gradient(self, inputs: Tensor, targets: Tensor, divisor: float) -> None:
        """Write the gradient of the sum of cross-entropy over ``divisor`` into the network's gradient buffer.

        Args:
            inputs: [B, ...], B ≥ 1.
            targets: int64 [B].
        """
        for place, back, kept in self._backward(inputs, targets, divisor):
            step = self.steps[place]
            assert isinstance(step, Linear | Convolution)
            step.write(back, kept, self._places[place])

    def arrivals(self, inputs: Tensor, targets: Tensor) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
        """Every layer with parameters, from the last: its input, and the gradient of the sum of cross-entropy there.

        That gradient, at the layer's output, has the samples of ``inputs`` [B, ...] along its first dimension too.
        """
        for place, back, kept in self._backward(inputs, targets, 1.0):
            step = self.steps[place]
            assert isinstance(step, Linear | Convolution)
            yield step.layer, kept, back

    def descend(self, inputs: Tensor, targets: Tensor, divisor: float, rate: float) -> None:
        """Subtract ``rate`` times that gradient from the network's parameters, of large ones without writing it."""
        if self.own.layout.size < WIDE:
            self.write_gradient(inputs, targets, divisor)
            self.own.flat.sub_(self.own.gradient, alpha=rate)
            return
        for place, back, kept in self._backward(inputs, targets, divisor):
            step = self.steps[place]
            assert isinstance(step, Linear | Convolution)
            step.descend(back, kept, rate)

    def _backward(self, inputs: Tensor, targets: Tensor, divisor: float) -> Iterator[tuple[int, Tensor, Any]]:
        """Every layer from the last, with the gradient at its output; the one at its input is already taken."""
        kept: list[Any] = []
        values = inputs
        for step in self.steps:
            values, needed = step.forward(values)
            kept.append(needed)
        back = torch.softmax(values, 1)
        back[torch.arange(len(back)), targets] -= 1
        if divisor != 1:
            back.div_(divisor)
        for place in range(len(self.steps) - 1, self.first - 1, -1):
            step, arrived = self.steps[place], back
            if place > self.first:
                back = step.backward(arrived, kept[place])
            if self._places[place]:
                yield place, arrived, kept[place]


def sequence_of(
    own: FlatNetwork, loss: Loss, inputs: Rows, *, steady: bool = False, anywhere: bool = False
) -> Sequence | None:
    """The sequence that the network in ``own`` is, or ``None`` if it is none; ``inputs`` are the task's.

    ``steady``: rows are to be rounded alike in passes of many lengths, so products are formed one way in all of them.
    Its steps are for a CPU; ``anywhere``: only which they are is asked.
    """
    ranks = known_ranks(own.module)
    here = anywhere or own.flat.device.type == "cpu"
    if own.flat.dtype != torch.float32 or not here or loss is not cross_entropy:
        return None
    if (
        inputs.dtype != torch.float32
        or inputs.ndim not in ranks
        or not all(one.requires_grad for one in own.parameters)
    ):
        return None
    parts = _parts(own.module)
    steps = [] if parts is None else _steps(parts, 0 if steady else FEW)
    layers = [step.layer for step in steps or [] if isinstance(step, Linear | Convolution)]
    if not steps or len(layers) != len(set(map(id, layers))) or not isinstance(steps[-1], Linear):
        return None
    if sum(1 for layer in layers for _ in layer.parameters()) != len(own.parameters):  # one is shared
        return None
    return Sequence(own, steps)


def _parts(module: nn.Module) -> list[nn.Module | None] | None:
    """The layers of ``module`` in the order of its forward pass, ``None`` where images are laid out anew."""
    if type(module) is not nn.Sequential and type(module) is not Network:
        return [module]
    parts: list[nn.Module | None] = [None] if relays(module) else []
    for part in module._modules.values():
        inner = None if part is None else _parts(part)
        if inner is None:
            return None
        parts += inner
    return parts


def _steps(parts: list[nn.Module | None], few: int) -> list[Step] | None:
    """The steps that do what ``parts`` do, max pooling in front of ReLU; ``None`` where a part is not known."""
    steps: list[Step] = []
    for part in parts:
        step = _step(part, few)
        if step is None:
            return None
        if isinstance(step, Pooled) and steps and isinstance(steps[-1], Rectified):
            steps.insert(len(steps) - 1, step)  # they commute, and so do their gradients
        elif type(part) is not nn.Identity:
            steps.append(step)
    for place, step in enumerate(steps):
        if isinstance(step, Rectified):
            step.fresh = place > 0 and isinstance(steps[place - 1], Linear | Convolution | Pooled)
    return steps


def _step(part: Any, few: int) -> Step | None:
    kind = type(part)
    if part is None or kind is nn.Identity:
        return _Relaid()
    if kind is nn.Linear:
        return Linear(part, few)
    if kind is nn.Conv2d and part.padding_mode == "zeros" and not isinstance(part.padding, str):
        return Convolution(part)
    if kind is nn.ReLU:
        return Rectified()
    if kind is nn.MaxPool2d and not part.return_indices:
        return Pooled(part)
    if kind is InnermostPool:
        return Pooled(part.layer)
    if kind is StreamDropout:
        return Dropped(part)
    if kind is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
        return Flattened()
    return None


def _laid_as(values: Tensor, like: Tensor) -> Tensor:
    """``values`` in the memory format of ``like``, both [B, C, H, W] or both anything else."""
    innermost = like.dim() == 4 and like.is_contiguous(memory_format=INNERMOST)
    return values.contiguous(memory_format=INNERMOST) if innermost else values.contiguous()
