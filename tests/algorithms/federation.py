"""A tiny federation on real digits, and direct access to what one round uploads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from privfl.algorithms import Algorithm
from privfl.algorithms.base import Tensors
from privfl.data.catalog import load_dataset
from privfl.engine.loop import ClientResult, LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task, cross_entropy
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.noise.source import NoiseSource


def digits_task(sizes: Sequence[int], *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Task:
    """Digits as vectors, the first Σ sizes of them dealt to clients of these sizes, and a linear model."""
    data = load_dataset("digits")
    rows = np.random.default_rng(seed).permutation(len(data.targets))[: sum(sizes)]
    return task_of(data.inputs.flatten(1)[rows].to(dtype), data.targets[rows], sizes)


def task_of(inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> Task:
    """Rows in order, dealt to clients of these sizes, with a zero-initialised linear model."""
    bounds = np.cumsum([0, *sizes])

    def model(seed: int) -> nn.Module:
        layer = nn.Linear(inputs.shape[1], 10, dtype=inputs.dtype)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    parts = [np.arange(low, high) for low, high in pairwise(bounds)]
    return Task("tiny", inputs, targets, ClientIndex.of(parts), inputs[:50], targets[:50], 10, model, "linear")


def layered_task(sizes: Sequence[int], *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Task:
    """Digits as vectors, and a small network with a body and a head."""

    def model(seed: int) -> nn.Module:
        torch.default_generator.manual_seed(seed)  # without the stacks that PyTorch formats for devices not there
        return Network(nn.Sequential(nn.Linear(64, 12), nn.Tanh()), nn.Linear(12, 10)).to(dtype)

    return replace(digits_task(sizes, seed=seed, dtype=dtype), model=model, model_name="layered")


def uploads(
    task: Task,
    algorithm: Algorithm,
    received: Tensors,
    *,
    training: LocalTraining | None = None,
    dpsgd: DPSGD | None = None,
    round: int = 0,
    seed: int = 0,
    clients: Sequence[int] | None = None,
) -> list[ClientResult]:
    """What every client sends in one round, straight from the engine."""
    algorithm = algorithm.bind(task.context(round + 1, seed))
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    way = None if dpsgd is None else "layers"
    chosen = range(len(task.clients)) if clients is None else clients
    with LoopEngine(task, algorithm, training or LocalTraining(), channel, way=way, workers=1) as engine:
        return list(engine.train(chosen, received, RoundContext(round, seed, NoiseSource.from_key(seed), {})))


def uploads_of_rounds(task: Task, algorithm: Algorithm, received: Tensors, rounds: int) -> list[list[ClientResult]]:
    """What every client sends in each of ``rounds`` rounds that all begin with ``received``, from one engine."""
    algorithm = algorithm.bind(task.context(rounds, 0))
    channel, everybody, source = (
        RoundChannel.bare(algorithm.fields()),
        range(len(task.clients)),
        NoiseSource.from_key(0),
    )
    with LoopEngine(task, algorithm, LocalTraining(), channel, workers=1) as engine:
        return [list(engine.train(everybody, received, RoundContext(round, 0, source, {}))) for round in range(rounds)]


def initial(task: Task) -> Tensor:
    """The initial parameters."""
    return flatten(task.model(0))


def full_gradient(task: Task, parameters: Tensor, rows: Tensor | None = None) -> Tensor:
    """Gradient of the *sum* of the losses over ``rows`` (default all), by plain autograd."""
    network = task.model(0)
    torch.nn.utils.vector_to_parameters(parameters, network.parameters())
    chosen = torch.arange(len(task.targets)) if rows is None else rows
    loss = cross_entropy(network, task.inputs[chosen], task.targets[chosen]).sum()
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(network.parameters()))])
