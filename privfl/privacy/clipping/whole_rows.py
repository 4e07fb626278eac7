"""Per-sample gradients that lie in one piece, row after row, for devices where a launch costs more than its arithmetic.

The layers' rules take the norm of a row layer by layer and form what they add up at last: some twenty kernels a layer.
Where all gradients of a client's batch are few bytes, they are formed at once: one norm, one factor and one product
serve all layers, and the very numbers whose norm was taken are the ones that are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privfl.models.flat_network import Layout
from privfl.privacy.clipping.factors import Clipping, norms_along, zero_like

LARGEST = 1 << 24
"""Bytes that the gradients of one client's batch may take: a gibibyte for 64 clients."""
BYTES = 16
"""For each number: as a layer formed it, in the row, and in float64, in which a device takes norms."""


def in_whole_rows(device: torch.device, batch: int, size: int) -> bool:
    """Whether gradients of ``size`` numbers are to be formed on ``device``, where a batch of ``batch`` rows is usual.

    What is asked is known before a run begins, and no data is in it, nor how many clients fit into memory: one way and
    the other round differently. Clients draw their batches, so there is room for twice as many rows.
    """
    return device.type == "cuda" and 2 * batch * size * BYTES <= LARGEST


def clipped_rows(
    formed: Mapping[str, Tensor],
    layout: Layout,
    rows: torch.Size,
    max_grad_norm: float,
    like: Tensor,
    together: Sequence[int] | None,
    mask: Tensor | None,
) -> tuple[Tensor, Clipping]:
    """Each client's sum [clients, size] of clipped gradients, in the ``layout``, and what they were multiplied with.

    ``formed`` [clients, B, values] by the parameters' names; those that have none are zero. ``rows`` are [clients, B],
    of which ``mask`` tells rows from padding; ``like`` has the device and the type of the parameters.
    """
    none = zero_like(like)
    named = zip(layout.names, layout.sizes, strict=True)
    parts = [formed[name] if name in formed else none.expand(*rows, size) for name, size in named]
    whole = torch.cat(parts, dim=2)
    clipping = Clipping.of_norms(norms_along(whole), max_grad_norm, like.dtype, together, mask)
    if clipping.finite is not None:  # rows that are not finite have the factor 0, so that all of them are zero now
        whole.nan_to_num_(0.0, 0.0, 0.0)
    return replace(clipping, finite=None).sums_of(whole), clipping
