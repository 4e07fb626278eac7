"""Whether a classifier is as sure as it is right: expected and maximum calibration error over bins of confidence.

Guo et al., *On calibration of modern neural networks* (ICML 2017); SuPerFed (13) and (14) in
``docs/reference/equations.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.validation import check_count

BINS = 15
"""Bins of the confidence, of equal width."""


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: bin m of M covers confidences in ((m − 1)/M, m/M]. All tensors are float64 [bins].

    Args:
        counts: samples of each bin.
        accuracy: share of them that is classified right; 0 in an empty bin.
        confidence: their mean confidence; 0 in an empty bin.
    """

    counts: Tensor
    accuracy: Tensor
    confidence: Tensor

    @property
    def gaps(self) -> Tensor:
        """``|accuracy − confidence|`` of each bin [bins]; 0 in an empty bin."""
        return (self.accuracy - self.confidence).abs()


def reliability(probabilities: Tensor, targets: Tensor, bins: int = BINS) -> Reliability:
    """The reliability diagram of ``probabilities`` [N, classes] against ``targets`` [N].

    The confidence of a sample is its largest probability, which is above 0, so every sample falls into a bin.

    Raises:
        ConfigError: there is no sample, the shapes do not fit, a probability is outside [0, 1], or ``bins`` < 1.
    """
    check_count("bins", bins)
    if probabilities.dim() != 2 or targets.shape != probabilities.shape[:1] or len(targets) == 0:
        raise ConfigError(
            f"probabilities have the shape {tuple(probabilities.shape)} and targets {tuple(targets.shape)}; give "
            "[N, classes] and [N] with N ≥ 1"
        )
    if not (float(probabilities.min()) >= 0 and float(probabilities.max()) <= 1 + 1e-6):
        raise ConfigError(
            f"probabilities range from {float(probabilities.min()):g} to {float(probabilities.max()):g}; give the "
            "soft-max of the logits"
        )
    confidences, predictions = probabilities.double().clamp_max(1).max(1)
    right = (predictions == targets).double()
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidences.device) / bins
    # On CUDA sums by bins come in any order, and not at all where runs are to repeat bit by bit.
    places, right, confidences = (one.cpu() for one in (torch.bucketize(confidences, edges), right, confidences))
    counts = torch.bincount(places, minlength=bins).double()
    present = counts.clamp_min(1)
    return Reliability(
        counts,
        torch.bincount(places, weights=right, minlength=bins) / present,
        torch.bincount(places, weights=confidences, minlength=bins) / present,
    )


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = BINS) -> float:
    """ECE in [0, 1]: the mean gap of the bins, weighted by how many samples they hold; eq. (13).

    Over the whole data set. SuPerFed's code averages it over batches of 10, which inflates it.
    """
    found = reliability(probabilities, targets, bins)
    return float((found.counts * found.gaps).sum() / found.counts.sum())


def maximum_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = BINS) -> float:
    """MCE in [0, 1]: the largest gap of a bin that holds a sample; eq. (14)."""
    return float(reliability(probabilities, targets, bins).gaps.max())
