"""Gradients of stacked copies of a plain sequence of layers, without ``vmap`` and without autograd.

A stack of small networks is held up by dispatch, not by arithmetic: ``vmap`` and autograd around grouped convolutions
take twice as long as the same products written out. Images lie [clients, B, H, W, channels] here, a convolution is one
batched product of its windows with its weights, and the backward pass says of every layer what there is to add up:
plainly, into one gradient [clients, size], or row by row to the clipper's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.engine.activations import Activated
from privfl.engine.averaging import Averaged, AveragePooled
from privfl.engine.dropout import StreamDropout
from privfl.engine.sequence_blocks import Fork, Join, Normalised
from privfl.engine.sequence_checks import TOLERANCE
from privfl.engine.sequence_steps import Convolution, Dropped, Flattened, Leaking, Linear, Pooled, Rectified, Step, Tanh
from privfl.engine.sequences import Sequence
from privfl.engine.windows import Windows
from privfl.federation.losses import cross_entropy
from privfl.models.flat_network import Layout
from privfl.privacy.clipping.formed_rules import FormedRule, WindowsRule
from privfl.privacy.clipping.layer_rules import LinearRule
from privfl.privacy.clipping.per_sample import BY_RULES
from privfl.privacy.clipping.rule import Places
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients, Told
from privfl.privacy.loss import Loss
from privfl.privacy.noise.source import NoiseStream
from privfl.products import batched, steady_product, sums_over_rows

LARGEST = 1 << 15
"""Values that all windows of one row may have: where there are more, laying them out costs more than it saves."""

ALIKE = 16
"""Rows from which on products round each row alike; with fewer, kernels differ, and clients' uploads could tell how
many rows the largest batch of their stack has, so that with noise on updates all would be padded to more rows."""

Views = dict[int, Tensor]
"""Parameters [clients, ...] by their identity in the network that is copied."""

Take = Callable[[nn.Linear | nn.Conv2d, Tensor, Tensor], None]
"""Told of a layer what it received and what arrived at its output: [clients, B, n], of windows [clients, B, windows, n]
with the channels of a window innermost."""

Back = Callable[[Tensor, Take], Tensor]
"""From the gradient at a layer's output to that at its input; says of the layer what there is to add up."""


