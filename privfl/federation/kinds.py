"""What follows from the kind of a task: its loss, its metrics, and the one that says which of two models is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privfl.data.targets import IGNORED, TaskKind
from privfl.federation.losses import binary_cross_entropy, cross_entropy, mean_squared_error, token_cross_entropy
from privfl.metrics.classification import accuracy, classifier
from privfl.metrics.multi_label import micro_f1, multi_label
from privfl.metrics.next_token import next_token, perplexity, token_accuracy, token_sums
from privfl.metrics.personalisation import macro_f1
from privfl.metrics.regression import mae, regression, rmse
from privfl.privacy.loss import Loss

Score = Callable[[Tensor, Tensor], float]
"""From what a model made of rows, and their targets, to one number."""


@dataclass(frozen=True)
class Headline:
    """The metric by which models of one kind of task are compared.

    Args:
        name: as in ``test_accuracy``, ``local_accuracy`` and ``personal_accuracy`` of a metrics line, without prefix.
        higher_is_better: whether more is better.
    """

    name: str
    higher_is_better: bool

    @property
    def test(self) -> str:
        """Its key in a metrics line, for the held-out rows."""
        return f"test_{self.name}"


@dataclass(frozen=True)
class Kind:
    """What belongs to one kind of task.

    Args:
        loss: that models are trained by unless another one is given.
        headline: the metric that models are compared by.
        metrics: of all held-out rows, by their names in a metrics line.
        scores: of one client's rows, by name, the headline first.
        condense: what the metrics read instead of the outputs [n, ...], for so many rows at a time; ``None``: outputs.
        to_mean: of an ensemble's outputs, what is averaged over its models.
        from_mean: outputs from that average.
    """

    loss: Loss
    headline: Headline
    metrics: Callable[[Tensor, Tensor], dict[str, float]]
    scores: Mapping[str, Score]
    to_mean: Callable[[Tensor], Tensor]
    from_mean: Callable[[Tensor], Tensor]
    condense: Callable[[Tensor, Tensor], Tensor] | None = None

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The metrics of all ``outputs`` [N, ...] against ``targets`` [N, ...]."""
        return self.metrics(outputs if self.condense is None else self.condense(outputs, targets), targets)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(1e-12).log()


def _as_it_is(outputs: Tensor) -> Tensor:
    return outputs


def _logit(probabilities: Tensor) -> Tensor:
    return probabilities.logit(1e-7)


KINDS: Mapping[TaskKind, Kind] = {
    "classification": Kind(
        cross_entropy,
        Headline("accuracy", higher_is_better=True),
        classifier,
        {"accuracy": accuracy, "macro_f1": macro_f1},
        _probabilities,
        _log,
    ),
    "regression": Kind(
        mean_squared_error,
        Headline("rmse", higher_is_better=False),
        regression,
        {"rmse": rmse, "mae": mae},
        _as_it_is,
        _as_it_is,
    ),
    "multi-label": Kind(
        binary_cross_entropy,
        Headline("micro_f1", higher_is_better=True),
        multi_label,
        {"micro_f1": micro_f1},
        torch.sigmoid,
        _logit,
    ),
    "next-token": Kind(
        token_cross_entropy,
        Headline("perplexity", higher_is_better=False),
        next_token,
        {"perplexity": perplexity, "token_accuracy": token_accuracy},
        _probabilities,
        _log,
        token_sums,
    ),
}
"""Each kind of task by its name."""


def output_shape(kind: TaskKind, outputs: int, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what a model gives for one row."""
    return (input_shape[0], outputs) if kind == "next-token" else (outputs,)


def random_targets(
    kind: TaskKind, rows: int, outputs: int, input_shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Targets [rows, ...] as a task of this ``kind`` has them, for checks of models and losses.

    Sequences have different numbers of targets that count, so that a loss that divides by those of a batch shows.
    """
    if kind == "classification":
        return torch.randint(outputs, (rows,), generator=generator)
    if kind == "regression":
        return torch.randn(rows, outputs, generator=generator)
    if kind == "multi-label":
        return torch.randint(2, (rows, outputs), generator=generator).float()
    length = input_shape[0]
    targets = torch.randint(outputs, (rows, length), generator=generator)
    kept = torch.arange(length) < length - torch.arange(rows)[:, None] % length
    return targets.where(kept, IGNORED)
