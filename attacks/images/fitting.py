"""Fitting an attacker's own networks to auxiliary data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.randomness import process_generators

BatchLoss = Callable[..., Tensor]
"""From one batch of each array to a scalar."""


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Let the initial weights of modules that are built inside depend on ``generator`` and on nothing else."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with process_generators(seed):
        yield


def fit(
    module: nn.Module,
    loss: BatchLoss,
    arrays: Sequence[Tensor],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
) -> list[float]:
    """Minimise the mean of ``loss`` over shuffled batches by Adam; ``module`` is left in evaluation mode.

    Args:
        module: whose parameters are trained, in place.
        loss: takes one batch of each of ``arrays`` and returns a scalar.
        arrays: tensors with the same number N ≥ 2 of rows.
        epochs: passes over the rows, at least 1. A last batch of one row is left out, which BatchNorm could not take.
        generator: decides the order of the rows.

    Returns:
        The mean loss of each epoch.

    Raises:
        ConfigError: arrays of different lengths, of fewer than two rows, or impossible numbers.
    """
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or min(lengths) < 2:
        raise ConfigError(f"auxiliary arrays have {sorted(lengths)} rows; give equally many of each, at least 2")
    if epochs < 1 or batch_size < 2 or not learning_rate > 0:
        raise ConfigError(
            f"epochs {epochs}, batch_size {batch_size}, learning_rate {learning_rate:g} cannot train a network; give "
            "at least 1, at least 2, and a positive number"
        )
    parameters = list(module.parameters())
    optimiser = torch.optim.Adam(parameters, lr=learning_rate)
    curve = []
    module.train()
    for _ in range(epochs):
        total, seen = 0.0, 0
        for rows in torch.split(torch.randperm(min(lengths), generator=generator), batch_size):
            if len(rows) < 2:
                continue
            value = loss(*(array[rows] for array in arrays))
            for parameter, gradient in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
                parameter.grad = gradient
            optimiser.step()
            total, seen = total + float(value.detach()) * len(rows), seen + len(rows)
        curve.append(total / seen)
    module.eval()
    return curve
