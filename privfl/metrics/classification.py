"""How good a classifier's logits are on held-out data."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from privfl.metrics.calibration import expected_calibration_error, maximum_calibration_error
from privfl.metrics.personalisation import macro_f1
from privfl.metrics.ranking import auroc, top_k_accuracy

MOST_OF_FEW = 5
"""Top-5 accuracy says something where there are more classes than that."""


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """Share of rows whose highest of ``logits`` [N, classes] is that of their target [N]."""
    return float((logits.argmax(1) == targets).double().mean())


def classification(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean cross-entropy (nats), accuracy and macro-F1 of ``logits`` [N, classes] against ``targets`` [N].

    Macro-F1 averages over the classes that occur in targets or predictions; a class without a hit counts 0.
    """
    return {
        "test_loss": float(F.cross_entropy(logits.double(), targets)),
        "test_accuracy": accuracy(logits, targets),
        "test_macro_f1": macro_f1(logits, targets),
    }


def classifier(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """The metrics of :func:`classification`, and those of confidence and order.

    They are the calibration errors, top-5 accuracy for more than five classes, and AUROC for two; NaN for a model that
    has diverged.
    """
    classes = logits.shape[1]
    found = {
        **classification(logits, targets),
        "test_ece": math.nan,
        "test_mce": math.nan,
        **({"test_top5": math.nan} if classes > MOST_OF_FEW else {}),
        **({"test_auroc": math.nan} if classes == 2 else {}),
    }
    if not bool(logits.isfinite().all()):
        return found
    probabilities = logits.double().softmax(1)
    found["test_ece"] = expected_calibration_error(probabilities, targets)
    found["test_mce"] = maximum_calibration_error(probabilities, targets)
    if "test_top5" in found:
        found["test_top5"] = top_k_accuracy(logits, targets, MOST_OF_FEW)
    if "test_auroc" in found:
        found["test_auroc"] = auroc(logits[:, 1] - logits[:, 0], targets)
    return found
