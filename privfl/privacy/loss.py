"""Losses and other statistics of data: one term per sample, and those whose terms depend on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError

Loss = Callable[..., Tensor]
"""``loss(network, inputs [B, ...], targets [B], **given) -> [B]``: one term per sample."""
CoupledLoss = TypeVar("CoupledLoss", bound=Loss)
LogitLoss = TypeVar("LogitLoss", bound=Callable[..., Any])
FeatureLoss = TypeVar("FeatureLoss", bound=Loss)


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
        return asks_for_logits(loss.func) and _holds_only_losses_of_logits(loss)
    mark = getattr(loss, "of_logits", None)
    return mark is not None and (mark is loss or mark is type(loss))


def _holds_only_losses_of_logits(loss: partial[Any]) -> bool:
    return all(asks_for_logits(one) for one in (*loss.args, *loss.keywords.values()) if callable(one))


def of_features(loss: FeatureLoss) -> FeatureLoss:
    """Mark a loss or a statistic, or a method that is one, that asks the network for the features of its inputs only.

    Besides, it may use the network's head. The body's gradient may then be formed without the network: that at the
    features is all that its layers need.
    """
    loss.of_features = loss  # type: ignore[attr-defined]
    return loss


def asks_for_features(loss: Any) -> bool:
    """Whether ``loss`` was marked by :func:`of_features`, and what it was given beforehand asks for logits at most."""
    if type(loss) is partial:
        return asks_for_features(loss.func) and _holds_only_losses_of_logits(loss)
    function = getattr(loss, "__func__", loss)
    return function is not None and getattr(function, "of_features", None) is function


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


def gradients_at_features(
    loss: Loss, features: Tensor, head: nn.Module, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of the sum of ``loss`` at ``features`` [B, ...], those of ``inputs``, and at the ``head``'s parameters.

    A parameter that the loss does not use gets zeros.

    Raises:
        ConfigError: the loss was marked by :func:`of_features` and asks the network for something else.
    """
    leaf = features.detach().requires_grad_()

    def known(given: Tensor) -> Tensor:
        if given is not inputs:
            raise wrongly_marked("asks the network for those of other inputs")
        return leaf

    def wrongly_marked(what: str) -> ConfigError:
        name = getattr(loss, "__name__", "given")
        return ConfigError(f"the loss {name} is marked as one of features and {what}; take the mark away")

    with torch.enable_grad():
        total = loss(BodyAndHead(known, head, wrongly_marked), inputs, targets).sum()
    wanted = (leaf, *head.parameters())
    return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)


class BodyAndHead:
    """What stands for a network where its features are computed in another way, see :func:`of_features`."""

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        head: nn.Module,
        error: Callable[[str], Exception] = AttributeError,
    ) -> None:
        """``error`` makes what is raised of what a loss that was wrongly marked does."""
        self.features, self.head, self._error = features, head, error

    def __getattr__(self, name: str) -> Any:
        raise self._error(f"asks the network for its '{name}'")

    def __call__(self, inputs: Tensor) -> Tensor:
        raise self._error("calls the network")


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
