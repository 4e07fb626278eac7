"""Whether a sequence's gradients are autograd's: asked at the start of every run, on public rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from privfl.engine.dropout import StreamDropout
from privfl.engine.sequences import Sequence
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.door.precision import in_precision
from privfl.privacy.loss import Loss
from privfl.privacy.noise.source import NoiseStream

TOLERANCE = 1e-4
"""Largest difference from autograd's gradient that is rounding, relative to the largest value of a layer's gradient."""

COARSE = 0.05
"""Distance of a layer's gradient in bfloat16 from float32's, relative to its norm, that is rounding in any case."""


def differs_from_autograd(
    sequence: Sequence, loss: Loss, dropout: list[StreamDropout], inputs: Tensor, targets: Tensor
) -> bool:
    """Whether the gradient of ``loss`` is not autograd's on these public rows, in training mode, with equal masks."""
    own = sequence.own
    with _same_masks(dropout) as masks_begin_anew:
        masks_begin_anew()
        with torch.enable_grad():
            expected = own.gradient_of(loss(own.module, inputs, targets).sum() / len(inputs))
        masks_begin_anew()
        with torch.no_grad():
            sequence.write_gradient(loss, inputs, targets, float(len(inputs)))
    return not _agree(own.gradient_views, expected)


def differs_from_autocast(
    sequence: Sequence, loss: Loss, dropout: list[StreamDropout], inputs: Tensor, targets: Tensor
) -> bool:
    """Whether some layer's gradient is more than twice as far from float32's as any of autograd's under autocast is.

    How far bfloat16 may be off cannot be said beforehand: where rounding makes another one of four numbers the largest,
    or turns the sign of one in front of a ReLU, a gradient goes another way. On a few dozen rows that averages out.
    """
    own, gradients = sequence.own, list[list[Tensor]]()
    narrow = in_precision(loss, "bfloat16", own.flat.device)
    with _same_masks(dropout) as masks_begin_anew:
        for way in (loss, narrow):
            masks_begin_anew()
            with torch.enable_grad():
                gradients.append(own.gradient_of(way(own.module, inputs, targets).sum() / len(inputs)))
        masks_begin_anew()
        with torch.no_grad():
            sequence.write_gradient(loss, inputs, targets, float(len(inputs)))
    exact, usual = gradients
    bound = 2 * max(_distances(usual, exact)) + COARSE
    return not all(distance <= bound for distance in _distances(own.gradient_views, exact))


def _distances(found: Iterable[Tensor], exact: Iterable[Tensor]) -> list[float]:
    """How far each of the gradients ``found`` is from the ``exact`` one, relative to its norm."""
    return [
        float((one - wanted).norm()) / (float(wanted.norm()) + 1e-12) for one, wanted in zip(found, exact, strict=True)
    ]


def clips_otherwise(
    sequence: Sequence,
    loss: Loss,
    clipper: PerSampleGradients,
    dropout: list[StreamDropout],
    inputs: Tensor,
    targets: Tensor,
) -> bool:
    """Whether ``clipper`` comes to other norms or sums with what ``sequence`` says than with what autograd says.

    Tried on these public rows, in training mode, with the same masks, and a bound that clips some of them.
    """
    own, bound = sequence.own, 1.0
    found: list[tuple[Tensor, list[Tensor]]] = []
    with _same_masks(dropout) as masks_begin_anew:
        for unaided in (None, None, sequence):
            masks_begin_anew()
            clipper.unaided = unaided
            norms = clipper.norms(loss, inputs, targets, bound)
            bound = bound if found else 0.7 * float(norms.median()) + 1e-12
            found.append((norms, [view.clone() for view in own.gradient_views]))
    clipper.unaided = None
    (_, _), (expected, sums), (norms, own_sums) = found
    return not (_agree([norms], [expected]) and _agree(own_sums, sums))


@contextmanager
def _same_masks(dropout: list[StreamDropout]) -> Iterator[Callable[[], None]]:
    """What makes the masks of ``dropout`` begin anew with the same coins; what they drew from is put back."""
    generators = [layer.generator for layer in dropout]

    def masks_begin_anew() -> None:
        stream = NoiseStream(bytes(32))
        for layer in dropout:
            layer.generator, layer.present = stream, None

    try:
        yield masks_begin_anew
    finally:
        for layer, generator in zip(dropout, generators, strict=True):
            layer.generator = generator


def _agree(found: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    return all(
        float((one - wanted).abs().max()) <= TOLERANCE * (float(wanted.abs().max()) + 1e-12)
        for one, wanted in zip(found, expected, strict=True)
    )