class StackedSequence:
    """Copies of the network that ``single`` is, with parameters [clients, size]; see :func:`stacked_sequence_of`."""

    _windows_rule: type[FormedRule] = WindowsRule

    @property
    def most_values(self) -> int:
        """How many values all windows of one row may have for this to be quicker than autograd's kernels."""
        return LARGEST

    def __init__(self, single: Sequence, layout: Layout, *, steady: bool) -> None:
        """``steady``: what a client gets must not depend on how many rows others in its stack have."""
        self._steps, self._steady = single.steps, steady
        self._product = steady_product if steady else torch.bmm
        self.layout = layout
        named = dict(single.own.module.named_parameters())
        self._sizes, self._shapes = list(layout.sizes), [(-1, *shape) for shape in layout.shapes]
        self._keys = [id(named[name]) for name in layout.names]
        self._names = dict(zip(self._keys, layout.names, strict=True))
        self._first = single.first
        self.values = 0
        """How many numbers the inputs, or all windows, of one row are; known once a row has passed."""
        self._windows: dict[tuple[int, ...], Windows] = {}
        self._less = torch.full((), -1.0)

    def serves(self, loss: Loss) -> bool:
        """Whether :meth:`plain_sum` gives each client's gradient of ``loss``."""
        return loss is cross_entropy

    def plain_sum(self, parameters: Tensor, batch: StackedBatch) -> Tensor:
        """Gradient [clients, size] of each client's sum of cross-entropy over its rows."""
        gradient, steady = torch.empty_like(parameters), self._steady and not batch.fixed
        places = self.views(gradient)

        def write(layer: nn.Linear | nn.Conv2d, given: Tensor, back: Tensor) -> None:
            found, sums = self._sums(given, back, biased=layer.bias is not None, steady=steady)
            place = self._weight_of(layer, places)
            place.copy_(found.view(place.shape))
            if layer.bias is not None:
                places[id(layer.bias)].copy_(sums)

        self._pass(parameters, batch, write)
        return gradient

    def rules(self, parameters: Tensor, batch: StackedBatch) -> list[Told]:
        """The rules of all layers, who have received what each row of ``batch`` gives them, from the last layer."""
        found: list[Told] = []

        def note(layer: nn.Linear | nn.Conv2d, given: Tensor, back: Tensor) -> None:
            names = {name: self._names[id(value)] for name, value in layer.named_parameters()}
            kind: type[LinearRule | FormedRule] = LinearRule if given.dim() == 3 else self._windows_rule
            rule = kind(layer, frozenset(names))
            rule.receive([(given.flatten(0, 1), back.flatten(0, 1))])
            found.append(Told(rule, names, partial(self._places, layer)))

        self._pass(parameters, batch, note)
        return found

    def _places(self, layer: nn.Linear | nn.Conv2d, gradient: Tensor) -> Places:
        views = self.views(gradient)
        places = {"weight": self._weight_of(layer, views)}
        return places if layer.bias is None else {**places, "bias": views[id(layer.bias)]}

    def views(self, stack: Tensor) -> Views:
        """Where the parameters lie in ``stack`` [clients, size]."""
        parts = torch.split_with_sizes(stack, self._sizes, 1)
        return {key: part.view(shape) for key, part, shape in zip(self._keys, parts, self._shapes, strict=True)}

    def _weight_of(self, layer: nn.Linear | nn.Conv2d, views: Views) -> Tensor:
        """The weight of ``layer``, that of windows [clients, height, width, channels, outputs]."""
        weight = views[id(layer.weight)]
        return weight if weight.dim() == 3 else weight.permute(0, 3, 4, 2, 1)

    def _sums(self, given: Tensor, back: Tensor, *, biased: bool, steady: bool) -> tuple[Tensor, Tensor]:
        """What a layer's weight and bias get from all rows of each client."""
        if given.dim() == 3:
            sums = _added(back) if steady and biased else back.sum(1)
            return self._product(back.mT, given), sums
        clients, rows = given.shape[:2]
        if steady:  # row by row first: a product over all rows is rounded by how many there are
            apart = given.flatten(0, 1), back.flatten(0, 1)
            found = sums_over_rows(*apart, steady=True)
            laid = found if found.is_contiguous() else found.mT
            total = _added(laid.view(clients, rows, -1)).view(clients, *laid.shape[1:])
            sums = _added(apart[1].sum(1).view(clients, rows, -1))
            return total if laid is found else total.mT, sums
        together = given.flatten(1, 2), back.flatten(1, 2)
        return sums_over_rows(*together, steady=self._steady), together[1].sum(1)

    def _pass(self, parameters: Tensor, batch: StackedBatch, take: Take) -> None:
        """Forward, and back from each client's sum of cross-entropy."""
        values, own, ways_back = batch.inputs, self.views(parameters), list[Back]()
        if values.dim() == 5:
            values = values.permute(0, 1, 3, 4, 2).contiguous()
        for place, step in enumerate(self._steps):
            short = self._steady and not batch.fixed and values.shape[1] < ALIKE
            values, way_back = self._forward(step, values, own, wanted=place > self._first, short=short)
            ways_back.append(way_back)
        back = torch.softmax(values, 2)
        targets = batch.targets[:, :, None]
        back = batch.rows_only(back.scatter_add_(2, targets, self._less.expand(targets.shape)))
        for way_back in reversed(ways_back[self._first :]):
            back = way_back(back, take)

    def _forward(self, step: Any, values: Tensor, own: Views, *, wanted: bool, short: bool) -> tuple[Tensor, Back]:
        """What ``step`` makes of ``values`` [clients, B, ...], and its way back; its input's gradient if ``wanted``.

        ``short``: there are fewer rows than round alike.
        """
        match step:
            case Linear():
                return self._linear(step.layer, values, own, wanted=wanted, short=short)
            case Convolution():
                return self._convolution(step, values, own, wanted=wanted)
            case Rectified():
                values = values.clamp_min_(0) if step.fresh else values.clamp_min(0)
                return values, lambda back, _: _kept(back, values)
            case Leaking() | Tanh() | Activated():
                values, kept = step.forward(values)
                return values, lambda back, _: step.backward(back, kept)
            case Pooled() | Averaged() | AveragePooled():
                return _pooled(step, values)
            case Dropped():
                return _dropped(step.layer, values)
            case Flattened():
                return _flattened(values)
        return values, lambda back, _: back

    def _linear(
        self, layer: nn.Linear, values: Tensor, own: Views, *, wanted: bool, short: bool
    ) -> tuple[Tensor, Back]:
        weight = own[id(layer.weight)]
        rows = values.shape[1]
        enough = F.pad(values, (0, 0, 0, ALIKE - rows)) if short else values
        output = batched(enough, weight.mT, steady=self._steady)[:, :rows]
        if layer.bias is not None:
            output += own[id(layer.bias)][:, None]

        def backward(back: Tensor, take: Take) -> Tensor:
            take(layer, values, back)
            return self._product(back, weight) if wanted else back

        return output, backward

    def in_windows(self) -> int:
        """How many numbers all windows of one row are, of the convolutions that a row has passed."""
        return sum(windows.values for windows in self._windows.values())

    def _windows_of(self, image: torch.Size, layer: nn.Conv2d) -> Windows:
        key = (*image, *layer.kernel_size, *layer.stride)
        if key not in self._windows:
            self._windows[key] = Windows(image, layer.kernel_size, layer.stride)
        return self._windows[key]

    def _convolution(self, step: Convolution, values: Tensor, own: Views, *, wanted: bool) -> tuple[Tensor, Back]:
        layer = step.layer
        (above, beside), (clients, rows) = step.window[1], values.shape[:2]
        given = F.pad(values, (0, 0, beside, beside, above, above)) if above or beside else values
        seen = self._windows_of(given.shape[2:], layer)
        height, width = seen.shape[:2]
        windows = seen.laid_out(given.flatten(0, 1)).view(clients, rows * height * width, -1)
        weight = self._weight_of(layer, own).reshape(clients, -1, layer.out_channels)
        output = batched(windows, weight, steady=self._steady).contiguous()
        if layer.bias is not None:  # repeated for an image, since a loop over the outputs of one position is too short
            bias = own[id(layer.bias)].repeat(1, height * width)
            output.view(clients, rows, -1).add_(bias[:, None])

        def backward(back: Tensor, take: Take) -> Tensor:
            back = back.reshape(clients, rows, height * width, layer.out_channels)
            take(layer, windows.view(clients, rows, height * width, -1), back)
            if not wanted:
                return back
            spread = batched(back.flatten(1, 2), weight.mT, steady=self._steady).contiguous()
            total = seen.added_up(spread.view(clients * rows, height * width, -1)).view(given.shape)
            return total[:, :, above : above + values.shape[2], beside : beside + values.shape[3]]

        return output.view(clients, rows, height, width, -1), backward


