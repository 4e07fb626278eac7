"""How good the logits of a multi-label task are on held-out data, by scikit-learn."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from privfl.metrics.ranking import auroc

MOST_LABELS = 20
"""Up to this many labels each has an AUROC of its own among the metrics."""


def multi_label(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean binary cross-entropy (nats), F1, subset accuracy and AUROC of ``logits`` against ``targets``, [N, labels].

    A label is predicted where its logit is above 0. Micro-F1 counts all labels of all rows together; macro-F1 is the
    mean over labels, of which one without a hit counts 0; subset accuracy is the share of rows whose labels are all
    right. ``test_auroc`` is the mean over the labels that some but not all rows have, followed by that of each label
    (up to 20). Everything but F1 and accuracy is NaN for logits that are not finite.
    """
    from sklearn.metrics import accuracy_score, f1_score

    truth, predicted = targets.cpu().int().numpy(), (logits > 0).cpu().int().numpy()
    found = {
        "test_loss": float(F.binary_cross_entropy_with_logits(logits.double(), targets.double())),
        "test_micro_f1": float(f1_score(truth, predicted, average="micro", zero_division=0)),
        "test_macro_f1": float(f1_score(truth, predicted, average="macro", zero_division=0)),
        "test_subset_accuracy": float(accuracy_score(truth, predicted)),
    }
    labels, finite = range(targets.shape[1]), bool(logits.isfinite().all())
    areas = [auroc(logits[:, label], targets[:, label]) if finite else math.nan for label in labels]
    known = [area for area in areas if not math.isnan(area)]
    found["test_auroc"] = math.fsum(known) / len(known) if known else math.nan
    if len(areas) <= MOST_LABELS:
        found |= {f"test_auroc[{label}]": area for label, area in enumerate(areas)}
    return found


def micro_f1(logits: Tensor, targets: Tensor) -> float:
    """Micro-F1 in [0, 1] of ``logits`` against ``targets``, [N, labels]; 0 where nothing is to be found, or is."""
    from sklearn.metrics import f1_score

    truth, predicted = targets.cpu().int().numpy(), (logits > 0).cpu().int().numpy()
    return float(f1_score(truth, predicted, average="micro", zero_division=0))
