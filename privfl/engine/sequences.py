"""Gradients without autograd, for networks that are a plain sequence of known layers: of sums, and clipped by rows.

What autograd spends a step on besides the layers' kernels (its graph, a gradient that is written and read again, max
pooling behind a ReLU that is four times as large) is a third of a step of a small CNN. A network counts as known only
if every part of it is of one of the exact types below, nothing is hooked or replaced, and its loss is one of privfl's
that ask for logits only; and its gradients are compared with autograd's at the start of every run, on the run's own
network. Under DP-SGD the sequence only says what every layer received and what arrived at its output
(:class:`~privfl.privacy.clipping.rule.Arrivals`): norms, factors and sums are the clipper's, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from privfl.data.mapped import Rows
from privfl.engine.activations import LOG_PROBABILITIES, Activated, activated
from privfl.engine.averaging import Averaged, averaging
from privfl.engine.dropout import StreamDropout
from privfl.engine.flat_images import FlatImages, flat_images
from privfl.engine.own_forward import ROWS, own_sequence
from privfl.engine.pooled_convolution import PooledConvolution, joined
from privfl.engine.sequence_blocks import Fork, Join, Normalised, parts_of
from privfl.engine.sequence_steps import (
    Convolution,
    Dropped,
    Flattened,
    Leaking,
    Linear,
    Pooled,
    Rectified,
    Relaid,
    Step,
    Tanh,
    cast_to,
    padding_of,
)
from privfl.federation.losses import cross_entropy
from privfl.models.base import Network
from privfl.models.flat_network import FlatNetwork
from privfl.models.layouts import InnermostPool, relays
from privfl.models.residual import BasicBlock, GlobalAverage
from privfl.privacy.clipping.known import known_ranks
from privfl.privacy.clipping.rule import Calls, Formed
from privfl.privacy.loss import (
    BodyAndHead,
    Loss,
    asks_for_features,
    asks_for_logits,
    gradient_at_logits,
    gradients_at_features,
)
from privfl.products import WIDE

WITH_PARAMETERS = (Linear, Convolution, Normalised, PooledConvolution)
OVERWRITING = (Rectified, Leaking, Tanh)
"""Activations that need only what they gave, and may put it in the place of what they were given."""


class Sequence:
    """The network in ``own`` as a sequence of steps, see :func:`sequence_of`."""

    def __init__(self, own: FlatNetwork, steps: list[Step]) -> None:
        self.own, self.steps = own, steps
        self.first = next(place for place, step in enumerate(steps) if isinstance(step, WITH_PARAMETERS))
        views = dict(zip(map(id, own.parameters), own.gradient_views, strict=True))
        self._places: list[dict[str, Tensor]] = [
            {name: views[id(value)] for name, value in step.layer.named_parameters()}
            if isinstance(step, WITH_PARAMETERS)
            else {}
            for step in steps
        ]
        self._head = _head(own.module, steps)
        parts = set(own.module.modules())
        apart = [one for step in steps for one in (step.steps if isinstance(step, FlatImages) else [step])]
        self.functional_dropout = [one.layer for one in apart if isinstance(one, Dropped) and one.layer not in parts]
        """Layers in the place of functional drop-out, whose streams are to be set as those of the network's own."""

    def _in_mode(self) -> list[Step]:
        """The steps, in the mode that the network is in."""
        for layer in self.functional_dropout:
            layer.training = self.own.module.training
        return self.steps

    def serves(self, loss: Loss) -> bool:
        """Whether the gradient of ``loss`` is what this computes, plain or clipped."""
        return asks_for_logits(loss)

    def writes(self, loss: Loss) -> bool:
        """Whether :meth:`write_gradient` takes ``loss``."""
        return self.serves(loss) or (self._head is not None and asks_for_features(loss))

    def outputs(self, inputs: Tensor) -> Tensor:
        """The logits [B, classes] for ``inputs`` [B, ...], in the mode that the network is in."""
        for step in self._in_mode():
            inputs, _ = step.forward(inputs)
        return inputs

    def taken_apart(self) -> BodyAndHead:
        """The network's features, in the mode that it is in, and its head, if this writes losses of features."""
        assert self._head is not None
        return BodyAndHead(lambda inputs: self._forward(inputs, self._in_mode()[:-1])[0], self._head)

    def write_gradient(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float) -> None:
        """Write the gradient of the sum of ``loss`` over ``divisor`` into the network's gradient buffer.

        Args:
            loss: one that this writes; what a loss of features does behind them is autograd's.
            inputs: [B, ...], B ≥ 1.
            targets: [B, ...], of the task's kind.
            divisor: > 0.
        """
        way = self._backward if self.serves(loss) else self._from_features
        for place, back, kept in way(loss, inputs, targets, divisor):
            step = self.steps[place]
            assert isinstance(step, WITH_PARAMETERS)
            step.write(back, kept, self._places[place])

    def arrivals(self, loss: Loss, inputs: Tensor, targets: Tensor) -> Iterator[tuple[nn.Module, Calls | Formed]]:
        """Every layer with parameters, from the last: its input, and the gradient of the sum of ``loss`` there.

        That gradient, at the layer's output, has the samples of ``inputs`` [B, ...] along its first dimension too. Of a
        convolution that is one step with its pooling, and of normalisation, come the gradients for each sample, by
        parameter name.
        """
        for place, back, kept in self._backward(loss, inputs, targets, 1.0):
            step = self.steps[place]
            if isinstance(step, PooledConvolution):
                yield step.layer, step.formed(back, kept)
            elif isinstance(step, Normalised) and kept.formed is not None:
                yield step.layer, kept.formed
            else:
                assert isinstance(step, Linear | Convolution | Normalised)
                yield step.layer, [(kept.given, back)]

    def descend(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float, rate: float) -> None:
        """Subtract ``rate`` times that gradient from the network's parameters, of large ones without writing it."""
        if self.own.layout.size < WIDE:
            self.write_gradient(loss, inputs, targets, divisor)
            self.own.flat.sub_(self.own.gradient, alpha=rate)
            return
        for place, back, kept in self._backward(loss, inputs, targets, divisor):
            step = self.steps[place]
            assert isinstance(step, WITH_PARAMETERS)
            step.descend(back, kept, rate)

    def _backward(
        self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float
    ) -> Iterator[tuple[int, Tensor, Any]]:
        """Every layer from the last, with the gradient at its output; the one at its input is already taken."""
        values, kept = self._forward(inputs, self._in_mode())
        if loss is cross_entropy:
            back = torch.softmax(cast_to(torch.float32, values), 1)
            back.scatter_add_(1, targets.view(-1, 1), back.new_full((back.shape[0], 1), -1.0))
        else:
            back = gradient_at_logits(loss, cast_to(torch.float32, values), inputs, targets)
        if divisor != 1:
            back.div_(divisor)
        yield from self._back(back, kept)

    def _from_features(
        self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float
    ) -> Iterator[tuple[int, Tensor, Any]]:
        """The same of a loss of features for the layers of the body; the head's gradient is written here."""
        assert self._head is not None
        features, kept = self._forward(inputs, self._in_mode()[:-1])
        found = gradients_at_features(loss, features.float(), self._head, inputs, targets)
        for (name, _), gradient in zip(self._head.named_parameters(), found[1:], strict=True):
            torch.div(gradient, divisor, out=self._places[-1][name])
        yield from self._back(found[0] / divisor, kept)

    @staticmethod
    def _forward(values: Tensor, steps: list[Step]) -> tuple[Tensor, list[Any]]:
        """What ``steps`` make of ``values``, and what each of them leaves for the way back."""
        kept: list[Any] = []
        for step in steps:
            values, needed = step.forward(values)
            kept.append(needed)
        return values, kept

    def _back(self, back: Tensor, kept: list[Any]) -> Iterator[tuple[int, Tensor, Any]]:
        """From ``back``, the gradient at the output of the last step that left something, see :meth:`_backward`."""
        for place in range(len(kept) - 1, self.first - 1, -1):
            step, arrived = self.steps[place], back
            if place > self.first:
                back = step.backward(arrived, kept[place])
            if self._places[place]:
                yield place, arrived, kept[place]


