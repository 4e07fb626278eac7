"""The vectorised engine: the clients of a chunk are stacked and trained in one kernel.

``torch.func.vmap`` runs the algorithm's step, written for one client, on tensors [clients, ...]; the cohort's door
computes gradients for all of them at once. Results are the loop engine's up to the rounding of sums: every client
draws its batches, drop-out masks, sampling coins and noise from the same streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Algorithm, Tensors, descends_plainly, overrides
from privfl.engine.broadcast import check_unchanged, handed, versions_of
from privfl.engine.chunks import chunks_of, reorder, stacked
from privfl.engine.client_randomness import ClientRandomness
from privfl.engine.device_sequences import DeviceSequence
from privfl.engine.dropout import StreamDropout
from privfl.engine.loop import LoopEngine
from privfl.engine.measures import measures_of_stack
from privfl.engine.sequences import sequence_of
from privfl.engine.shared_algorithm import NotStacked, check_fields, fields_of, for_each_client
from privfl.engine.stacked_sequences import ALIKE, StackedSequence, stacked_sequence_of
from privfl.engine.workspace import ClientResult, Phase, RoundContext, Trained, Workspace, send
from privfl.errors import ConfigError
from privfl.federation.losses import cross_entropy
from privfl.models.module_state import ModuleState
from privfl.plain_tensors import given_plain
from privfl.privacy.clipping.lengths import padded
from privfl.privacy.clipping.per_sample import BY_RULES, GradSampleMode
from privfl.privacy.clipping.placement import alike_up_to_the_end, calls_of, nothing_is_left_over
from privfl.privacy.clipping.row_wise import out_of_memory
from privfl.privacy.clipping.stacked import StackedGradients
from privfl.privacy.clipping.steady_stacks import LEAST
from privfl.privacy.clipping.whole_rows import in_whole_rows
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.cohort_door import CohortDoor
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.door.keeper import ClientSlot, DrawnBatch, StepNumbers
from privfl.privacy.door.precision import matrix_products
from privfl.privacy.noise.source import NoiseStream
from privfl.products import evenly, forms

Work = Callable[[Tensors, Tensors, Batch, Door, LocalTraining], None]
"""A method of an algorithm that works on one client's state and a batch."""


@dataclass(frozen=True)
class Stack:
    """What one worker owns: the template of a stack, its gradients, its drop-out layers, and what it remembers."""

    gradients: StackedGradients
    dropout: list[StreamDropout]
    state: ModuleState | None
    unaided: StackedSequence | None = None
    randomness: ClientRandomness | None = None


