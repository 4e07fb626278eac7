"""A tiny federation for FedEvg, and direct access to what one round uploads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privfl as pf
from privfl.algorithms.generative.fedevg import FedEvg
from privfl.engine.loop import ClientResult, LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models import build
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.noise.source import NoiseSource

TRAINING = pf.LocalTraining(learning_rate=1e-3, batch_size=8, epochs=2, weight_decay=1e-4)
SIZES = (20, 5, 11)
CLASSES = 3


def task_of(sizes: tuple[int, ...] = SIZES, *, width: int = 4, seed: int = 0) -> Task:
    """Random grey images of 6 x 6 in float64, dealt in order."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(sum(sizes), 1, 6, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (sum(sizes),), generator=generator)
    bounds = np.cumsum([0, *sizes])
    clients = ClientIndex.of([np.arange(low, high) for low, high in pairwise(bounds)])

    def model(seed: int) -> nn.Module:
        return build("energy-cnn", (1, 6, 6), CLASSES, width=width, seed=seed).double()

    return Task("tiny", inputs, targets, clients, inputs[:9], targets[:9], CLASSES, model, "energy-cnn")


def small(**options: Any) -> FedEvg:
    return FedEvg(
        **{"samples_per_class": 2, "step_size": 1.0, "last_step_size": 0.1, "classifier_epochs": 1, **options}
    )


def settings_of(algorithm: FedEvg) -> dict[str, Any]:
    """The hyper-parameters of ``algorithm``, to build a watched one of the same."""
    return {entry.name: getattr(algorithm, entry.name) for entry in fields(algorithm)}


def sent(
    task: Task, algorithm: FedEvg, *, round: int = 0, vectorised: bool = False, dpsgd: pf.DPSGD | None = None
) -> tuple[dict[str, Tensor], list[ClientResult]]:
    """The server's state at the start of ``round`` and what every client sends, by client."""
    bound = algorithm.bind(task.context(10, 0))
    server = bound.begin_round(bound.start(bound.context.fresh("initial", 0)), round)
    channel, way = RoundChannel.bare(bound.fields(), dpsgd), None if dpsgd is None else "vmap"
    with LoopEngine(task, bound, TRAINING, channel, way=way, workers=1) as loop:
        engine = VectorisedEngine(loop, 3, way) if vectorised else loop
        context = RoundContext(round, 0, NoiseSource.from_key(1), {})
        results = list(engine.train(range(len(task.clients)), bound.broadcast(server), context))
    return server, sorted(results, key=lambda result: result.client)


@dataclass(frozen=True)
class Watched(FedEvg):
    """Notes the chain around every step (loop engine, one worker), and what it was advanced to."""

    seen: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def step(self, local: Any, received: Any, batch: Any, client: Any, training: Any) -> None:
        before = local["chain"].clone()
        super().step(local, received, batch, client, training)
        chosen = batch.uniform.argsort()[: min(training.batch_size, len(before))]
        self.seen.append((before, local["chain"].clone(), chosen, received["images"]))
