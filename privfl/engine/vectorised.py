"""The vectorised engine: the clients of a chunk are stacked and trained in one kernel.

``torch.func.vmap`` runs the algorithm's step, written for one client, on tensors [clients, ...]; the cohort's door
computes gradients for all of them at once. Results are the loop engine's up to the rounding of sums: every client
draws its batches, drop-out masks, sampling coins and noise from the same streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from privfl.algorithms.base import Tensors
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import ClientResult, Workspace, send
from privfl.errors import ConfigError
from privfl.privacy.cohort_door import CohortDoor, Visitor
from privfl.privacy.noise import NoiseSource
from privfl.privacy.per_sample import Way
from privfl.privacy.plans import private_plan
from privfl.privacy.stacked_gradients import StackedGradients
from privfl.randomness import torch_stream


class VectorisedEngine:
    """Trains cohorts in chunks of ``chunk`` clients; works inside the ``with`` block of its ``loop`` engine.

    On a CPU its kernels use all the loop's workers as intra-op threads. If memory runs out, ``chunk`` is halved, the
    chunk is trained anew, and ``notes`` says so.
    """

    def __init__(self, loop: LoopEngine, chunk: int, way: Way | None = None) -> None:
        """``way`` forms per-sample gradients, ``None`` without DP-SGD."""
        self.loop, self.chunk, self.way = loop, chunk, way
        self.notes: list[str] = []
        self._space = Workspace.build(loop.task.model(0), loop.device, None)
        self._stacked = StackedGradients(self._space.own, way)

    @property
    def template(self) -> nn.Module:
        """The network that is stacked."""
        return self._space.own.module

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` on ``inputs`` [N, ...], in evaluation mode."""
        return self.loop.logits(parameters, inputs)

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
        """The results of ``cohort``, clients with more work first, so that chunks hold clients alike."""
        waiting = sorted((self._visitor(client, received, round, seed, source) for client in cohort), key=_work)
        while waiting:
            chunk, waiting = waiting[: self.chunk], waiting[self.chunk :]
            try:
                done = self._train_chunk(chunk, received, kept, round, seed, source)
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error) or len(chunk) == 1:
                    raise
                self.chunk = len(chunk) // 2
                self.notes.append(
                    f"memory ran out with {len(chunk)} clients at once; {self.chunk} from round {round} on"
                )
                again = [self._visitor(visitor.client, received, round, seed, source) for visitor in chunk]
                waiting = again + waiting
                continue
            yield from done

    def _visitor(self, client: int, received: Tensors, round: int, seed: int, source: NoiseSource) -> Visitor:
        loop, dpsgd = self.loop, self.loop.channel.dpsgd
        return Visitor(
            client,
            loop.task.clients[client],
            loop.algorithm.plan(private_plan(loop.training, dpsgd, client), received),
            torch_stream(seed, "batches", round, client),
            None if dpsgd is None else source.stream("door", round, client),
        )

    def _train_chunk(
        self,
        visitors: Sequence[Visitor],
        received: Tensors,
        kept: Mapping[int, Tensors],
        round: int,
        seed: int,
        source: NoiseSource,
    ) -> list[ClientResult]:
        loop, algorithm = self.loop, self.loop.algorithm
        streams = []
        if self._space.dropout:
            device = loop.device
            streams = [torch_stream(seed, "dropout", round, visitor.client, device=device) for visitor in visitors]

        def announce(counts: Sequence[int]) -> None:
            for layer in self._space.dropout:
                layer.stack, layer.counts = streams[: len(counts)], counts

        door = CohortDoor(
            visitors,
            loop.task.inputs,
            loop.task.targets,
            self._stacked,
            loop.task.loss,
            loop.channel.dpsgd,
            announce,
            loop.each,
        )
        torch.set_num_threads(loop.workers)
        try:
            with torch.no_grad():
                begun = [algorithm.begin(received, kept.get(v.client, {}), loop.training) for v in visitors]
                local = {name: _stack([tensors[name] for tensors in begun]) for name in begun[0]}
                del begun
                self._train(door, local, received)
                uploads = vmap(lambda local: algorithm.finish(local, received, loop.training))(local)
        finally:
            torch.set_num_threads(1)
        results = []
        for place, visitor in enumerate(visitors):
            upload = {name: value[place] for name, value in uploads.items()}
            keeps = {name: local[name][place].clone() for name in algorithm.keeps}
            noise = source.stream("channel", round, visitor.client)
            results.append(
                send(loop.channel, visitor.client, upload, keeps, visitor.log, noise, received["parameters"])
            )
        return results

    def _train(self, door: CohortDoor, local: Tensors, received: Tensors) -> None:
        """All steps of all clients, in place; those with fewer steps leave the stack from its end."""
        algorithm, training = self.loop.algorithm, self.loop.training

        def step(local: Tensors, count: Tensor) -> Tensors:
            algorithm.step(local, received, door.enter(count), door, training)
            return local

        while (batch := door.draw()) is not None:
            active = {name: value[: len(batch.count)] for name, value in local.items()}
            for name, value in vmap(step)(active, batch.count).items():
                if name not in local:
                    raise ConfigError(
                        f"{algorithm.name} adds '{name}' to the client's state in a step; create it in begin"
                    )
                if value.data_ptr() != active[name].data_ptr():
                    local[name][: len(batch.count)] = value


def _work(visitor: Visitor) -> tuple[int, int]:
    return -visitor.steps, -len(visitor.rows)


def _stack(values: Sequence[Tensor]) -> Tensor:
    """[clients, ...] copies of ``values``; one tensor that all clients begin with is copied once for each."""
    first = values[0]
    if all(value is first for value in values):
        return first.expand(len(values), *first.shape).clone()
    return torch.stack(list(values))


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
