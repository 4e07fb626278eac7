"""Losses and other statistics of data: one term per sample, and those whose terms depend on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from privfl.errors import ConfigError

Loss = Callable[..., Tensor]
"""``loss(network, inputs [B, ...], targets [B], **given) -> [B]``: one term per sample."""
CoupledLoss = TypeVar("CoupledLoss", bound=Loss)
LogitLoss = TypeVar("LogitLoss", bound=Callable[..., Any])


def coupled(loss: CoupledLoss) -> CoupledLoss:
    """Mark a loss whose terms depend on the other rows of the batch.

    It is called with the whole batch and one more keyword, ``present`` [B] bool: rows that are not present are padding
    at the end, must not influence the other terms, and their own terms are ignored. DP-SGD refuses such a loss.
    """
    loss.coupled = True  # type: ignore[attr-defined]
    return loss


def of_logits(loss: LogitLoss) -> LogitLoss:
    """Mark a loss, or a class of losses, that asks the network once for the outputs of its inputs and for nothing else.

    Its gradient may then be formed without the network: that at the outputs is all that the layers need.
    """
    loss.of_logits = loss  # type: ignore[attr-defined]
    return loss


def asks_for_logits(loss: Any) -> bool:
    """Whether ``loss`` was marked by :func:`of_logits`, and so was every function that it was given beforehand.

    A copy of the mark, such as ``functools.wraps`` makes, does not count.
    """
    if type(loss) is partial:
        held = (one for one in (*loss.args, *loss.keywords.values()) if callable(one))
        return asks_for_logits(loss.func) and all(map(asks_for_logits, held))
    mark = getattr(loss, "of_logits", None)
    return mark is not None and (mark is loss or mark is type(loss))


def gradient_at_logits(loss: Loss, logits: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient [B, ...] of the sum of ``loss`` at ``logits`` [B, ...], those of ``inputs``; see :func:`of_logits`.

    Raises:
        ConfigError: the loss was marked and asks the network for something else.
    """
    leaf = logits.detach().requires_grad_()

    def network(given: Tensor) -> Tensor:
        if given is not inputs:
            raise ConfigError(
                f"the loss {getattr(loss, '__name__', 'given')} is marked as one of logits and asks the network for "
                "those of other inputs; take the mark away"
            )
        return leaf

    with torch.enable_grad():
        total = loss(network, inputs, targets).sum()
    found: Tensor = torch.autograd.grad(total, leaf)[0]
    return found


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