class VectorisedEngine:
    """Trains cohorts in chunks of at most ``chunk`` clients; works inside the ``with`` block of its ``loop`` engine.

    On a CPU as many chunks run side by side as the loop has workers, one intra-op thread each. If memory runs out, a
    chunk is trained anew in halves, later chunks are as small, and ``notes`` says so.
    """

    def __init__(self, loop: LoopEngine, chunk: int, way: GradSampleMode | None = None) -> None:
        """``way`` forms per-sample gradients, ``None`` without DP-SGD."""
        self.loop, self.chunk, self.way = loop, chunk, way
        self.notes: list[str] = []
        self.states, self.lengths = list(loop.states), loop.lengths
        if self.lengths is None and loop.channel.covers_clients:
            self.lengths = loop.steady_lengths()
        self._stacks: SimpleQueue[Stack] = SimpleQueue()
        self.templates: list[nn.Module] = []
        self._apart, self._telling = False, Lock()
        self._placed: set[tuple[str, int]] = set()
        self._values = 0
        for _ in range(loop.workers):
            space = Workspace.build(loop.task.model(0), loop.device, None, draws=loop.draws, handed_out=loop.handed_out)
            gradients = StackedGradients(space.own, way)
            gradients.guarded = self.lengths is not None
            gradients.whole_rows = in_whole_rows(loop.device, loop.training.batch_size, space.own.layout.size)
            unaided = self._without_autograd(space, gradients)
            self._stacks.put(Stack(gradients, space.dropout, space.state, unaided, space.randomness))
            self.states += filter(None, [space.state])
            self.templates.append(space.own.module)

    def _without_autograd(self, space: Workspace, gradients: StackedGradients) -> StackedSequence | None:
        """The gradients that the layers themselves give, if the network is known and they agree with autograd's."""
        loop, private = self.loop, self.loop.channel.dpsgd is not None
        on_cpu = loop.device.type == "cpu"
        wide = loop.precision == "float32" or (loop.precision == "tf32" and not private and not on_cpu)
        if not wide or (private and self.way not in BY_RULES) or loop.task.loss is not cross_entropy:
            return None
        single = sequence_of(space.own, loop.task.loss, loop.task.inputs, anywhere=True)
        if single is None:
            return None
        space.dropout.extend(single.functional_dropout)
        steady = self.lengths is not None
        kind = StackedSequence if on_cpu else DeviceSequence
        with (
            space.randomness or nullcontext(),
            matrix_products("float32"),
        ):  # TF32 rounds more coarsely than what is looked for
            found = stacked_sequence_of(single, gradients, space.dropout, *loop.task.probe(4), steady=steady, kind=kind)
        if isinstance(found, StackedSequence):
            if private:
                gradients.unaided = found
                return None
            self._values = found.values if on_cpu else 0  # a device has one worker, and its memory bounds a chunk
            return found
        if found and found not in self.notes:
            self.notes.append(found)
        return None

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` on ``inputs`` [N, ...], in evaluation mode."""
        return self.loop.logits(parameters, inputs)

    def train(
        self, cohort: Iterable[int], received: Tensors, context: RoundContext, phase: Phase | None = None
    ) -> Iterator[ClientResult]:
        """The results of ``cohort``, of training unless ``phase`` is a survey's."""
        does = phase or self.loop.phase

        def slot(client: int) -> ClientSlot:
            return does.slot(client, self.loop.task.clients[client], self.loop.training, received, context)

        def work(chunk: Sequence[ClientSlot]) -> list[ClientResult]:
            return self._in_memory(chunk, slot, does, received, context)

        ordered = sorted(map(slot, cohort), key=lambda one: (-one.steps, -len(one.rows)))  # chunks hold clients alike
        for results in self.loop.in_order(work, self._chunks(ordered)):
            yield from results

    def _in_memory(
        self,
        chunk: Sequence[ClientSlot],
        slot: Callable[[int], ClientSlot],
        phase: Phase,
        received: Tensors,
        context: RoundContext,
    ) -> list[ClientResult]:
        """The results of ``chunk``; if memory runs out, of its halves, whose clients ``slot`` lets begin anew."""
        stack = self._stacks.get()
        try:
            return self._train_chunk(stack, chunk, phase, received, context)
        except NotStacked as found:
            with self._telling:
                if not self._apart:
                    self.notes.append(f"clients are trained one after another, because {found}")
                self.chunk, self._apart = 1, True
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(chunk) == 1:
                raise
            self.chunk = min(self.chunk, len(chunk) // 2)
            self.notes.append(
                f"memory ran out with {len(chunk)} clients at once; {self.chunk} from round {context.number} on"
            )
        finally:
            self._stacks.put(stack)
        again, size = [slot(one.client) for one in chunk], self.chunk  # which may shrink further meanwhile
        return [
            result
            for first in range(0, len(again), size)
            for result in self._in_memory(again[first : first + size], slot, phase, received, context)
        ]

    def _small(self, slots: Sequence[ClientSlot]) -> bool:
        """Whether a step of all of ``slots`` at once lays out too few numbers to be divided among workers."""
        if self._values == 0:
            return False
        rows = min(self.loop.training.batch_size, max((len(slot.rows) for slot in slots), default=0))
        return len(slots) * rows * self._values < forms().divided

    def _chunks(self, ordered: list[ClientSlot]) -> list[list[ClientSlot]]:
        """See :func:`chunks_of`; one where a step is mostly dispatch, since workers share one interpreter lock."""
        if ordered and not self._apart and self._small(ordered):
            return [ordered]
        return chunks_of(ordered, self.chunk, self.loop.workers)

    def _train_chunk(
        self, stack: Stack, slots: Sequence[ClientSlot], phase: Phase, received: Tensors, context: RoundContext
    ) -> list[ClientResult]:
        trained = self._trained(stack, slots, phase, received, context)
        if phase.blind:
            training = self.loop.training.in_round(context.number)
            again = [phase.slot(one.client, one.rows, training, received, context) for one in slots]
            shown = self._trained(stack, again, phase, received, context, blind=True)
            trained = [own.sending(other) for own, other in zip(trained, shown, strict=True)]
        noises = [context.noise("channel" + phase.label, slot.client) for slot in slots]
        return [
            send(phase.channel, slot.client, own, noise, received["parameters"], context.look)
            for slot, own, noise in zip(slots, trained, noises, strict=True)
        ]

    def _trained(
        self,
        stack: Stack,
        slots: Sequence[ClientSlot],
        phase: Phase,
        received: Tensors,
        context: RoundContext,
        *,
        blind: bool = False,
    ) -> list[Trained]:
        loop, algorithm, training = self.loop, phase.for_clients(), self.loop.training.in_round(context.number)
        received = handed(received)
        own = phase.apart  # so that one copy must not let anything of a client through to others
        held = fields_of(algorithm) if own and len(slots) > 1 else None
        streams: list[NoiseStream] = []
        if stack.dropout:
            streams = [phase.dropout(slot.client, context) for slot in slots]

        private = phase.channel.dpsgd is not None

        def announce(counts: Sequence[int], clients: Sequence[int]) -> None:
            for layer in stack.dropout:
                layer.stack, layer.counts = [streams[place] for place in clients], counts

        keeper = CohortDoor(
            slots,
            loop.task.inputs,
            loop.task.targets,
            stack.gradients,
            announce,
            phase.for_client(loop.task.loss),
            phase.channel.dpsgd,
            phase.channel.statistics,
            loop.precision,
            stack.state,
            phase.local_only(blind=blind),
            self.lengths,
            stack.unaided,
            None if private else self._fixed_rows(algorithm, training),
        )
        plain = (stack.unaided is not None or private) and descends_plainly(algorithm, training)
        if self.lengths is not None:  # the step itself is looked at where "sub" rounds by places
            plain = plain and alike_up_to_the_end("sub", received["parameters"].dtype)
        if stack.state is not None:
            stack.state.restore()
        versions = versions_of(received)

        def begin(slot: ClientSlot, place: int) -> Tensors:
            if stack.randomness is not None:
                stack.randomness.draw_alone(streams[place])
            state = phase.client_state(slot.client, context.client_state, blind=blind)
            local: Tensors = given_plain(
                algorithm.begin(handed(received), state, training), f"what {algorithm.name} begins with"
            )
            if own and context.look is not None:
                context.look(None)
            return local

        with torch.no_grad(), stack.randomness or nullcontext():
            begun = [begin(slot, place) for place, slot in enumerate(slots)]
            announce([], [])
            local = {name: self._laid(stacked([tensors[name] for tensors in begun])) for name in begun[0]}
            del begun
            without_calls = plain and (stack.unaided or stack.gradients.unaided) is not None
            rests = stack.randomness.at_rest if stack.randomness and without_calls else nullcontext
            self._train(keeper, local, received, algorithm, training, streams, plain=plain, rests=rests, guarded=own)
            local = {name: padded(value, self._height(len(slots))) for name, value in local.items()}
            finish = for_each_client(  # which may write into it
                lambda local: algorithm.finish(local, received, training), guarded=own
            )
            uploads = self._wherever_clients_stand("finish", algorithm, len(slots), finish, local)
        check_unchanged(algorithm, received, versions)
        if held is not None:
            check_fields(algorithm, held)
        known = measures_of_stack(uploads, len(slots))
        return [
            Trained(
                {name: value[place] for name, value in uploads.items()},
                {name: local[name][place].clone() for name in algorithm.keeps},
                slot.log,
                known[place],
            )
            for place, slot in enumerate(slots)
        ]

    def _wherever_clients_stand(
        self,
        name: str,
        algorithm: Algorithm,
        clients: int,
        work: Callable[..., Tensors],
        local: Tensors,
        *numbers: Tensor,
    ) -> Tensors:
        """What ``work``, the method ``name`` of ``algorithm``, makes of ``clients``, none of whose places may show.

        Where a claim rests on it, what a client sends must not depend on who is stacked with it, so a kernel that
        rounds the last numbers of a stack otherwise is looked for when ``work`` first meets a stack of so many
        (:mod:`privfl.privacy.clipping.placement`). Whoever is trained alone stands in the first place always.

        Raises:
            NotStacked: there is one, and the stack has more than one client's place.
        """
        looks = clients > 1 and self.lengths is not None and self.loop.device.type == "cpu"
        if not looks or (name, clients) in self._placed:
            return work(local, *numbers)
        made: list[Tensors] = []
        calls = calls_of(lambda: made.append(work(local, *numbers)))
        by_place = [called for called in calls if not nothing_is_left_over((called,))]
        if by_place:
            kernel = by_place[0][0].partition(".")[0]
            raise NotStacked(f"'{kernel}' in {name} of {algorithm.name} rounds numbers by where in a stack they are")
        self._placed.add((name, clients))
        return made[0]

    def _fixed_rows(self, algorithm: Algorithm, training: LocalTraining) -> int | None:
        """How many rows all batches are padded to where a claim rests on bits, if that is a public number."""
        small = self.lengths is not None and training.batch_size <= ALIKE  # large ones waste a pass on few rows
        return training.batch_size if small and not overrides(algorithm, "plan") else None

    def _laid(self, stack: Tensor) -> Tensor:
        """``stack`` [clients, ...], where claims rest on it, as kernels take it that round by where numbers begin."""
        return stack if self.lengths is None or stack.dim() < 2 else evenly(stack)

    def _height(self, clients: int) -> int:
        """How many clients a step is stacked for: two at least where claims rest on it, or bits show who is alone."""
        return clients if self.lengths is None else max(clients, LEAST)

    def _train(
        self,
        keeper: CohortDoor,
        local: Tensors,
        received: Tensors,
        algorithm: Algorithm,
        training: LocalTraining,
        streams: list[NoiseStream],
        *,
        plain: bool,
        rests: Callable[[], AbstractContextManager[None]],
        guarded: bool,
    ) -> None:
        """All steps of all clients, in place; those with fewer steps leave the stack from its end.

        ``plain`` steps are a gradient and an update, which need no stack around them; ``rests`` is entered for steps;
        others are ``guarded`` where clients have to stay apart.
        """

        outside = keeper.door()

        def together(work: Work, batch: DrawnBatch) -> None:
            def one(local: Tensors, *numbers: Tensor) -> Tensors:
                work(local, received, keeper.hand(StepNumbers(*numbers)), outside, training)
                return local

            clients = len(batch.counts)
            height = self._height(clients)
            active = {name: padded(value[:clients], height) for name, value in local.items()}
            drawn = batch.numbers
            numbers = [padded(value, height) for value in (drawn.count, drawn.last, drawn.uniform, drawn.normal)]
            changed: Tensors = {}
            each = for_each_client(one, guarded=guarded)
            done = self._wherever_clients_stand(work.__name__, algorithm, clients, each, active, *numbers)
            for name, value in done.items():
                if name not in local:
                    raise ConfigError(
                        f"{algorithm.name} adds '{name}' to the client's state in a step; create it in begin"
                    )
                if height > clients or value.data_ptr() != active[name].data_ptr():
                    changed[name] = value[:clients]
            for name, value in changed.items():  # a step may swap tensors: none is overwritten before it is read
                changed[name] = value.clone() if len(changed) > 1 else value
            for name, value in changed.items():
                local[name][:clients] = value

        if overrides(algorithm, "prepare"):
            together(algorithm.prepare, keeper.everything())
        with rests():
            for batch in keeper.batches():
                if plain:
                    keeper.descend(local["parameters"][: len(batch.counts)], training.learning_rate)
                else:
                    together(algorithm.step, batch)
        if overrides(algorithm, "conclude"):
            together(algorithm.conclude, keeper.everything())
        if keeper.slots[0].personal_plan is not None:
            order = keeper.personalising()  # who has fewer of these steps may have had more of the others
            reorder(local, order)
            streams[:] = [streams[place] for place in order] if streams else []
            for batch in keeper.batches():
                together(algorithm.personalise, batch)
            reorder(local, sorted(range(len(order)), key=order.__getitem__))
