"""A tiny federation for generative algorithms, direct access to what one round uploads, and PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privfl as pf
from privfl.algorithms.generative.generative_fedavg import NOISE_ROWS, GenerativeFedAvg
from privfl.engine.loop import ClientResult, LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models import build
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream

TRAINING = pf.LocalTraining(learning_rate=1e-2, batch_size=8, epochs=2, weight_decay=1e-3)
SIZES = (20, 5, 11)
CLASSES, PIXELS, LATENT, HIDDEN = 3, 6, 2, 4
SMALL: dict[str, Any] = {"latent": LATENT, "hidden": HIDDEN, "samples_per_class": 2, "classifier_epochs": 1}


def task_of(sizes: tuple[int, ...] = SIZES, *, dtype: torch.dtype = torch.float64) -> Task:
    """Random grey images of 2 x 3, dealt in order."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(sum(sizes), 1, 2, 3, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(CLASSES, (sum(sizes),), generator=generator)
    bounds = np.cumsum([0, *sizes])
    clients = ClientIndex.of([np.arange(low, high) for low, high in pairwise(bounds)])

    def model(seed: int) -> nn.Module:
        return build("logistic", (1, 2, 3), CLASSES, seed=seed).to(dtype)

    return Task("tiny", inputs, targets, clients, inputs[:9], targets[:9], CLASSES, model, "logistic")


def sent(
    task: Task, algorithm: GenerativeFedAvg, training: pf.LocalTraining = TRAINING, *, stacked: bool = False
) -> tuple[dict[str, Tensor], list[ClientResult]]:
    """The server's state at the start of round 0 and what every client sends, by client."""
    bound = algorithm.bind(task.context(10, 0))
    server = bound.start(bound.context.fresh("initial", 0))
    with LoopEngine(task, bound, training, RoundChannel.bare(bound.fields()), workers=1) as loop:
        engine = VectorisedEngine(loop, 3, None) if stacked else loop
        context = RoundContext(0, 0, NoiseSource.from_key(1), {})
        results = list(engine.train(range(len(task.clients)), bound.broadcast(server), context))
    return server, sorted(results, key=lambda result: result.client)


def steps_of(
    task: Task, client: int, training: pf.LocalTraining, tables: int, *, round: int = 0
) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
    """Pixels [B, D], one-hot classes [B, C] and ``tables`` times z [B, latent] of every step of ``client``."""
    rows, order = task.clients[client], torch_stream(0, "batches", round, client)
    draws = Draws(0, tables * NOISE_ROWS * LATENT, torch_stream(0, "algorithm", round, client))
    for _ in range(training.epochs):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(training.batch_size):
            _, normal = draws.next(task.inputs.dtype)
            repeated = [table.repeat(10, 1)[: len(batch)] for table in normal.view(tables, NOISE_ROWS, LATENT)]
            kinds = torch.eye(CLASSES, dtype=task.inputs.dtype)[task.targets[batch]]
            yield task.inputs[batch].flatten(1), kinds, repeated


def perceptron(inputs: int, outputs: int, leak: float) -> nn.Sequential:
    """One hidden layer, out of PyTorch's own."""
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.LeakyReLU(leak), nn.Linear(HIDDEN, outputs)).double()


def adam(parameters: list[nn.Parameter], training: pf.LocalTraining) -> torch.optim.Adam:
    """PyTorch's own, with the decay rates that the algorithms use."""
    rate, decay = training.learning_rate, training.weight_decay
    return torch.optim.Adam(parameters, lr=rate, betas=(0.5, 0.999), weight_decay=decay)
