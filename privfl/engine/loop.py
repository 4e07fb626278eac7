"""The loop engine: clients one by one on every core, one intra-op thread each, on one copy of the data.

Results come back in the order of the cohort and at most two per worker wait, so sums are bit-identical for any number
of workers and memory does not grow with the cohort.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Algorithm, Tensors, descends_plainly, overrides
from privfl.engine.broadcast import check_unchanged, handed, unshared, versions_of
from privfl.engine.client_randomness import randomness_of
from privfl.engine.sequence_checks import clips_otherwise, differs_from_autocast, differs_from_autograd
from privfl.engine.sequences import Sequence, sequence_of
from privfl.engine.workspace import ClientResult, Phase, RoundContext, Trained, Workspace, cores, send
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.models.layouts import lay_channels_innermost
from privfl.plain_tensors import given_plain, plain_parts
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.clipping.lengths import Lengths, PublicRows, distinct_rows, identity
from privfl.privacy.clipping.per_sample import BY_RULES, GradSampleMode, evaluating, sums_directly
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.precision import Precision, matrix_products, same_bits
from privfl.privacy.loss import is_coupled
from privfl.privacy.noise import fused
from privfl.products import FEW, has_bfloat16_units
from privfl.references import shipped

ROWS_PER_EVALUATION = 1000
"""Rows of a worker's turn; on a GPU they are passed through the network at once."""
ROWS_AT_ONCE = 250
"""On a CPU, where images of a thousand rows leave the caches; a hundred are too few for small networks."""
DIRECT_FROM = 1 << 16
"""Parameters from which a layer's own sums are faster than autograd's; a small model gains nothing by them."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class LoopEngine:
    """Trains cohorts; use as a context manager, so that threads and thread settings are given back."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        training: LocalTraining,
        channel: RoundChannel,
        *,
        way: GradSampleMode | None = None,
        workers: int | None = None,
        precision: Precision = "float32",
        deterministic: bool = False,
    ) -> None:
        """``way`` forms per-sample gradients (``None`` without DP-SGD); ``workers`` defaults to all cores.

        ``deterministic`` lets PyTorch take only kernels whose results repeat bit by bit, while the engine is entered.
        """
        self.deterministic = deterministic
        self.precision: Precision = precision
        self.task, self.algorithm, self.training, self.channel = task, algorithm, training, channel
        self.phase = Phase(algorithm, channel)
        self.notes: list[str] = []
        self.way = way
        self.device = task.inputs.device
        self.workers = 1 if self.device.type == "cuda" else (workers or cores())
        self._spaces: SimpleQueue[Workspace] = SimpleQueue()
        self.lengths = self.steady_lengths() if channel.dpsgd is not None or channel.statistics else None
        if way is None and self._sums_directly():
            way = "layers"
        network = task.model(0)
        innermost = self.device.type == "cpu" and self._takes_channels_innermost(network)
        if self.device.type != "cpu" and (channel.dpsgd is not None or channel.has_client_level_noise):
            self.notes += filter(None, [fused.why_not(self.device)])
        asked, notes = randomness_of(network if known_ranks(network) else task.model(0), task)
        self.draws = asked or not shipped(type(algorithm))
        """Whether a model, a loss or an algorithm from outside may call random functions."""
        self.notes += notes
        self.handed_out = not known_function(task.loss) or not shipped(type(algorithm))
        """Whether a loss or an algorithm from outside gets hold of the network."""
        given: dict[str, Any] = {"draws": self.draws, "handed_out": self.handed_out}
        spaces = [
            Workspace.build(task.model(0), self.device, way, innermost=innermost, **given) for _ in range(self.workers)
        ]
        self.states = [space.state for space in spaces if space.state is not None]
        for space in self._without_autograd(spaces):
            self._spaces.put(space)

    def steady_lengths(self) -> Lengths:
        """Lengths of passes that round a row alike, as this task's model and kind of rows need them."""
        network = self.task.model(0)
        parameters = flatten(network).to(self.device)
        public = PublicRows(parameters, *self.task.probe(distinct_rows(len(parameters))))
        plain = identity(self.task.loss, exact=True)
        own = identity((self.algorithm, self.task.loss), exact=True)
        return Lengths(public, identity(network), self.way, self.precision, own=own, plain=plain)

    def _without_autograd(self, spaces: list[Workspace]) -> list[Workspace]:
        """``spaces`` whose gradients come from the layers themselves, if the network is known and they agree.

        Under DP-SGD their clippers take from the layers what they clip, in float32 alone.
        """
        private, narrow = self.channel.dpsgd is not None, self.precision == "bfloat16"
        if private and (narrow or self.way not in BY_RULES):
            return spaces
        if self.precision == "tf32" or (narrow and not has_bfloat16_units()):
            return spaces
        task = self.task
        sequences = [sequence_of(space.own, task.loss, task.inputs, steady=private, narrow=narrow) for space in spaces]
        if sequences[0] is None:
            return spaces
        for space, sequence in zip(spaces, sequences, strict=True):
            assert sequence is not None  # the model is the same for all workers
            space.dropout.extend(sequence.functional_dropout)
        with spaces[0].randomness or nullcontext():
            differs = self._differs(sequences[0], spaces[0], narrow=narrow, private=private)
        if differs:
            self.notes.append("steps use autograd, because the layers' own gradients came out different")
            return spaces
        if not private:
            return [replace(space, sequence=sequence) for space, sequence in zip(spaces, sequences, strict=True)]
        for space, sequence in zip(spaces, sequences, strict=True):
            assert space.clipper is not None
            space.clipper.unaided = sequence
        return spaces

    def _differs(self, sequence: Sequence, space: Workspace, *, narrow: bool, private: bool) -> bool:
        """Whether the gradients of ``sequence`` are not those that autograd finds in ``space``."""
        loss, probe = self.task.loss, self.task.probe(4)
        if narrow:  # what has few rows is computed otherwise than what has many
            tries = (self.task.probe(rows) for rows in (FEW, FEW + 4))
            differs = any(differs_from_autocast(sequence, loss, space.dropout, *tried) for tried in tries)
        else:
            differs = differs_from_autograd(sequence, loss, space.dropout, *probe)
        if private and not differs:
            assert space.clipper is not None
            differs = clips_otherwise(sequence, loss, space.clipper, space.dropout, *probe)
        return differs

    def _takes_channels_innermost(self, network: nn.Module) -> bool:
        """Whether the model runs on images laid out so; ``view`` in a model of one's own may ask for the usual way.

        ``network``, the model, is laid out so if it is not known.
        """
        if known_ranks(network):
            return True
        lay_channels_innermost(network)
        try:
            with evaluating(network), torch.no_grad(), matrix_products("float32"):
                network(self.task.probe(4)[0])
        except Exception:  # whatever else ails it shows where it is run as it is
            return False
        return True

    def _sums_directly(self) -> bool:
        """Whether layers should write large weight gradients where they belong, so that nothing is copied."""
        network = Workspace.build(self.task.model(0), self.device, None).own
        large = self.device.type == "cpu" and network.layout.size >= DIRECT_FROM
        return large and not is_coupled(self.task.loss) and sums_directly(network, self.task.loss, *self.task.probe(4))

    def __enter__(self) -> LoopEngine:
        self._settings = ExitStack()
        self._settings.enter_context(matrix_products(self.precision))
        self._settings.enter_context(same_bits(self.deterministic))
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)
        self._settings.close()

    def train(
        self, cohort: Iterable[int], received: Tensors, context: RoundContext, phase: Phase | None = None
    ) -> Iterator[ClientResult]:
        """The results of ``cohort``, in its order; ``phase`` is the algorithm itself unless a survey is given."""
        does = phase or self.phase

        def one(space: Workspace, client: int) -> ClientResult:
            return self._train_one(space, client, does, received, context)

        return self._with_space(one, cohort)

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` on ``inputs`` [N, ...], in evaluation mode.

        Rows pass in pieces whose bounds depend on nothing but N, so logits are the same for any number of workers.
        """
        at_once = ROWS_AT_ONCE if self.device.type == "cpu" else ROWS_PER_EVALUATION

        def one(space: Workspace, rows: Tensor) -> Tensor:
            space.own.load(parameters)
            space.own.module.eval()
            outputs = space.own.module if self.precision == "bfloat16" else space.outputs
            with torch.no_grad():  # a model may return a view of its parameters, of which this is a copy
                return torch.cat([outputs(piece) for piece in torch.split(rows, at_once)])

        pieces = -(-len(inputs) // at_once)
        turn = min(ROWS_PER_EVALUATION, max(1, -(-pieces // self.workers)) * at_once)
        return torch.cat(list(self._with_space(one, torch.split(inputs, turn))))

    def in_order(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """``work`` on every item, side by side on the workers' threads; answers in the items' order, few waiting."""
        waiting: deque[Future[Answer]] = deque()
        for item in items:
            waiting.append(self._pool.submit(work, item))
            if len(waiting) > 2 * self.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _with_space(self, work: Callable[[Workspace, Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        def with_space(item: Item) -> Answer:
            space = self._spaces.get()
            try:
                return work(space, item)
            finally:
                self._spaces.put(space)

        return self.in_order(with_space, items)

    def _train_one(
        self, space: Workspace, client: int, phase: Phase, received: Tensors, context: RoundContext
    ) -> ClientResult:
        trained = self._trained(space, client, phase, received, context)
        if phase.blind:
            trained = trained.sending(self._trained(space, client, phase, received, context, blind=True))
        if context.look is not None:
            context.look(None)
        noise = context.noise("channel" + phase.label, client)
        return send(phase.channel, client, trained, noise, received["parameters"], context.look)

    def _trained(
        self,
        space: Workspace,
        client: int,
        phase: Phase,
        received: Tensors,
        context: RoundContext,
        *,
        blind: bool = False,
    ) -> Trained:
        task, algorithm, channel, received = self.task, phase.for_clients(), phase.channel, handed(received)
        training, rows = self.training.in_round(context.number), task.clients[client]
        slot = phase.slot(client, rows, training, received, context)
        keeper = ClientDoor(
            slot,
            task.inputs,
            task.targets,
            space.own,
            space.clipper,
            phase.for_client(task.loss),
            channel.dpsgd,
            channel.statistics,
            self.precision,
            space.state,
            phase.local_only(blind=blind),
            self.lengths,
            space.announce,
            space.sequence,
        )
        plain = (space.sequence is not None or channel.dpsgd is not None) and descends_plainly(algorithm, training)
        space.start(phase.dropout(client, context))
        door, versions = keeper.door(), versions_of(received)
        with torch.no_grad(), space.randomness or nullcontext():
            local = algorithm.begin(received, phase.client_state(client, context.client_state, blind=blind), training)
            if not shipped(type(algorithm)):
                local = unshared(given_plain(local, f"what {algorithm.name} begins with"), received)
                if context.look is not None:
                    context.look(None)
            space.own.load(local["parameters"])
            local["parameters"] = space.own.flat
            if overrides(algorithm, "prepare"):
                algorithm.prepare(local, received, keeper.hand(keeper.everything().numbers), door, training)
            with space.randomness.at_rest() if space.randomness and plain and space.unaided else nullcontext():
                for batch in keeper.batches():
                    if plain:
                        keeper.descend(training.learning_rate)
                    else:
                        algorithm.step(local, received, keeper.hand(batch.numbers), door, training)
            if overrides(algorithm, "conclude"):
                algorithm.conclude(local, received, keeper.hand(keeper.everything().numbers), door, training)
            if slot.personal_plan is not None:
                keeper.personalising()
                for batch in keeper.batches():
                    algorithm.personalise(local, received, keeper.hand(batch.numbers), door, training)
            upload = _apart(plain_parts(algorithm.finish(local, received, training)), space.own.flat)
        check_unchanged(algorithm, received, versions)
        return Trained(upload, {name: local[name].clone() for name in algorithm.keeps}, slot.log)


def _apart(upload: Any, buffer: Tensor) -> Any:
    """``upload`` without views of a worker's ``buffer``, which its next client overwrites."""
    if not isinstance(upload, dict):
        return upload
    own = buffer.untyped_storage().data_ptr()
    return {
        name: value.clone() if isinstance(value, Tensor) and value.untyped_storage().data_ptr() == own else value
        for name, value in upload.items()
    }
