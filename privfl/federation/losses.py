"""The losses of each kind of task: one term for every row, which depends on that row alone.

So they are known to work row by row (:mod:`privfl.privacy.clipping.known`). What a row holds several of, be it values,
labels or tokens, is averaged within the row, by numbers of that row: dividing by the tokens of a batch would couple its
rows, and clipping single gradients would protect nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from privfl.data.targets import IGNORED, TaskKind
from privfl.errors import ConfigError, unknown
from privfl.privacy.clipping.placement import wherever_it_stands
from privfl.privacy.loss import Loss, of_logits
from privfl.schema import Named, build
from privfl.validation import Settings, check_number


@of_logits
def cross_entropy(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample [B], from the logits of ``network``."""
    return F.cross_entropy(network(inputs), targets, reduction="none")


@of_logits
def mean_squared_error(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of every sample [B], averaged over its values [B, values]."""
    return F.mse_loss(*_of_one_shape(network(inputs), targets), reduction="none").mean(1)


@of_logits
@dataclass(frozen=True)
class Huber(Settings):
    """Huber's loss of every sample [B], averaged over its values: e²/2 up to an error of ``delta``, linear beyond.

    Args:
        delta: the error from which on the loss is linear, > 0, in units of the targets.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        check_number("huber's delta", self.delta, 0, above=True)

    def __call__(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of ``targets`` [B, values]."""
        each = partial(F.huber_loss, reduction="none", delta=self.delta)
        return wherever_it_stands(each, *_of_one_shape(network(inputs), targets)).mean(1)


_EACH_LABEL = partial(F.binary_cross_entropy_with_logits, reduction="none")


@of_logits
def binary_cross_entropy(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of every sample [B], averaged over its labels [B, labels], from logits."""
    return wherever_it_stands(_EACH_LABEL, *_of_one_shape(network(inputs), targets)).mean(1)


def token_cross_entropy(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sequence [B], averaged over those of its targets [B, L] that count; 0 where none does.

    Logits are [B, L, tokens]; a target of −100 does not count.
    """
    logits = network(inputs)
    if logits.shape[:-1] != targets.shape:
        raise _misfit(logits, targets)
    terms = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
    counted = (targets != IGNORED).sum(1).clamp_min(1)
    return terms.view_as(targets).sum(1) / counted


LOSSES: Mapping[str, Callable[..., Any]] = {
    "cross-entropy": cross_entropy,
    "mean-squared-error": mean_squared_error,
    "huber": Huber,
    "binary-cross-entropy": binary_cross_entropy,
    "token-cross-entropy": token_cross_entropy,
}
"""The losses that a file may name; a class is built from the keys beside the name."""
_KINDS: Mapping[str, TaskKind] = {
    "cross-entropy": "classification",
    "mean-squared-error": "regression",
    "huber": "regression",
    "binary-cross-entropy": "multi-label",
    "token-cross-entropy": "next-token",
}


def loss_name(loss: Loss) -> str | None:
    """The name of ``loss`` in :data:`LOSSES`, if it is one of them."""
    return next((name for name, one in LOSSES.items() if loss is one or type(loss) is one), None)


def check_kind(loss: Loss, kind: TaskKind) -> None:
    """Raise a :class:`ConfigError` if ``loss`` is one of privfl's, for another kind of task."""
    name = loss_name(loss)
    if name is not None and _KINDS[name] != kind:
        own = " or ".join(other for other, of in _KINDS.items() if of == kind)
        raise ConfigError(f"the loss {name} is one of {_KINDS[name]} and the task's kind is {kind}; take {own}")


def named_loss(loss: Loss) -> Named:
    """How a file names ``loss``."""
    name, named = loss_name(loss), Named.of(loss)
    return named if name is None else Named(name, named.options)


def loaded_loss(named: Named) -> Loss:
    """What :func:`named_loss` was given.

    Raises:
        ConfigError: there is no such loss, or a setting is unknown or impossible.
    """
    if ":" in named.name:
        loss: Loss = named.load("loss")
        return loss
    if named.name not in LOSSES:
        raise unknown("loss", named.name, LOSSES)
    found = LOSSES[named.name]
    if isinstance(found, type):
        built: Loss = build(found, named.options, "loss")
        return built
    if named.options:
        raise ConfigError(f"the loss {named.name} has no settings; leave {', '.join(named.options)} out of [loss]")
    return found


def _of_one_shape(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both, if broadcasting does nothing: outputs [B, 1] and targets [B] would become all pairs of rows."""
    if outputs.shape != targets.shape:
        raise _misfit(outputs, targets)
    return outputs, targets


def _misfit(outputs: Tensor, targets: Tensor) -> ConfigError:
    return ConfigError(
        f"the model gives outputs of shape {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}; let it "
        "give one output for each"
    )
