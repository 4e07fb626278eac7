"""Metrics of the order of the scores: top-k accuracy and the area under the ROC curve."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.validation import check_count


def top_k_accuracy(scores: Tensor, targets: Tensor, k: int = 5) -> float:
    """Share of samples whose target is among the ``k`` classes of highest score; ``scores`` [N, classes].

    Of classes with equal scores the lower number counts as higher, so that a constant model gains nothing by ties.

    Raises:
        ConfigError: there is no sample, the shapes do not fit, or ``k`` is below 1.
    """
    check_count("k", k)
    _check(scores, targets)
    ranked = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return float((ranked == targets[:, None]).any(1).double().mean())


def auroc(scores: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve, in [0, 1]; 0.5 is chance, by scikit-learn.

    ``scores`` [N] of the positive class for ``targets`` [N] of 0 and 1, or [N, classes]: then one class against the
    rest, averaged without weights over the classes that some but not all samples have. Clients with few classes have
    no such curve for the others. NaN if no class has one, for instance where all samples share one class.

    Raises:
        ConfigError: there is no sample, or the shapes do not fit.
    """
    from sklearn.metrics import roc_auc_score

    _check(scores[:, None] if scores.dim() == 1 else scores, targets)
    wanted = targets.cpu().numpy()
    values = scores.detach().double().cpu().numpy()
    if scores.dim() == 1:
        columns = [(values, wanted == 1)]
    else:
        columns = [(values[:, label], wanted == label) for label in range(values.shape[1])]
    areas = [float(roc_auc_score(truth, column)) for column, truth in columns if 0 < truth.sum() < len(truth)]
    return math.fsum(areas) / len(areas) if areas else math.nan


def _check(scores: Tensor, targets: Tensor) -> None:
    fits = scores.dim() == 2 and targets.shape == scores.shape[:1] and len(targets) > 0
    if not fits or not bool(torch.isfinite(scores).all()):
        raise ConfigError(
            f"scores have the shape {tuple(scores.shape)} and targets {tuple(targets.shape)}; give finite scores "
            "[N, classes] for targets [N], N ≥ 1"
        )
