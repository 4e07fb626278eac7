"""Class prototypes and the feature augmentation that ReBaFL builds on them.

Equation numbers are those of its paper, arXiv 2303.06314. A prototype is the mean feature of a class. It travels as a
sum of features and a count, so that the server needs no more than the sums over the cohort. Everything here works on
fixed shapes: a class without a prototype is marked as not ``known`` instead of being left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.algorithms.label_skew.balanced_softmax import smoothed_prior
from privfl.privacy.loss import of_features

Missing = Literal["keep", "drop", "cycle_available"]
"""What becomes of a feature whose target class (or whose own class) has no prototype; see :func:`augment`."""
Memory = Literal["none", "last"]
"""Whether the server forgets the prototype of a class that no upload of a round covers, or keeps the last one."""


@of_features
def class_features(
    network: nn.Module, inputs: Tensor, targets: Tensor, *, classes: int, feature_norm: float = math.inf
) -> Tensor:
    """A statistic for the door: a sample's feature in the row of its class, and a 1 behind it; [B, classes, d + 1].

    Its total holds Σ f(x) and the count of every class, equation (21). With a finite ``feature_norm`` R a feature is
    clipped to L2 norm R and divided by R: then the L2 norm of one sample's statistic is at most √2, and one Gaussian
    event covers sums and counts.
    """
    features: Tensor = network.features(inputs)  # type: ignore[operator]
    if math.isfinite(feature_norm):
        norms = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        features = features / norms.clamp_min(feature_norm)
    extended = torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)
    return F.one_hot(targets, classes).to(features.dtype)[..., None] * extended[..., None, :]


def split_total(total: Tensor, feature_norm: float = math.inf) -> tuple[Tensor, Tensor]:
    """Sums of features [C, d] and counts [C] from the ``total`` [C, d + 1] of :func:`class_features`."""
    scale = feature_norm if math.isfinite(feature_norm) else 1.0
    return total[..., :-1] * scale, total[..., -1]


def withhold(sums: Tensor, counts: Tensor, n_min: int) -> tuple[Tensor, Tensor]:
    """``sums`` [C, d] and ``counts`` [C] with zeros for classes of fewer than ``n_min`` samples."""
    enough = counts >= n_min
    return torch.where(enough[:, None], sums, 0), torch.where(enough, counts, 0)


def means(sums: Tensor, counts: Tensor) -> Tensor:
    """Prototypes [C, d] from sums [C, d] and counts [C]; the divisor is at least 1, which only noise can undercut."""
    return sums / counts.clamp_min(1)[:, None]


def overridden(prototypes: Tensor, known: Tensor, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The received prototypes [C, d], those of the client's own classes replaced by its own; equation (18).

    Returns:
        Prototypes [C, d] and, as bool [C], which of them are known.
    """
    own = counts > 0
    return torch.where(own[:, None], means(sums, counts), prototypes), known | own


def aggregated(
    prototypes: Tensor, known: Tensor, sums: Tensor, counts: Tensor, *, n_min: int, memory: Memory
) -> tuple[Tensor, Tensor]:
    """The server's next prototypes ``P[c] = Σ_i n_ic·P̂_ic / Σ_i n_ic``, equation (23).

    A class with fewer than ``n_min`` samples in the sums (which then are noise) counts as not covered. Its prototype
    vanishes (``memory="none"``: zeros, not known) or stays what it was (``memory="last"``).
    """
    covered = counts >= n_min
    fresh = means(sums, counts)
    if memory == "last":
        return torch.where(covered[:, None], fresh, prototypes), known | covered
    return torch.where(covered[:, None], fresh, 0), covered


def translated(features: Tensor, origin: Tensor, target: Tensor, scale: float) -> Tensor:
    """``h̃ = P[b] + λ·(h − P[a])``, equation (15); ``origin`` and ``target`` are the prototypes of a and b."""
    return target + scale * (features - origin)


def cyclic_targets(places: Tensor, known: Tensor, missing: Missing) -> Tensor:
    """Target class of the rows at ``places`` [B] of a batch: classes take turns, Section 4.2.

    ``place mod C``, and with ``missing="cycle_available"`` the (place mod number of known classes)-th known class, in
    ascending order.
    """
    if missing != "cycle_available":
        return places % len(known)
    ordered = torch.argsort((~known).to(torch.int64), stable=True)
    return ordered[places % known.sum().clamp_min(1)]


@dataclass(frozen=True)
class Augmented:
    """Synthetic features [B, d] with their labels [B]; rows that are not ``used`` [B] enter no mean."""

    features: Tensor
    labels: Tensor
    used: Tensor


def augment(
    features: Tensor,
    targets: Tensor,
    prototypes: Tensor,
    known: Tensor,
    present: Tensor,
    *,
    scale: float,
    missing: Missing,
) -> Augmented:
    """Translate every feature to the class that its place in the batch names, equation (15).

    Where the target class or the feature's own class has no prototype: ``"keep"`` (the released code) leaves the
    feature where it is, with its own label; ``"drop"`` leaves it out; ``"cycle_available"`` names known classes only
    and leaves a feature where it is if its own class has no prototype.

    Args:
        features: h [B, d]; no gradient flows to them.
        targets: their classes [B].
        prototypes: P [C, d], constants.
        known: which prototypes there are, bool [C].
        present: which rows are no padding, bool [B].
        scale: λ, the scale of the residual.
    """
    features = features.detach()
    chosen = cyclic_targets(torch.arange(len(targets), device=targets.device), known, missing)
    possible = known[targets] & known[chosen]
    moved = translated(features, prototypes[targets], prototypes[chosen], scale)
    used = present & possible if missing == "drop" else present
    return Augmented(torch.where(possible[:, None], moved, features), torch.where(possible, chosen, targets), used)


def augmented_prior(augmented: Augmented, classes: int, epsilon: float) -> Tensor:
    """The smoothed label prior p̃ [classes] of one batch's augmented features, in place of (10)."""
    labels = F.one_hot(augmented.labels, classes).to(augmented.features.dtype)
    return smoothed_prior(torch.where(augmented.used[:, None], labels, 0).sum(0), epsilon)


def expected_augmented_terms(
    head: nn.Module,
    features: Tensor,
    targets: Tensor,
    prototypes: Tensor,
    known: Tensor,
    *,
    scale: float,
    missing: Missing,
) -> Tensor:
    """The augmented loss of every row [B] on its own: its mean over all target classes, with a uniform prior.

    Not in the paper. There a row's target follows from its place in the batch, and the prior from the whole batch, so
    that one sample moves the terms of others; here each term depends on its own sample alone, and its value is the mean
    of :func:`augment`'s cross-entropy over all places. ``missing`` acts as there (a row that is left out gives 0).
    """
    features, classes = features.detach(), len(known)
    own = known[targets]
    possible = own[:, None] & known  # [B, C]
    moved = translated(features[:, None], prototypes[targets][:, None], prototypes, scale)  # [B, C, d]
    logits = head(torch.where(possible[..., None], moved, features[:, None]))
    labels = torch.where(possible, torch.arange(classes, device=targets.device), targets[:, None])
    terms = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")  # [B, C]
    if missing == "keep":
        return terms.mean(1)
    counted = possible if missing == "drop" else known | ~own[:, None]
    return torch.where(counted, terms, 0).sum(1) / counted.sum(1).clamp_min(1)