def _kept(back: Tensor, values: Tensor) -> Tensor:
    """``back``, which nobody else holds, with zeros where ``values`` are not above 0."""
    found: Tensor = torch.ops.aten.threshold_backward.grad_input(back, values, 0, grad_input=back)
    return found


def _added(values: Tensor) -> Tensor:
    """The sum [clients, n] of the rows of ``values`` [clients, B, n]; rows of zeros at the end change no bit of it.

    Every fourth row is added to the same of four sums, one after another, and then these four, whatever B is.
    """
    rows = values.shape[1]
    if rows <= 4:
        return (F.pad(values, (0, 0, 0, 4 - rows)) if rows < 4 else values).sum(1)
    first = 8 if rows >= 8 else 4
    sums = values[:, :4] + values[:, 4:8] if first == 8 else values[:, :4].clone()
    for start in range(first, rows, 4):
        part = values[:, start : start + 4]
        sums[:, : part.shape[1]] += part
    return sums.sum(1)


def _pooled(step: Step, values: Tensor) -> tuple[Tensor, Back]:
    rows = values.flatten(0, 1)
    given = rows.permute(0, 3, 1, 2) if rows.dim() == 4 else rows
    pooled, kept = step.forward(given)
    images = pooled.dim() == 4

    def backward(back: Tensor, take: Take) -> Tensor:
        back = back.flatten(0, 1)
        found = step.backward(back.permute(0, 3, 1, 2) if images else back, kept)
        return (found.permute(0, 2, 3, 1) if rows.dim() == 4 else found).reshape(values.shape)

    pooled = pooled.permute(0, 2, 3, 1) if images else pooled
    return pooled.reshape(*values.shape[:2], *pooled.shape[1:]), backward


