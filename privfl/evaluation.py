"""How good a federation's model is: loss, accuracy and macro-F1 on the held-out data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Tensors
from privfl.metrics.classification import classification
from privfl.task import Task


class Predictor(Protocol):
    """Anything that computes logits; every engine does."""

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` [size] on ``inputs`` [N, ...]."""


def evaluate(
    task: Task, algorithm: Algorithm, predictor: Predictor, server: Tensors, kept: Mapping[int, Tensors]
) -> dict[str, float]:
    """Metrics of the server's model or, for an ensemble, of the mean soft-max output of the clients' own models."""
    inputs, targets = task.test_inputs, task.test_targets
    if not algorithm.ensemble:
        return classification(predictor.logits(algorithm.evaluated(server), inputs), targets)
    total = torch.zeros(len(inputs), task.classes, device=inputs.device)
    for client in sorted(kept):
        total += predictor.logits(kept[client]["parameters"], inputs).softmax(1)
    return classification((total / max(len(kept), 1)).clamp_min(1e-12).log(), targets)
