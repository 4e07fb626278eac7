"""Metrics of one's own: ``metric(outputs, targets)`` gives a number, or several by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from privfl.data.targets import TaskKind
from privfl.errors import ConfigError
from privfl.federation.kinds import KINDS
from privfl.validation import said

Metric = Callable[[Tensor, Tensor], Any]
"""From a model's outputs and the targets of the held-out rows, on the CPU, to a number or to numbers by name."""
_MEND = "write it as metric(outputs, targets) -> a number, or a dictionary of numbers by name"


def metric_name(metric: Metric) -> str:
    """What the number of ``metric`` is called where it gives one only."""
    inner = metric
    while isinstance(inner, partial):
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))


def random_rows(output_shape: tuple[int, ...]) -> int:
    """How many random rows metrics are tried on: enough to mean something, and no more than fit."""
    return max(2, min(64, 10**6 // math.prod(output_shape)))


def check_metrics(metrics: Sequence[Metric], kind: TaskKind, output_shape: tuple[int, ...], targets: Tensor) -> None:
    """Try ``metrics`` on random outputs [n, ...] of the shape ``output_shape`` each and public ``targets`` [n, ...].

    Raises:
        ConfigError: one fails, gives no numbers, or is called as another one or a metric of the ``kind`` is.
    """
    if not metrics:
        return
    targets = targets.cpu()
    outputs = torch.randn(len(targets), *output_shape, generator=torch.Generator().manual_seed(0))
    known = dict.fromkeys(KINDS[kind].measure(outputs, targets), "the task's own metrics")
    for metric in metrics:
        name = metric_name(metric)
        try:
            found = _numbers(metric, outputs, targets)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"the metric {name} fails on {len(outputs)} random rows with {type(error).__name__}: {reason}; {_MEND}"
            ) from error
        for key in found:
            if key in known:
                raise ConfigError(f"the metric {name} gives {key!r}, as {known[key]} do; choose another name")
            known[key] = f"the metric {name}"


def measured(metrics: Sequence[Metric], outputs: Tensor, targets: Tensor, notes: list[str]) -> dict[str, float]:
    """The numbers of ``metrics``, by their keys in a metrics line.

    NaN by the metric's name for one that fails, which ``notes`` then say once: a run must not end for it.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        try:
            found |= _numbers(metric, outputs, targets)
        except Exception as error:
            name, reason = metric_name(metric), " ".join(str(error).split())
            found[f"test_{name}"] = math.nan
            failed = f"the metric {name} failed on the held-out rows and has no value where it did"
            if not any(one.startswith(failed) for one in notes):
                notes.append(f"{failed}; at first with {type(error).__name__}: {reason}")
    return found


def _numbers(metric: Metric, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    given = metric(outputs.detach().cpu(), targets.cpu())
    numbers = given if isinstance(given, Mapping) else {metric_name(metric): given}
    found = {}
    for name, value in numbers.items():
        value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) != 0 else value
        if not isinstance(name, str) or not isinstance(value, Real):
            raise ConfigError(f"the metric {metric_name(metric)} gave {said(given)}; {_MEND}")
        found[f"test_{name}"] = float(value)
    return found
