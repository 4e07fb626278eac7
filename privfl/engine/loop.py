"""The loop engine: clients one by one on every core, one intra-op thread each, on one copy of the data.

Results come back in the order of the cohort and at most two per worker wait, so sums are bit-identical for any number
of workers and memory does not grow with the cohort.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.dropout import StreamDropout, give_dropout_streams
from privfl.parameters import FlatNetwork
from privfl.privacy.channel import Channel
from privfl.privacy.door import Door, DoorLog, LocalTraining, private_plan
from privfl.privacy.noise import NoiseSource
from privfl.privacy.per_sample import PerSampleGradients, Way
from privfl.randomness import torch_stream
from privfl.task import Task

ROWS_PER_EVALUATION = 1000
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ClientResult:
    """What came back from one client: its upload after the client's side of the channel, or why there is none."""

    client: int
    upload: Tensors | None
    kept: Tensors
    log: DoorLog
    dropped: str = ""


@dataclass(frozen=True)
class Workspace:
    """What one worker owns: a network trained in place, its clipper, and its drop-out layers."""

    own: FlatNetwork
    clipper: PerSampleGradients | None
    dropout: list[StreamDropout]

    @classmethod
    def build(cls, module: nn.Module, device: torch.device, way: Way | None) -> Workspace:
        """A workspace around ``module``; ``way`` is how per-sample gradients are formed, ``None`` without DP-SGD."""
        dropout = give_dropout_streams(module)
        own = FlatNetwork(module, device)
        return cls(own, None if way is None else PerSampleGradients(own, way), dropout)

    def start(self, stream: torch.Generator) -> None:
        """Ready the network for training one client whose drop-out draws from ``stream``."""
        self.own.module.train()
        for layer in self.dropout:
            layer.generator = stream


class LoopEngine:
    """Trains cohorts; use as a context manager, so that threads and thread settings are given back."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        training: LocalTraining,
        channel: Channel,
        *,
        way: Way | None = None,
        workers: int | None = None,
    ) -> None:
        """``way`` forms per-sample gradients (``None`` without DP-SGD); ``workers`` defaults to all cores."""
        self.task, self.algorithm, self.training, self.channel = task, algorithm, training, channel
        self.device = task.inputs.device
        self.workers = 1 if self.device.type == "cuda" else (workers or cores())
        self._spaces: SimpleQueue[Workspace] = SimpleQueue()
        for _ in range(self.workers):
            self._spaces.put(Workspace.build(task.model(0), self.device, way))

    def __enter__(self) -> LoopEngine:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def train(
        self,
        cohort: Iterable[int],
        received: Tensors,
        kept: Mapping[int, Tensors],
        *,
        round: int,
        seed: int,
        source: NoiseSource,
    ) -> Iterator[ClientResult]:
        """The results of ``cohort``, in its order."""

        def one(space: Workspace, client: int) -> ClientResult:
            return self._train_one(space, client, received, kept.get(client, {}), round, seed, source)

        return self._in_order(one, cohort)

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` on ``inputs`` [N, ...], in evaluation mode."""

        def one(space: Workspace, rows: Tensor) -> Tensor:
            network = space.own
            network.load(parameters)
            network.module.eval()
            with torch.no_grad():
                logits: Tensor = network.module(rows)
            return (
                logits.detach().clone()
            )  # a model may return a view of its parameters, which the next load overwrites

        return torch.cat(list(self._in_order(one, torch.split(inputs, ROWS_PER_EVALUATION))))

    def _in_order(self, work: Callable[[Workspace, Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        def with_space(item: Item) -> Answer:
            space = self._spaces.get()
            try:
                return work(space, item)
            finally:
                self._spaces.put(space)

        waiting: deque[Future[Answer]] = deque()
        for item in items:
            waiting.append(self._pool.submit(with_space, item))
            if len(waiting) > 2 * self.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _train_one(
        self,
        space: Workspace,
        client: int,
        received: Tensors,
        kept: Tensors,
        round: int,
        seed: int,
        source: NoiseSource,
    ) -> ClientResult:
        task, algorithm, training = self.task, self.algorithm, self.training
        dpsgd = self.channel.dpsgd
        door = Door(
            client,
            task.clients[client],
            task.inputs,
            task.targets,
            space.own,
            space.clipper,
            task.loss,
            dpsgd,
            torch_stream(seed, "batches", round, client),
            None if dpsgd is None else source.stream("door", round, client),
        )
        space.start(torch_stream(seed, "dropout", round, client, device=self.device))
        with torch.no_grad():
            local = algorithm.begin(received, kept, training)
            space.own.load(local["parameters"])
            local["parameters"] = space.own.flat
            for batch in door.batches(algorithm.plan(private_plan(training, dpsgd, client), received)):
                algorithm.step(local, received, batch, door, training)
            upload = algorithm.finish(local, received, training)
        problem = self._problem(upload, received)
        if problem and not self.channel.repairs:
            return ClientResult(client, None, {}, door.log, problem)
        noise = source.stream("channel", round, client)
        upload = self.channel.at_client(upload, noise, like=received["parameters"], broken=bool(problem))
        keeps = {name: local[name].clone() for name in algorithm.keeps}
        return ClientResult(client, upload, keeps, door.log)

    def _problem(self, upload: Any, received: Tensors) -> str:
        """Why this upload cannot be used, in a few words; empty if it can."""
        for field in self.channel.fields:
            value = upload.get(field.name) if isinstance(upload, dict) else None
            if not isinstance(value, Tensor):
                return f"sent no '{field.name}'"
            if field.name == "update" and value.shape != received["parameters"].shape:
                return f"sent '{field.name}' of shape {tuple(value.shape)}"
            if not bool(torch.isfinite(value).all()):
                return f"sent a non-finite '{field.name}'"
        return ""