def _dropped(layer: StreamDropout, values: Tensor) -> tuple[Tensor, Back]:
    if not layer.training or layer.probability == 0:
        return values, lambda back, _: back
    if values.dim() == 5:  # masks are drawn in the order in which one client's network draws them
        factors = layer(torch.ones_like(values.permute(0, 1, 4, 2, 3))).permute(0, 1, 3, 4, 2).contiguous()
    else:
        factors = layer(torch.ones_like(values))
    return values * factors, lambda back, _: back * factors


def _flattened(values: Tensor) -> tuple[Tensor, Back]:
    if values.dim() != 5:
        return values.flatten(2), lambda back, _: back.view(values.shape)
    clients, rows, height, width, channels = values.shape

    def backward(back: Tensor, take: Take) -> Tensor:
        return _transposed(back.reshape(clients * rows, channels, height * width)).view(values.shape)

    return _transposed(values.flatten(0, 1).flatten(1, 2)).view(clients, rows, -1), backward


def _transposed(matrices: Tensor) -> Tensor:
    """The transposes of ``matrices`` [N, rows, columns], each in one line."""
    if matrices.device.type != "cpu":
        return matrices.mT.flatten(1)
    rows, columns = matrices.shape[1:]
    return matrices.flatten(1).index_select(1, _places_of_transpose(rows, columns))  # half of a strided copy's time


@cache
def _places_of_transpose(rows: int, columns: int) -> Tensor:
    return torch.arange(rows * columns).view(rows, columns).T.reshape(-1)


def stacked_sequence_of(
    single: Sequence,
    stacked: StackedGradients,
    dropout: list[StreamDropout],
    inputs: Tensor,
    targets: Tensor,
    *,
    steady: bool,
    kind: type[StackedSequence] = StackedSequence,
) -> StackedSequence | str:
    """Stacked copies of the network of ``single``, or why there are none: empty if they would not be quicker.

    Tried on public ``inputs`` [4, ...] and ``targets`` [4], two rows for each of two clients, against autograd.
    """
    for step in single.steps:
        plain = not isinstance(step, Convolution) or (step.layer.groups, step.layer.dilation) == (1, (1, 1))
        if not plain or (isinstance(step, Dropped) and step.layer.noise_dims is not None):
            return ""
        if isinstance(step, Normalised | Fork | Join):
            return ""
    found = kind(single, stacked.layout, steady=steady)
    batch = StackedBatch(inputs.view(2, 2, *inputs.shape[1:]), targets.view(2, 2), None, {})
    parameters = torch.stack([single.own.flat, single.own.flat * 0.9]).detach()

    def masks_begin_anew() -> None:
        streams = [NoiseStream(bytes([client]) * 32) for client in (0, 1)]
        for layer in dropout:  # all draw from the same, so that one may stand for another
            layer.stack, layer.counts = streams, [2, 2]

    def differ(one: Tensor, other: Tensor) -> bool:
        parts = zip(found.views(one).values(), found.views(other).values(), strict=True)
        return not all(
            float((part - wanted).abs().max()) <= TOLERANCE * (float(wanted.abs().max()) + 1e-12)
            for part, wanted in parts
        )

    masks_begin_anew()
    expected = stacked.plain_sum(cross_entropy, parameters, batch)
    masks_begin_anew()
    with torch.no_grad():
        differs = differ(found.plain_sum(parameters, batch), expected)
    if stacked.way in BY_RULES and not differs:
        masks_begin_anew()
        bound = 0.7 * float(stacked.norms(cross_entropy, parameters, batch).median()) + 1e-12  # some rows are clipped
        sums = []
        for stacked.unaided in (None, found):
            masks_begin_anew()
            sums.append(stacked.clipped_sum(cross_entropy, parameters, batch, bound))
        stacked.unaided = None
        differs = differ(sums[1], sums[0])
    for layer in dropout:
        layer.stack, layer.counts = None, ()
    found.values = max(inputs[0].numel(), found.in_windows())
    if found.values > found.most_values:
        return ""
    if differs:
        return "stacked steps use autograd, because the layers' own gradients came out different"
    return found
