"""What runs in a process of a Ray cluster: one worker that holds the data and trains its share of every cohort.

A worker is built from a recipe of the task, so no example ever passes Ray. It returns partial sums, which are the same
whoever adds them up (:mod:`privfl.engine.order_free_sum`), and, of fields that the server needs from each client, the
values. Arrays pass as NumPy's, which Ray shares between the processes of one machine without copying.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections import ChainMap, Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privfl.algorithms.base import Algorithm, Tensors
from privfl.engine.aggregation import CohortSums, PlainAggregator, aggregate_uploads
from privfl.engine.choice import Engine
from privfl.engine.loop import LoopEngine
from privfl.engine.order_free_sum import OrderFreeSum, Part
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import ClientResult, Phase, RoundContext, phases_of
from privfl.errors import ConfigError
from privfl.federation.from_recipe import task_of
from privfl.federation.recipe import Recipe
from privfl.federation.task import Task
from privfl.models.flat_network import digest_of_frozen
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.per_sample import GradSampleMode
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.log import DoorLog
from privfl.privacy.door.precision import Precision
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation.fingerprint import shipped_code, versions
from privfl.simulation.identity import Identity
from privfl.simulation.shared_state import SharedState

Arrays = dict[str, NDArray[Any]]
"""Named arrays: tensors on their way through Ray."""


SentPart = tuple[NDArray[Any], NDArray[Any] | None, int]
"""A :class:`~privfl.engine.order_free_sum.Part` on its way."""


@dataclass(frozen=True)
class WorkerParts:
    """What a worker is built from: how its task can be had, and the parts of the run that clients execute.

    Args:
        recipe: of the task.
        seed: of the run.
        planned: how many rounds the algorithm may know of.
        algorithm: not bound to a run yet, so that it carries no model.
        usual: the channel of a round of the usual size.
        way: how per-sample gradients are formed, ``None`` without DP-SGD.
        device: that the worker computes on; ``cuda`` is the share of a GPU that Ray gave it.
    """

    recipe: Recipe
    seed: int
    planned: int | None
    algorithm: Algorithm
    training: LocalTraining
    usual: RoundChannel
    way: GradSampleMode | None
    precision: Precision
    device: str = "cpu"


@dataclass(frozen=True)
class Built:
    """What a worker built, for the driver to compare with its own.

    Args:
        described: its task, in words and numbers, and what is frozen in its model.
        code: what its parts are, as hashes (:func:`code_of`).
    """

    described: dict[str, Any]
    code: dict[str, str]

    @classmethod
    def of(cls, task: Task, algorithm: Algorithm, training: LocalTraining, usual: RoundChannel) -> Built:
        """Of a ``task`` on the CPU and the parts of a run on it; the ``algorithm`` is not bound."""
        code = code_of(task, algorithm, training, usual)
        described, frozen = task.describe(), digest_of_frozen(task.model(0))
        if frozen:
            described = {**described, "what is frozen in the model": frozen}
        return cls(described, {what: one.digest for what, one in code.items()})


@dataclass(frozen=True)
class Orders:
    """What one worker is to do in one phase of a round.

    Args:
        number: of the round.
        label: of the phase, which tells its noise apart.
        channel: that uploads pass.
        weights: of the uploads, by client: who is to be trained.
        states: what clients keep, of those about whom this worker does not know the latest.
        chunks: the clients that are stacked together, ``None``: one by one.
    """

    number: int
    label: str
    channel: RoundChannel
    weights: dict[int, float]
    states: dict[int, Arrays]
    chunks: list[list[int]] | None = None


@dataclass
class Share:
    """What a worker's part of a cohort came to.

    Args:
        sums: by field, the parts of an order-free sum by range, and whether any summand was float64.
        apart: by field, the value of each client.
        members: whose uploads arrived.
        problems, zeroed: why uploads are missing, or count as zeros.
        logs: what passed the doors, with the clients whose doors they were.
        states: what clients keep from now on, of those for whom that changed.
        seconds: of work.
        notes: what the user should know, one sentence each.
        shared: parts of one's own that left something behind while clients trained, in words.
    """

    sums: dict[str, tuple[dict[int, SentPart], bool]]
    apart: dict[str, dict[int, NDArray[Any]]]
    members: list[int]
    problems: Counter[str]
    zeroed: Counter[str]
    logs: list[tuple[DoorLog, list[int]]]
    states: dict[int, Arrays]
    seconds: float
    notes: list[str]
    shared: list[str]

    def aggregator(self, like: PlainAggregator, weights: dict[int, float]) -> PlainAggregator:
        """The sums as an aggregator that can be merged into one ``like`` it, and must not be added to: of Ray's arrays,
        which are read-only, it makes no copies."""
        sums = {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            for name, (parts, wide) in self.sums.items():
                tensors = {top: Part(_tensor(low), _tensor(high), count) for top, (low, high, count) in parts.items()}
                sums[name] = OrderFreeSum(tensors, torch.float64 if wide else torch.float32)
        apart = {
            name: {client: torch.from_numpy(value.copy()) for client, value in values.items()}
            for name, values in self.apart.items()
        }
        own = {client: weights[client] for client in self.members}
        return PlainAggregator(like.fields, like.narrows, sums, apart, own)


@dataclass
class _PartialAggregator(PlainAggregator):
    """Adds a share up and leaves it to the driver to close the sums."""

    def close(self, sums: CohortSums) -> None:
        for one in self.sums.values():
            one.settle()
        sums.members = sorted(self.weights)


@dataclass
class _Logs:
    """Doors' logs, equal ones once."""

    found: list[tuple[DoorLog, list[int]]] = field(default_factory=list)

    def note(self, client: int, log: DoorLog) -> None:
        clients = next((clients for known, clients in self.found if known == log), None)
        if clients is None:
            self.found.append((log, [client]))
        else:
            clients.append(client)


