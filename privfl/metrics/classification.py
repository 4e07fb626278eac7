"""How good a classifier's logits are on held-out data."""

from __future__ import annotations

import torch.nn.functional as F
from sklearn.metrics import f1_score
from torch import Tensor


def classification(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean cross-entropy (nats), accuracy and macro-F1 of ``logits`` [N, classes] against ``targets`` [N].

    Macro-F1 averages over the classes that occur in targets or predictions; a class without a hit counts 0.
    """
    predictions = logits.argmax(1)
    return {
        "test_loss": float(F.cross_entropy(logits.double(), targets)),
        "test_accuracy": float((predictions == targets).double().mean()),
        "test_macro_f1": float(f1_score(targets.cpu(), predictions.cpu(), average="macro", zero_division=0)),
    }