def sequence_of(
    own: FlatNetwork,
    loss: Loss,
    inputs: Rows,
    *,
    steady: bool = False,
    narrow: bool = False,
    anywhere: bool = False,
) -> Sequence | None:
    """The sequence that the network in ``own`` is, or ``None`` if it is none; ``inputs`` are the task's.

    ``steady``: rows are to be rounded alike in passes of many lengths, so products are formed one way in all of them.
    ``narrow``: layers compute in bfloat16 where that is quicker; parameters, what is added to them, and the loss stay
    in float32.
    Its steps are for a CPU; ``anywhere``: only which they are is asked.
    """
    here = anywhere or own.flat.device.type == "cpu"
    if own.flat.dtype != torch.float32 or not here or not asks_for_logits(loss):
        return None
    if inputs.dtype != torch.float32 or not all(one.requires_grad for one in own.module.parameters()):
        return None
    zeros = own.flat.new_zeros(ROWS, *inputs.shape[1:])
    module = own_sequence(own.module, zeros, innermost=not anywhere) or own.module
    if inputs.ndim not in known_ranks(module):
        return None
    parts = _parts(module)
    steps = [] if parts is None else _steps(parts, steady=steady, narrow=narrow)
    layers = [step.layer for step in steps or [] if isinstance(step, WITH_PARAMETERS)]
    if not steps or len(layers) != len(set(map(id, layers))) or not _ends_in_classes(steps):
        return None
    if sum(1 for layer in layers for _ in layer.parameters()) != len(own.parameters):  # one is shared
        return None
    return Sequence(own, steps if anywhere else flat_images(_joined(steps, apart=steady)))


