"""The client's discriminator of GRP-FED: does a feature come from the global extractor or from the local one?

A network of two linear layers, kept as one flat vector like every model here: features [B, d] → hidden units with
LeakyReLU(0.2) → one logit s. D = sigmoid(s) is the probability that the feature is a global one. All losses are
computed from logits, one term for each feature, so that nothing takes the logarithm of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.privacy.clipping.placement import wherever_it_stands
from privfl.privacy.loss import of_features

DiscriminatorLoss = Literal["bce", "paper", "saturating"]
"""How discriminator and local extractor oppose each other; see :func:`discriminator_terms`."""
LOSSES: tuple[str, ...] = get_args(DiscriminatorLoss)
SLOPE = 0.2
LARGEST_LOGIT = 10.0
"""The printed losses have no minimum; beyond this logit they give no gradient."""


def new_discriminator(features: int, hidden: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Fresh parameters [size]: uniform in ±1/√(inputs of the layer), PyTorch's default for linear layers."""
    bounds = ((hidden * features + hidden, features), (hidden + 1, hidden))
    parts = [(2 * torch.rand(size, generator=generator, dtype=dtype) - 1) / math.sqrt(fan) for size, fan in bounds]
    return torch.cat(parts)


def discriminator_logits(parameters: Tensor, features: Tensor, hidden: int) -> Tensor:
    """Logits s [B] of ``features`` [B, d] under the discriminator ``parameters`` [size]."""
    width = features.shape[1]
    sizes = [hidden * width, hidden, hidden, 1]
    weight, bias, weight_out, bias_out = torch.split(parameters, sizes)
    units = F.leaky_relu(features @ weight.view(hidden, width).T + bias, SLOPE)
    return units @ weight_out + bias_out


def discriminator_terms(logits: Tensor, kind: DiscriminatorLoss, *, is_global: bool) -> Tensor:
    """Terms [B] of the discriminator's loss for features that are all global, or all local.

    ``"bce"`` and ``"saturating"``: softplus(−s) for global and softplus(s) for local features, the cross-entropy with
    labels global = 1, local = 0. Where both kinds of features are alike, its minimum is s = 0 with 2·ln 2 in all.

    ``"paper"``: log(1 − D) = −softplus(s) for global and log D = −softplus(−s) for local features, as equation (5) of
    GRP-FED (arXiv 2108.13858) prints it. Same direction, but unbounded below: gradients do not vanish when the
    discriminator is certain. Logits are therefore clipped to [−10, 10].
    """
    if kind == "paper":
        logits = _clipped(logits)
        return -_softplus(logits) if is_global else -_softplus(-logits)
    return _softplus(-logits) if is_global else _softplus(logits)


def regulariser_terms(logits: Tensor, kind: DiscriminatorLoss) -> Tensor:
    """Terms [B] of the local extractor's adversarial loss L_R on the logits s of its own features.

    ``"bce"``: softplus(−s), the non-saturating loss, with gradient −sigmoid(−s) in s. ``"paper"`` and ``"saturating"``:
    log(1 − D) = −softplus(s), with gradient −sigmoid(s), which vanishes where the discriminator rejects the feature;
    under ``"paper"`` logits are clipped as in :func:`discriminator_terms`.
    """
    if kind == "bce":
        return _softplus(-logits)
    return -_softplus(_clipped(logits) if kind == "paper" else logits)


def judged_terms(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    discriminator: Tensor,
    *,
    hidden: int,
    kind: DiscriminatorLoss,
    is_global: bool,
) -> Tensor:
    """Terms [B] of the discriminator's loss on the features that ``network`` computes, with no gradient for it."""
    with torch.no_grad():
        features = network.features(inputs)  # type: ignore[operator]
    return discriminator_terms(discriminator_logits(discriminator, features, hidden), kind, is_global=is_global)


@of_features
def personal_terms(
    loss: Callable[..., Tensor],
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    discriminator: Tensor,
    *,
    hidden: int,
    kind: DiscriminatorLoss,
    beta: float,
) -> Tensor:
    """Terms [B] of ``β·loss + (1 − β)·L_R`` of the local extractor, equation (6), in one forward pass.

    Args:
        loss: the task's, ``loss(network, inputs [B, ...], targets [B]) -> [B]``; it asks its network for logits only.
        network: local extractor and head.
        beta: β in [0, 1].
    """
    features = network.features(inputs)  # type: ignore[operator]
    logits = network.head(features)  # type: ignore[operator]
    judged = discriminator_logits(discriminator, features, hidden)
    return beta * loss(lambda _: logits, inputs, targets) + (1 - beta) * regulariser_terms(judged, kind)


def _softplus(logits: Tensor) -> Tensor:
    return wherever_it_stands(F.softplus, logits)


def _clipped(logits: Tensor) -> Tensor:
    return logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
