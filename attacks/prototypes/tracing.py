"""Tracing: was this sample in that class mean?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from scipy.stats import norm
from torch import Tensor

from privfl.errors import ConfigError


@dataclass(frozen=True)
class PublicReference:
    """Mean μ₀ [d] and inverse covariance Σ₀⁻¹ [d, d] of one class's features in the public, float64.

    Build one with :meth:`of`, with features under the very extractor that made the prototype.
    """

    mean: Tensor
    precision: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Self:
        """From public features [N, d] of the class, with the shrinkage covariance of Ledoit and Wolf (2004).

        Shrinkage pulls towards a multiple of the identity, so units are scaled to deviation 1 before and back after:
        the result does not depend on the units' scales. Units that never vary in public are left out of the statistic.

        Raises:
            ConfigError: features are not finite [N, d] with N ≥ 2, or they do not vary at all.
        """
        if features.dim() != 2 or len(features) < 2 or not bool(features.isfinite().all()):
            raise ConfigError(f"public features are {tuple(features.shape)}; give finite [N, d] with at least two rows")
        values = features.detach().cpu().double()
        deviations = values.std(0)
        alive = deviations > 0
        if not bool(alive.any()):
            raise ConfigError("public features do not vary; give different samples of the class")
        from sklearn.covariance import ledoit_wolf

        scaled = (values - values.mean(0))[:, alive] / deviations[alive]
        correlation = torch.from_numpy(ledoit_wolf(scaled.numpy(), assume_centered=True)[0])
        correlation.diagonal().add_(1e-10)  # units that always agree, where the shrinkage is nil
        precision = torch.zeros(len(alive), len(alive), dtype=torch.float64)
        inside = torch.linalg.inv(correlation) / torch.outer(deviations[alive], deviations[alive])
        precision[torch.outer(alive, alive)] = inside.flatten()
        return cls(values.mean(0), precision)

    def under_noise(self, features: float, count: float, samples: float) -> PublicReference:
        """The reference for a prototype whose sums and count were sent with noise, over ``samples`` samples.

        Whitening by Σ₀ alone trusts most where samples vary least, and there noise is all that a prototype has. With
        sums of deviation s and a count of deviation c the covariance is Σ₀ + (s²·I + c²·μ₀μ₀ᵀ)/n: a wrong count moves
        the prototype along μ₀.

        Args:
            features: s, of the noise on each number of the sums.
            count: c.
            samples: n.
        """
        alive = self.precision.diagonal() > 0
        mean = self.mean[alive]
        noise = features**2 * torch.eye(len(mean)).double() + count**2 * torch.outer(mean, mean)
        precision = torch.zeros_like(self.precision)
        inside = torch.linalg.inv(self.precision[alive][:, alive])
        precision[torch.outer(alive, alive)] = torch.linalg.inv(inside + noise / samples).flatten()
        return PublicReference(self.mean, precision)

    def scores(self, candidates: Tensor, prototype: Tensor) -> Tensor:
        """``T = (h(x) − μ₀)ᵀ Σ₀⁻¹ (P̂ − μ₀)`` of every candidate, float64 [M]; larger for members.

        Args:
            candidates: features h(x) [M, d] of samples of the class, under the prototype's extractor.
            prototype: P̂ [d].

        Raises:
            ConfigError: a width differs from the reference's.
        """
        if candidates.shape[1:] != self.mean.shape or prototype.shape != self.mean.shape:
            raise ConfigError(
                f"candidates are {tuple(candidates.shape)} and the prototype {tuple(prototype.shape)}; the reference "
                f"has {len(self.mean)} features"
            )
        away = self.precision @ (prototype.detach().cpu().double() - self.mean)
        found: Tensor = (candidates.detach().cpu().double() - self.mean) @ away
        return found

    def effective_dimension(self, features: Tensor) -> float:
        """``(tr A)² / tr A²`` with A = Σ₀⁻¹Σ, Σ the covariance of other features [N, d] of the class.

        d if the reference's covariance is right; less where few public samples, shrinkage or another population leave
        the features correlated after whitening. Both traces are unbiased but for the estimated mean.

        Raises:
            ConfigError: fewer than two rows, or another width than the reference's.
        """
        if features.dim() != 2 or len(features) < 2 or features.shape[1:] != self.mean.shape:
            raise ConfigError(f"features are {tuple(features.shape)}; give [N, {len(self.mean)}] with N ≥ 2")
        centred = features.detach().cpu().double()
        centred = centred - centred.mean(0)
        gram = centred @ self.precision @ centred.T
        rows = len(gram)
        trace = float(gram.diagonal().sum()) / (rows - 1)
        square = float(gram.square().sum() - gram.diagonal().square().sum()) / (rows * (rows - 1))
        return trace**2 / square


def separation(dimension: float, count: float) -> float:
    """``d' = √(d_eff / n)``: by how many standard deviations members of a mean over n samples score higher.

    Raises:
        ConfigError: ``dimension`` or ``count`` is not positive.
    """
    if not (dimension > 0 and count > 0):
        raise ConfigError(f"dimension is {dimension!r} and count {count!r}; give positive numbers")
    return math.sqrt(dimension / count)


def expected_auc(dimension: float, count: float) -> float:
    """``Φ(d'/√2)``: the area under the tracing attack's ROC curve for Gaussian features of ``dimension``.

    >>> [round(expected_auc(128, n), 3) for n in (500, 100, 20)]
    [0.64, 0.788, 0.963]
    """
    return float(norm.cdf(separation(dimension, count) / math.sqrt(2)))