def _ends_in_classes(steps: list[Step]) -> bool:
    """Whether ``steps`` end in a dense layer, or in the logarithms of probabilities behind one and nowhere else."""
    before = steps[:-1] if steps[-1] is LOG_PROBABILITIES else steps
    return bool(before) and isinstance(before[-1], Linear) and LOG_PROBABILITIES not in before


def _head(module: nn.Module, steps: list[Step]) -> nn.Linear | None:
    """The head of ``module``, if it is the last of ``steps``, so that those before it compute the features."""
    last = steps[-1]
    if type(module) is not Network or not isinstance(last, Linear) or last.layer is not module.head:
        return None
    return last.layer


def _parts(module: nn.Module) -> list[Any] | None:
    """The layers of ``module`` in the order of its forward pass, ``None`` where images are laid out anew.

    Steps stand where a block begins and where its branches meet.
    """
    if type(module) is not nn.Sequential and type(module) is not Network:
        return parts_of(module) if type(module) is BasicBlock else [module]
    parts: list[Any] = [None] if relays(module) else []
    for part in module._modules.values():
        inner = None if part is None else _parts(part)
        if inner is None:
            return None
        parts += inner
    return parts


def _steps(parts: list[Any], *, steady: bool, narrow: bool) -> list[Step] | None:
    """The steps that do what ``parts`` do, ``None`` where a part is not known.

    Max pooling goes in front of activations that never fall, and drop-out of single numbers behind flattening, where it
    has no layout to keep.
    """
    steps: list[Step] = []
    for part in parts:
        step = _step(part, steady=steady, narrow=narrow)
        if step is None:
            return None
        if steps and _commute(steps[-1], step):  # and so do their gradients
            steps.insert(len(steps) - 1, step)
        elif type(part) is not nn.Identity:
            steps.append(step)
    for place, step in enumerate(steps):
        if isinstance(step, OVERWRITING):
            step.fresh = place > 0 and isinstance(steps[place - 1], (*WITH_PARAMETERS, Pooled, Join))
    return steps


def _joined(steps: list[Step], *, apart: bool) -> list[Step]:
    """``steps``, two in one where that is quicker; ``apart``: gradients are wanted of every sample."""
    found: list[Step] = []
    for step in steps:
        before = found[-1] if found else None
        both = joined(before, step, apart=apart) if before is not None else None
        if isinstance(step, Rectified) and isinstance(before, Pooled):
            before.rectified = True
        else:
            found[-1:] = [both] if both is not None else [*found[-1:], step]
    return found


def _commute(one: Step, other: Step) -> bool:
    if isinstance(one, Dropped):
        return isinstance(other, Flattened) and one.layer.noise_dims is None
    rises = one.rises if isinstance(one, Activated) else isinstance(one, OVERWRITING)
    return rises and isinstance(other, Pooled)


def _step(part: Any, *, steady: bool, narrow: bool) -> Step | None:
    kind = type(part)
    if part is None or kind is nn.Identity:
        return Relaid()
    if isinstance(part, Fork | Join):
        return part
    if kind is nn.Linear:
        return Linear(part, steady=steady, narrow=narrow)
    if kind is nn.Conv2d and part.padding_mode == "zeros" and padding_of(part) is not None:
        return Convolution(part, narrow=narrow)
    if kind is nn.GroupNorm and part.affine and steady:  # a plain gradient gains nothing
        return Normalised(part)
    if kind is GlobalAverage:
        return Averaged()
    if kind is nn.ReLU:
        return Rectified()
    if kind is nn.LeakyReLU and part.negative_slope > 0:
        return Leaking(part)
    if kind is nn.Tanh:
        return Tanh()
    if kind is nn.MaxPool2d and not part.return_indices:
        return Pooled(part)
    if kind is InnermostPool:
        return Pooled(part.layer)
    if kind is StreamDropout:
        return Dropped(part)
    if kind is nn.LogSoftmax and part.dim in (1, -1):
        return LOG_PROBABILITIES
    if kind is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
        return Flattened()
    return averaging(part) or activated(part)
