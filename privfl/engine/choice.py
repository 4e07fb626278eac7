"""Which engine trains a run: checked on public random data, chosen by measurement.

A federation of two clients who hold random public values is trained by both engines: if the stacked one cannot run, or
gives other numbers, the loop trains the run and one sentence says which layer is to blame. ``auto`` then times both per
client and step, each warmed up and three times, with chunks that grow fourfold until they stop paying, and keeps the
faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from privfl.algorithms.base import Tensors
from privfl.compiling import compiled_so_far
from privfl.engine.loop import LoopEngine
from privfl.engine.memory import largest_chunk
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import ClientResult, RoundContext
from privfl.errors import PrivflError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.privacy.clipping.per_sample import GradSampleMode
from privfl.privacy.clipping.row_wise import out_of_memory
from privfl.privacy.door.batch_plans import Plan, Poisson, private_plan
from privfl.privacy.door.precision import Precision
from privfl.privacy.noise.source import NoiseSource

EngineName = Literal["auto", "loop", "vectorised", "ray"]
Engine = LoopEngine | VectorisedEngine
TIMES = 3
"""How often an engine is timed, after it was warmed up."""
MOST_ROWS = 1 << 22
"""Rows that clients with random values hold together: their numbers take 32 MiB."""
SHORT_RUN_SECONDS = 3.0
"""A run that the loop finishes in this time is not worth a measurement."""
LOOP_SECONDS = 5.0
"""Seconds after which the loop is not timed a third time: where steps are long, two times say enough."""
TWICE = 2
"""How often the loop is timed at least: a machine that stood still for a while would decide, or what is loaded once."""
DEVICE_FAILURES = ("CUDA error", "CUDA driver", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error")
"""What errors say that are the device's."""
TOLERANCE = 1e-3
"""Largest difference of the engines' uploads, relative to the largest value: rounding of float32 sums."""


@dataclass(frozen=True)
class Choice:
    """What was chosen and why; ``seconds`` holds the seconds of one client's step for everything that was timed.

    ``refused`` says that the model or the algorithm cannot be stacked, for the ``reason`` given.
    """

    engine: Literal["loop", "vectorised", "ray"]
    chunk: int | None
    reason: str
    refused: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    def build(self, loop: LoopEngine, way: GradSampleMode | None) -> Engine:
        """The engine, around ``loop``; it notes why another one was refused."""
        if self.refused:
            loop.notes.append(self.reason)
        return loop if self.chunk is None else VectorisedEngine(loop, self.chunk, way)

    def to_dict(self) -> dict[str, Any]:
        """The choice as JSON-able values."""
        return asdict(self)


def choose(
    wanted: EngineName, loop: LoopEngine, way: GradSampleMode | None, received: Tensors, *, cohort: int, rounds: int
) -> Choice:
    """The engine for ``rounds`` rounds of ``cohort`` clients who receive ``received``; call it inside ``with loop``.

    With ``auto`` chunks are tried for at most half a round by the loop or a twentieth of the run, whichever is more,
    and one chunk is always tried. Where one for each worker holds the cohort and is not twice the best, it is taken.
    """
    if wanted == "loop":
        return Choice("loop", None, "asked for")
    if way == "opacus":
        return Choice("loop", None, "Opacus' hooks cannot be stacked", refused=wanted == "vectorised")
    most = largest_chunk(loop, way, math.ceil(cohort / loop.workers))
    if cohort < 2 or most < 1:
        why = "there are never two clients to stack" if cohort < 2 else "memory does not hold a second client"
        return Choice("loop", None, why)
    began = time.perf_counter()
    if wanted == "auto":
        with _federation(loop, way, received, 2 * loop.workers) as probe:
            ids, steps = _ids(loop, 2 * loop.workers), cohort * _steps(loop, received)
            short = SHORT_RUN_SECONDS / max(1, steps * rounds)
            seconds = {"loop": _seconds(probe, received, ids, LOOP_SECONDS, short, least=TWICE)}
        a_round = seconds["loop"] * steps
        if a_round * rounds < SHORT_RUN_SECONDS:
            return Choice("loop", None, f"the whole run takes about {a_round * rounds:.2g} s", seconds=seconds)
    problem = why_not_stacked(loop, way, received)
    if problem:
        return Choice("loop", None, problem, refused=True)
    if wanted == "vectorised":
        return Choice("vectorised", most, "asked for")
    budget = a_round * max(0.5, rounds / 20)
    best: int | None = None
    for chunk in _chunks(most):
        if best is not None and time.perf_counter() - began > budget:
            break
        clients = chunk * loop.workers
        with _federation(loop, way, received, clients) as probe:
            engine, left = VectorisedEngine(probe, chunk, way), budget - (time.perf_counter() - began)
            hopeful = 2 * seconds["loop"] if best is None else 0.0
            seconds[f"{chunk} at once"] = fresh = _seconds(engine, received, _ids(loop, clients), left, hopeful=hopeful)
        if best is not None and fresh > 0.95 * seconds[f"{best} at once"]:
            break
        best = chunk
        if fresh > 4 * seconds["loop"]:
            break
    if best is None or seconds[f"{best} at once"] >= seconds["loop"]:
        return Choice("loop", None, "faster, as measured", seconds=seconds)
    whole = most <= 2 * best  # then one chunk for each worker leaves no remainder, which one of them would train alone
    return Choice("vectorised", most if whole else best, "faster, as measured", seconds=seconds)


