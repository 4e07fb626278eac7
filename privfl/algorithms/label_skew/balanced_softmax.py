"""The relaxed balanced soft-max of ReBaFL: cross-entropy on logits shifted by the log of a smoothed label prior."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.privacy.loss import of_logits


def smoothed_prior(counts: Tensor, epsilon: float) -> Tensor:
    """``p̂(c) = (1 − ε)·n_c / Σ n + ε / C``, equation (10) of ReBaFL; [C] from label counts ``counts`` [C].

    ε = 1 is the uniform prior (plain soft-max), ε = 0 the label frequencies (balanced soft-max: 0 for a missing class).
    Counts may be noisy: negative ones count as 0, and where nothing is left the prior is uniform.
    """
    classes = len(counts)
    counts = counts.clamp_min(0)
    total = counts.sum()
    frequencies = torch.where(total > 0, counts / torch.where(total > 0, total, 1), 1 / classes)
    return (1 - epsilon) * frequencies + epsilon / classes


def balanced_cross_entropy(logits: Tensor, targets: Tensor, log_prior: Tensor) -> Tensor:
    """``−log softmax(z + log p̂)_y`` of every row, equation (9) of ReBaFL.

    A class whose log-prior is −∞ is masked exactly: its logit has gradient 0. Finite for every finite logit, as long as
    the target itself is not masked. The released code exponentiates raw logits and adds 1e-8 to the denominator, which
    overflows and is slightly biased; this is a log-soft-max of shifted logits.

    Args:
        logits: z [B, C].
        targets: y [B], integers below C.
        log_prior: log p̂ [C].

    Returns:
        One term per row [B], in nats.
    """
    return F.cross_entropy(logits + log_prior, targets, reduction="none")


@of_logits
def balanced_loss(network: nn.Module, inputs: Tensor, targets: Tensor, log_prior: Tensor) -> Tensor:
    """:func:`balanced_cross_entropy` of the network's logits, as a loss for the door."""
    return balanced_cross_entropy(network(inputs), targets, log_prior)


def label_counts(network: nn.Module, inputs: Tensor, targets: Tensor, *, classes: int) -> Tensor:
    """A statistic for the door: one-hot labels [B, ``classes``] in float64; their total is the label histogram.

    The L2 norm of a row is 1.
    """
    return F.one_hot(targets, classes).to(torch.float64)
