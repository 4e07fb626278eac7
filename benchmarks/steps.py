"""What a local step of an algorithm costs, as a multiple of FedAvg's on the same batches.

One client's whole local training in the loop engine on one core, with what an algorithm does before and after its
steps; the algorithms of a case take turns. SuPerFed is in phase II, where it has two end points, and ReBaFL knows all
prototypes, as they do for most of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from workload import interleaved, milliseconds, ratio

from privfl.algorithms import Algorithm, FedAvg, ReBaFL, SuPerFed
from privfl.algorithms.base import Tensors
from privfl.data.dataset import Dataset
from privfl.data.partitions import IID
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.noise.source import NoiseSource

SAMPLES = 300
"""Images of the client that trains."""
PLAIN = "FedAvg"


@dataclass(frozen=True)
class Case:
    """Algorithms that are compared with FedAvg on one model, and what their steps may cost in multiples of FedAvg's."""

    model: str
    channels: int
    training: LocalTraining
    algorithms: dict[str, Algorithm]
    target: float
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""


MIXTURES: dict[str, Algorithm] = {
    "SuPerFed-MM": SuPerFed(start_fraction=0.0),
    "SuPerFed-LM": SuPerFed(mode="lm", start_fraction=0.0),
}
SUPERFED = LocalTraining(learning_rate=0.01, batch_size=10, momentum=0.9, weight_decay=1e-4)
REBAFL = LocalTraining(learning_rate=0.01, batch_size=50, epochs=5, momentum=0.5, weight_decay=5e-4)
CASES = (
    Case("rebafl-fmnist", 1, REBAFL, {"ReBaFL": ReBaFL()}, 1.2),
    Case(
        "two-cnn",
        3,
        SUPERFED,
        MIXTURES,
        1.3,
        {"hidden": (200, 200), "bias": False, "padding": 1, "pool_padding": 1},
        "SuPerFed's TwoCNN",
    ),
    Case("two-nn", 1, SUPERFED, MIXTURES, 1.3, {"hidden": (200, 200, 200), "bias": False}, "SuPerFed's TwoNN"),
)


def task_of(case: Case) -> Task:
    """Random images; what is in them does not matter for time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2 * SAMPLES, case.channels, 28, 28, generator=generator)
    targets = torch.randint(10, (len(inputs),), generator=generator)
    dataset = Dataset("random images", inputs, targets, inputs[:10], targets[:10], 10)
    return Task.from_dataset(dataset, partition=IID(clients=2), model=case.model, model_options=case.options)


def underway(algorithm: Algorithm, server: Tensors) -> Tensors:
    """The server's state in the second round, with every prototype known where there are some."""
    server = algorithm.begin_round(server, 1)
    return {**server, "known": torch.ones_like(server["known"])} if "known" in server else server


def local_training(task: Task, algorithm: Algorithm, training: LocalTraining) -> Callable[[], None]:
    """A function that trains client 0 once, from the same model and state every time."""
    algorithm = algorithm.bind(task.context(rounds=2, seed=0))
    received = algorithm.broadcast(underway(algorithm, algorithm.start(flatten(task.model(0)))))
    channel = RoundChannel.bare(algorithm.fields())
    engine = LoopEngine(task, algorithm, training, channel, workers=1).__enter__()
    context = RoundContext(1, 0, NoiseSource.from_os(), {0: algorithm.initial_client_state(0)})

    def train() -> None:
        (result,) = engine.train([0], received, context)
        if result.upload is None:
            raise SystemExit(f"{algorithm.name} could not be timed: {result.dropped}")

    return train


def measured(case: Case, repeats: int) -> list[dict[str, Any]]:
    """One row for each algorithm of ``case``, with milliseconds of one step."""
    task, training = task_of(case), case.training
    contenders = {PLAIN: FedAvg(), **case.algorithms}
    work = {name: local_training(task, algorithm, training) for name, algorithm in contenders.items()}
    seconds = interleaved(work, repeats)
    steps = training.epochs * -(-SAMPLES // training.batch_size)
    per_step = {name: value / steps for name, value in milliseconds(seconds).items()}
    where = f"{case.label or case.model}, B = {training.batch_size}"
    return [
        {
            "what": f"local step of {name} / FedAvg's, {where}",
            "target": case.target,
            **ratio(seconds, name, PLAIN),
            "milliseconds": {PLAIN: per_step[PLAIN], name: per_step[name]},
        }
        for name in case.algorithms
    ]


def run(repeats: int) -> list[dict[str, Any]]:
    """The rows of all cases."""
    return [row for case in CASES for row in measured(case, 2 * repeats)]
