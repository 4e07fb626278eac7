"""The work that is timed: 100 clients of 300 images 28×28, and a bare PyTorch loop over the same batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from privfl.algorithms import FedAvg
from privfl.data.dataset import Dataset
from privfl.data.partitions import IID
from privfl.engine.choice import Engine, choose
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.task import Task
from privfl.models.flat_network import FlatNetwork, flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.probe import check_per_sample
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream

CLIENTS, SAMPLES, COHORT = 100, 300, 10
Seconds = dict[str, list[float]]


def make_task(model: str, clients: int = CLIENTS, samples: int = SAMPLES) -> Task:
    """Random images of Fashion-MNIST's shape; what is in them does not matter for time or memory."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(clients * samples, 1, 28, 28, generator=generator)
    targets = torch.randint(10, (len(inputs),), generator=generator)
    dataset = Dataset("random images", inputs, targets, inputs[:100], targets[:100], 10)
    return Task.from_dataset(dataset, partition=IID(clients=clients), model=model)


class BareLoop:
    """FedAvg without any framework: the floor."""

    def __init__(self, task: Task, batch_size: int, cohort: int = COHORT) -> None:
        self.batch_size, self.cohort = batch_size, list(range(cohort))
        self.network = task.model(0)
        self.parameters = list(self.network.parameters())
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        rows = [task.clients[client] for client in self.cohort]
        self.shards = [(task.inputs[part].contiguous(), task.targets[part].contiguous()) for part in rows]

    def round(self) -> None:
        """One round: load, train, add up, average."""
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        for client, (inputs, targets) in zip(self.cohort, self.shards, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.start)
            optimizer = torch.optim.SGD(self.parameters, lr=0.05)
            order = torch.randperm(len(inputs), generator=torch_stream(0, "batches", 0, client))
            for rows in order.split(self.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(self.network(inputs[rows]), targets[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, [parameter.detach() for parameter in self.parameters])
        torch._foreach_div_(total, len(self.cohort))


class EngineRound:
    """The same round by the loop engine, selection, aggregation and streams included.

    With ``rounds`` the engine is the one that ``engine="auto"`` chooses for a run of so many.
    """

    def __init__(
        self,
        task: Task,
        batch_size: int,
        workers: int,
        dpsgd: DPSGD | None = None,
        cohort: int = COHORT,
        rounds: int = 0,
    ) -> None:
        self.algorithm, self.cohort = FedAvg(weighting="uniform"), list(range(cohort))
        self.server = self.algorithm.start(flatten(task.model(0)))
        way = None if dpsgd is None else check_per_sample(FlatNetwork(task.model(0)), task.loss, *task.probe(4))
        channel = RoundChannel.bare(self.algorithm.fields(), dpsgd)
        training = LocalTraining(batch_size=batch_size)
        loop = LoopEngine(task, self.algorithm, training, channel, way=way, workers=workers).__enter__()
        self.engine: Engine = loop
        if rounds:
            received = self.algorithm.broadcast(self.server)
            self.engine = choose("auto", loop, way, received, cohort=cohort, rounds=rounds).build(loop, way)
        self.source = NoiseSource.from_os()
        self.number = 0

    def round(self) -> None:
        """One round."""
        received = self.algorithm.broadcast(self.server)
        total = torch.zeros_like(received["parameters"])
        self.number += 1
        for result in self.engine.train(self.cohort, received, RoundContext(self.number, 0, self.source, {})):
            assert result.upload is not None
            total.add_(result.upload["update"])
        self.server = {"parameters": self.server["parameters"] + total / len(self.cohort)}


class StepTimer:
    """One clipped-gradient step of privfl's door on a fixed batch, for comparison with Opacus."""

    def __init__(self, task: Task, batch_size: int) -> None:
        network = FlatNetwork(task.model(0))
        way = check_per_sample(network, task.loss, *task.probe(4))
        self.network = FlatNetwork(task.model(0))
        self.clipper = PerSampleGradients(self.network, way)
        self.inputs, self.targets, self.loss = task.inputs[:batch_size], task.targets[:batch_size], task.loss
        self.noise = NoiseSource.from_os().stream("benchmark")
        self.batch_size = batch_size

    def step(self) -> None:
        """Clip, add up, noise, divide, descend."""
        with torch.no_grad():
            self.clipper.clipped_sum(self.loss, self.inputs, self.targets, 1.0)
            self.noise.add_gaussian_(self.network.gradient, 1.0)
            self.network.flat.add_(self.network.gradient.div_(self.batch_size), alpha=-0.001)


def interleaved(work: Mapping[str, Callable[[], None]], repeats: int, warmup: int = 1) -> Seconds:
    """Seconds of every piece of work, ``repeats`` times, one after the other so that all meet the same machine."""
    for run in work.values():
        for _ in range(warmup):
            run()
    seconds: Seconds = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: Seconds, over: str, under: str) -> dict[str, float]:
    """Median, least and largest of the ratios within each repeat."""
    ratios = np.array(seconds[over]) / np.array(seconds[under])
    return {"median": float(np.median(ratios)), "min": float(ratios.min()), "max": float(ratios.max())}


def milliseconds(seconds: Seconds) -> dict[str, float]:
    """Median milliseconds of every piece of work."""
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}
