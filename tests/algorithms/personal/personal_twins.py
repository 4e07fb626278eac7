"""What the tests of personalised methods share: the batches that a client draws, plain gradients, and quadratics."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from privfl.federation.task import Task
from privfl.randomness import torch_stream
from tests.algorithms.federation import full_gradient
from tests.algorithms.test_baselines import quadratic_task


def drawn(task: Task, client: int, size: int, passes: int, *, round: int = 0, seed: int = 0) -> Iterator[Tensor]:
    """The rows of a client's batches in one round, as the seed shuffles them."""
    rows, order = task.clients[client], torch_stream(seed, "batches", round, client)
    for _ in range(passes):
        yield from rows[torch.randperm(len(rows), generator=order)].split(size)


def slope(task: Task, parameters: Tensor, rows: Tensor) -> Tensor:
    """Gradient of the mean loss over ``rows``, by plain autograd."""
    return full_gradient(task, parameters, rows) / len(rows)


def quadratics() -> tuple[Task, Tensor, Tensor, Tensor]:
    """Four clients F_k(w) = ½(w − a_k)ᵀA_k(w − a_k), the A_k [4, 3, 3], the a_k [4, 3], and the optimum of ΣF_k."""
    task, optimum = quadratic_task()
    optima, curvatures = task.inputs.split([3, 9], dim=1)
    return task, curvatures.view(-1, 3, 3), optima, optimum


def pulled(curvature: Tensor, own: Tensor, near: Tensor, weight: float) -> Tensor:
    """``argmin_v ½(v − own)ᵀA(v − own) + (weight/2)·‖v − near‖²``, by solving its normal equations."""
    eye = torch.eye(len(own), dtype=own.dtype)
    return torch.linalg.solve(curvature + weight * eye, curvature @ own + weight * near)