class Worker:
    """One worker; Ray makes an actor of it, whose process it has to itself."""

    _stacked: VectorisedEngine | None

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._client_state: dict[int, Tensors] = {}

    def about(self) -> dict[str, str]:
        """What computes here, the machine and the process."""
        return {**computes(), "host": socket.gethostname(), "pid": str(os.getpid())}

    def build(self, parts: WorkerParts) -> Built:
        """Build the task and the engine; what they are, which must be what the driver's are.

        Raises:
            PrivflError: the data cannot be had here.
        """
        self._client_state.clear()
        task = task_of(parts.recipe, parts.seed)
        built = Built.of(task, parts.algorithm, parts.training, parts.usual)
        if parts.device != "cpu":
            task = task.to(given_device(parts.device))
        context = replace(task.context(1, parts.seed), planned=parts.planned)
        algorithm = parts.algorithm.bind(context)
        self._algorithms = {phase.label: phase.algorithm for phase in phases_of(algorithm, parts.usual)}
        self._seed = parts.seed
        self._engine = LoopEngine(
            task,
            algorithm,
            parts.training,
            parts.usual,
            way=parts.way,
            workers=1,
            precision=parts.precision,
        )
        self._engine.__enter__()  # until the process ends
        self._way, self._stacked = parts.way, None
        return built

    def train(self, key: bytes, reproducible: bool, received: Arrays, orders: Orders) -> Share:
        """Train the clients whom ``orders`` name, who receive ``received``.

        The noise ``key`` comes first, so that Ray keeps it inside the call and out of its object store.
        """
        began = time.perf_counter()
        self._client_state |= {client: as_tensors(state) for client, state in orders.states.items()}
        kept = ChainMap({}, self._client_state)
        context = RoundContext(
            orders.number,
            self._seed,
            NoiseSource(key, reproducible),
            kept,  # type: ignore[arg-type]
        )
        phase = Phase(self._algorithms[orders.label], orders.channel, orders.label)
        aggregator, logs = _PartialAggregator(phase.channel.sent), _Logs()
        told, states = self._on_device(as_tensors(received)), self._engine_for(orders).states
        before = SharedState(self._engine.task, phase, self._engine.training, told, states)
        results = self._results(orders, told, replace(context, look=before.look), phase)
        sums = aggregate_uploads(results, aggregator, orders.weights, kept, logs.note)
        changed = kept.maps[0]
        self._client_state |= changed
        notes = [] if self._stacked is None else self._stacked.notes
        said = list(notes)
        notes.clear()
        return Share(
            {
                name: ({top: _sent(part) for top, part in one.parts.items()}, one.dtype == torch.float64)
                for name, one in aggregator.sums.items()
            },
            {name: as_arrays(values) for name, values in aggregator.apart.items()},
            sums.members,
            sums.problems,
            sums.zeroed,
            logs.found,
            {client: as_arrays(state) for client, state in changed.items()},
            time.perf_counter() - began,
            said,
            before.changed(),
        )

    def _results(
        self, orders: Orders, received: Tensors, context: RoundContext, phase: Phase
    ) -> Iterator[ClientResult]:
        """What clients send, chunk by chunk."""
        engine = self._engine_for(orders)
        for chunk in [list(orders.weights)] if orders.chunks is None else orders.chunks:
            yield from engine.train(chunk, received, context, phase)

    def _engine_for(self, orders: Orders) -> Engine:
        """What trains those whom ``orders`` name: one by one, or a stack that is large enough."""
        if not orders.chunks:
            return self._engine
        height = max(map(len, orders.chunks))
        if self._stacked is None or self._stacked.chunk < height:
            self._stacked = VectorisedEngine(self._engine, height, self._way)
        return self._stacked

    def _on_device(self, tensors: Tensors) -> Tensors:
        return {name: value.to(self._engine.device) for name, value in tensors.items()}


def computes() -> dict[str, str]:
    """What decides the bits of what this process computes: libraries, privfl's code, the kind of processor."""
    kind = torch.backends.cpu.get_cpu_capability()
    return {**versions(), "privfl's code": shipped_code(), "kind of processor": kind}


def code_of(task: Task, algorithm: Algorithm, training: LocalTraining, usual: RoundChannel) -> dict[str, Identity]:
    """What clients execute of a run, with all that it refers to.

    Parts pass Ray by reference: a process takes the code of a user's own class, and what that reads from its module,
    from where it finds the module itself.
    """
    parts = {"model": task.model, "loss": task.loss, "algorithm": algorithm, "training": training}
    return {what: Identity(part) for what, part in {**parts, "privacy mechanisms": usual}.items()}


def given_device(name: str) -> torch.device:
    """The device called ``name``, of which Ray gave this worker a share.

    Raises:
        ConfigError: PyTorch does not find it.
    """
    if not torch.cuda.is_available():
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        raise ConfigError(
            f"this worker was given GPU {given or 'none'}, and PyTorch finds no CUDA device; install a PyTorch with "
            "CUDA on every node that declares GPUs, or leave gpus out"
        )
    return torch.device(name)


def as_arrays(tensors: dict[Any, torch.Tensor]) -> dict[Any, NDArray[Any]]:
    """The tensors' values as arrays on the CPU."""
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}


def as_tensors(arrays: Arrays) -> Tensors:
    """Copies of ``arrays`` as tensors: those that come from Ray's store are read-only."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def _sent(part: Part) -> SentPart:
    return part.low.cpu().numpy(), None if part.high is None else part.high.cpu().numpy(), part.count


def _tensor(array: NDArray[Any] | None) -> Any:
    return None if array is None else torch.from_numpy(array)
