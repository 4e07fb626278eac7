"""Losses and other statistics of data: one term per sample, and those whose terms depend on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from privfl.errors import ConfigError

Loss = Callable[..., Tensor]
"""``loss(network, inputs [B, ...], targets [B], **given) -> [B]``: one term per sample."""
CoupledLoss = TypeVar("CoupledLoss", bound=Loss)


def coupled(loss: CoupledLoss) -> CoupledLoss:
    """Mark a loss whose terms depend on the other rows of the batch.

    It is called with the whole batch and one more keyword, ``present`` [B] bool: rows that are not present are padding
    at the end, must not influence the other terms, and their own terms are ignored. DP-SGD refuses such a loss.
    """
    loss.coupled = True  # type: ignore[attr-defined]
    return loss


def is_coupled(loss: Loss) -> bool:
    """Whether ``loss`` was marked by :func:`coupled`."""
    return getattr(loss, "coupled", False)


def refuse_coupled(loss: Loss) -> None:
    """Raise a :class:`ConfigError` if DP-SGD would have to clip the terms of a loss that couples samples."""
    if is_coupled(loss):
        raise ConfigError(
            f"the loss {getattr(loss, '__name__', 'given')} couples the samples of a batch, so clipping per sample "
            "would protect nothing; use the algorithm's per-sample form, or train without DP-SGD"
        )