def why_not_stacked(loop: LoopEngine, way: GradSampleMode | None, received: Tensors) -> str:
    """Why this model or algorithm cannot be trained by the vectorised engine, in one sentence; empty if it can.

    TF32 rounds so coarsely that two right answers differ; where it is allowed, engines are compared without it.
    """
    precision: Precision = "float32" if loop.precision == "tf32" else loop.precision
    with _federation(loop, way, received, 2, workers=1, precision=precision) as probe:
        expected = _uploads(probe, received)
        engine = VectorisedEngine(probe, 2, way)
        entered: list[str] = []
        hooks = [hook for template in engine.templates for hook in _trace(template, entered)]
        try:
            found = _uploads(engine, received)
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, PrivflError) as error:
            if _device_failed(error):
                raise
            place = f"layer '{entered[-1]}'" if entered else f"a step of {loop.algorithm.name}"
            text = str(error).strip()
            because = text.splitlines()[0] if text else type(error).__name__
            return f"clients are trained one by one because {place} cannot be stacked: {because}"
        finally:
            for hook in hooks:
                hook.remove()
    for one, other in zip(expected, found, strict=True):
        for name, value in (one.upload or {}).items():
            scale = float(value.abs().max()) + 1e-12
            stacked = (other.upload or {}).get(name)
            if stacked is None or not float((stacked - value).abs().max()) <= TOLERANCE * scale:
                return f"clients are trained one by one because '{name}' comes out different when clients are stacked"
    return ""


def _device_failed(error: Exception) -> bool:
    """Whether the device is to blame: taken for the model's fault, its failure would quietly mean one by one."""
    kind = getattr(torch, "AcceleratorError", None)  # torch 2.8 and later
    if kind is not None and isinstance(error, kind):
        return True
    return not out_of_memory(error) and any(mark in str(error) for mark in DEVICE_FAILURES)


def _trace(template: nn.Module, entered: list[str]) -> list[Any]:
    """Keep in ``entered`` the names of the layers that are running."""
    hooks: list[Any] = []
    for name, module in template.named_modules():
        if name:
            label = f"{name} ({type(module).__name__})"
            hooks.append(module.register_forward_pre_hook(lambda *_, label=label: entered.append(label)))
            hooks.append(module.register_forward_hook(lambda *_: entered.pop() and None))
    return hooks


@contextmanager
def _federation(
    loop: LoopEngine,
    way: GradSampleMode | None,
    received: Tensors,
    clients: int,
    workers: int | None = None,
    precision: Precision | None = None,
) -> Iterator[LoopEngine]:
    """An engine for ``clients`` clients with random public values, two batches for all of them, who take two steps.

    Clients whose batches are drawn hold each value as often as makes the batches those of a typical client.
    """
    task = loop.task
    typical = int(np.median(task.clients.sizes))
    rows = min(loop.training.batch_size, typical)
    held = max(rows, min(typical, MOST_ROWS // clients)) if isinstance(_plan(loop, received), Poisson) else rows
    inputs, targets = task.probe(2 * rows)
    index = ClientIndex.of([np.arange(held) % rows + rows * (client % 2) for client in range(clients)])
    probe: Task = replace(task, inputs=inputs, targets=targets, clients=index, report=None)
    training = replace(loop.training, steps=2)
    with LoopEngine(
        probe,
        loop.algorithm,
        training,
        loop.channel,
        way=way,
        workers=workers or loop.workers,
        precision=precision or loop.precision,
    ) as engine:
        yield engine


def _steps(loop: LoopEngine, received: Tensors) -> int:
    """Steps that a typical client takes in a round."""
    return _plan(loop, received).length(round(np.median(loop.task.clients.sizes)))


def _plan(loop: LoopEngine, received: Tensors) -> Plan:
    """How the first client draws its batches."""
    return loop.algorithm.plan(private_plan(loop.training, loop.channel.dpsgd, 0), received)


def _ids(loop: LoopEngine, clients: int) -> list[int]:
    """``clients`` numbers of clients that there are; a federation of few is asked more than once."""
    return [number % len(loop.task.clients) for number in range(clients)]


def _train(engine: Engine, received: Tensors, ids: list[int]) -> list[ClientResult]:
    context = RoundContext(0, 0, NoiseSource.from_key(0), {})  # the noise of public random values is no secret
    return list(engine.train(ids, received, context))


def _uploads(engine: Engine, received: Tensors) -> list[ClientResult]:
    return sorted(_train(engine, received, [0, 1]), key=lambda result: result.client)


def _seconds(
    engine: Engine,
    received: Tensors,
    ids: list[int],
    most: float,
    short: float = 0.0,
    hopeful: float = 0.0,
    least: int = 1,
) -> float:
    """Least seconds of one client's step, of the clients ``ids`` who take two steps each, in three times.

    On CUDA a first time, when kernels are chosen and memory is taken, does not count, and no time does in which a loop
    was compiled. Once ``most`` seconds are over, or a step was seen to take less than ``short``, there are no more; but
    in the first case there are the ``least`` before, and a first time in which a step took less than ``hopeful`` is not
    the last, as what is loaded then is so once.
    """
    device, began, found, tried = received["parameters"].device, time.perf_counter(), [math.inf], 0
    while tried <= TIMES:
        known, start = compiled_so_far(), time.perf_counter()
        _train(engine, received, ids)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent = time.perf_counter() - start
        if compiled_so_far() > known:
            began += spent
            continue
        tried += 1
        if tried > 1 or device.type == "cpu":
            found.append(spent)
        again = tried == 1 and spent < 2 * len(ids) * hopeful
        if len(found) > least and not again and time.perf_counter() - began + spent > most:
            break
        if min(found) / (2 * len(ids)) < short:
            break
    return min(found) / (2 * len(ids))


def _chunks(most: int) -> list[int]:
    """Chunk sizes worth a try: few at first, then four times as many, and all if that is not far."""
    sizes = [size for size in (8, 32, 128, 512) if size < most]
    return [*sizes, most] if most <= 512 else sizes
