"""What one worker owns, and how a client's upload leaves it."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Algorithm, Tensors, overrides
from privfl.engine.broadcast import handed
from privfl.engine.client_randomness import ClientRandomness
from privfl.engine.dropout import StreamDropout, give_dropout_streams
from privfl.engine.measures import NOTHING, Measured, measures_of
from privfl.engine.sequences import Sequence
from privfl.errors import ConfigError, unknown
from privfl.models.flat_network import FlatNetwork
from privfl.models.layouts import lay_channels_innermost
from privfl.models.module_state import ModuleState
from privfl.plain_tensors import plain, plain_parts
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.client_side import BrokenUpload, Look
from privfl.privacy.channel.field import Field
from privfl.privacy.clipping.known import known_function
from privfl.privacy.clipping.per_sample import GradSampleMode, PerSampleGradients
from privfl.privacy.door.batch_plans import LocalTraining, private_plan
from privfl.privacy.door.keeper import ClientSlot, LocalOnly
from privfl.privacy.door.log import DoorLog
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import Loss
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.randomness import stream_key, torch_stream
from privfl.references import shipped


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Workspace:
    """A network trained in place (or the template of a stack), its clipper, and its drop-out layers.

    Without DP-SGD ``clipper`` is there if it sums plain gradients faster than autograd does. ``state`` is what a
    network from outside may remember from one pass to the next, and ``sequence`` computes plain gradients without
    autograd where that serves. ``randomness`` is to be entered while a client trains whose parts may call random
    functions; the layer that draws for them is one of ``dropout``.
    """

    own: FlatNetwork
    clipper: PerSampleGradients | None
    dropout: list[StreamDropout]
    state: ModuleState | None
    sequence: Sequence | None = None
    randomness: ClientRandomness | None = None

    @classmethod
    def build(
        cls,
        module: nn.Module,
        device: torch.device,
        way: GradSampleMode | None,
        *,
        innermost: bool = False,
        draws: bool = False,
        handed_out: bool = False,
    ) -> Workspace:
        """A workspace around ``module``.

        ``way`` forms per-sample gradients, or plain sums; ``innermost`` lays the channels of images out innermost;
        ``draws`` says that random functions may be called, and ``handed_out`` that code from outside gets the network.
        """
        dropout, randomness = give_dropout_streams(module), ClientRandomness(module) if draws else None
        if randomness is not None:
            dropout.append(randomness.layer)
        if innermost:
            lay_channels_innermost(module)
        own = FlatNetwork(module, device)
        own.module.train()
        clipper = None if way is None else PerSampleGradients(own, way)
        state = ModuleState.of(own.module, handed_out=handed_out)
        return cls(own, clipper, dropout, state, randomness=randomness)

    @property
    def outputs(self) -> Callable[[Tensor], Tensor]:
        """What computes the network's outputs [B, ...] from inputs [B, ...]: its known steps, or itself."""
        known = self.unaided
        return known.outputs if isinstance(known, Sequence) else self.own.module

    @property
    def unaided(self) -> Any:
        """What computes gradients of the task's own loss without autograd, plain or clipped, or ``None``."""
        return self.sequence or (self.clipper and self.clipper.unaided)

    def announce(self, present: int | None, length: int = 1) -> None:
        """Say that the next pass holds ``present`` rows and padding up to ``length``; ``None``: no padding."""
        for layer in self.dropout:
            layer.present = None if present is None else (present, length)

    def start(self, stream: NoiseStream) -> None:
        """Ready the network for training one client whose drop-out draws from ``stream``."""
        self.announce(None)
        if self.state is not None:
            self.state.restore()
        self.own.module.train()
        for layer in self.dropout:
            layer.generator = stream


BLIND = "blind/"
"""Prefix of what a client keeps of the training that its upload came from."""


@dataclass(frozen=True)
class RoundContext:
    """The round that is going on, as everybody sees it who trains for it.

    Args:
        number: of the round, from 0.
        seed: root of the experiment's randomness.
        source: of privacy noise.
        kept: what clients keep between rounds, by client; who has kept nothing yet is missing.
        look: called wherever a client's part may have left something that the next client's could take away again.
    """

    number: int
    seed: int
    source: NoiseSource
    client_state: dict[int, Tensors]
    look: Look | None = field(default=None, kw_only=True)

    def stream(self, use: str, client: int) -> torch.Generator:
        """Random numbers of the experiment for ``client`` in this round."""
        return torch_stream(self.seed, use, self.number, client)

    def noise(self, use: str, client: int) -> NoiseStream:
        """Privacy noise for ``client`` in this round."""
        return self.source.stream(use, self.number, client)


@dataclass(frozen=True)
class Phase:
    """What a cohort does in one go: an algorithm (or its survey), and the channel that its uploads pass.

    ``label`` tells the noise streams of a round's phases apart: noise that is used twice can be subtracted.
    """

    algorithm: Algorithm
    channel: RoundChannel
    label: str = ""

    @property
    def blind(self) -> bool:
        """Whether uploads are computed without the gradients that are to stay with the client.

        A mechanism at the door claims that uploads do not depend on them. The tests of privfl's own algorithms show it;
        any other algorithm trains every client twice, with these gradients for what the client keeps and with zeros in
        their place for what it sends ("secure multi-execution", Devriese and Piessens 2010).
        """
        return self._withholds and not shipped(type(self.algorithm))

    @property
    def _withholds(self) -> bool:
        """Whether a mechanism at the door claims that uploads do not depend on gradients that stay with the client."""
        protected = self.channel.dpsgd is not None or bool(self.channel.statistics)
        return protected and self.algorithm.local_only

    @property
    def apart(self) -> bool:
        """Whether a claim rests on nothing that the algorithm's own code leaves behind in one training for another."""
        return self.blind or (self.channel.covers_clients and not shipped(type(self.algorithm)))

    @property
    def forgets(self) -> bool:
        """Whether a claim rests on nothing that the loss or the model leaves behind from one call to the next.

        Under DP-SGD they see one example at a time, and yet how often they are called depends on the batches.
        """
        return self.channel.covers_clients or self.channel.dpsgd is not None or bool(self.channel.statistics)

    @property
    def mechanisms_forget(self) -> bool:
        """Whether a claim rests on nothing that the mechanisms around updates leave behind in one for another."""
        return self.channel.covers_clients or self.channel.noise_at_server

    def dropout(self, client: int, context: RoundContext) -> NoiseStream:
        """What ``client``'s drop-out masks are drawn from in this round: secret coins under DP-SGD."""
        if self.channel.dpsgd is not None:
            return context.noise("dropout" + self.label, client)
        return NoiseStream(stream_key(context.seed, "dropout", context.number, client))

    def for_client(self, loss: Loss) -> Loss:
        """``loss`` as one client uses it: from outside a copy, where noise covers what one client sends.

        Not where gradients that stay with the client may leave something in it for those that are sent.
        """
        alone = self.channel.covers_clients and not self._withholds
        return copy.deepcopy(loss) if alone and not known_function(loss) else loss

    def local_only(self, *, blind: bool) -> LocalOnly:
        """What a door makes of a gradient that is to stay with the client."""
        if not self.algorithm.local_only:
            return "undeclared"
        return "withheld" if blind else "given"

    def for_clients(self) -> Algorithm:
        """The algorithm as one client, or one stack of them, runs it.

        Noise on updates covers one client's upload only if nothing of it gets into another's, and a blind training is
        blind only if nothing gets into it from the other one; so there an algorithm from outside starts from a copy,
        and takes nothing along in a field of its own.
        """
        return copy.deepcopy(self.algorithm) if self.apart else self.algorithm

    def client_state(self, client: int, client_state: Mapping[int, Tensors], *, blind: bool = False) -> Tensors:
        """Copies of what ``client`` kept, or would have kept had it taken part before; ``blind``: of that training."""
        kept = client_state.get(client, {}).items()
        if blind:
            own = {name.removeprefix(BLIND): value.clone() for name, value in kept if name.startswith(BLIND)}
        else:
            own = {name: value.clone() for name, value in kept if not name.startswith(BLIND)}
        keeps = self.algorithm.keeps
        if not overrides(self.algorithm, "initial_client_state") or (keeps and all(name in own for name in keeps)):
            return own
        return {**self.algorithm.initial_client_state(client), **own}

    def slot(
        self, client: int, rows: Tensor, training: LocalTraining, received: Tensors, context: RoundContext
    ) -> ClientSlot:
        """``client``'s place at a door: its ``rows``, its plan and its streams of this round."""
        algorithm, private, draws, totals = self.algorithm, None, Draws(), None
        if self.channel.dpsgd is not None:
            private = context.noise("door" + self.label, client)
        if self.channel.statistics:
            totals = context.noise("totals" + self.label, client)
        uniform, normal = algorithm.random_numbers()
        if uniform or normal:
            draws = Draws(uniform, normal, context.stream("algorithm", client))
        plan = algorithm.plan(private_plan(training, self.channel.dpsgd, client), handed(received))
        shuffle, after = context.stream("batches", client), algorithm.personal_plan(training)
        return ClientSlot(client, rows, plan, shuffle, private, draws, totals, personal_plan=after)


def phases_of(algorithm: Algorithm, channel: RoundChannel, label: str = "") -> list[Phase]:
    """What a round consists of, in order, a survey's own survey first; ``channel`` is that of the training phase."""
    phase = Phase(algorithm, channel, label)
    survey = algorithm.survey()
    if survey is None:
        return [phase]
    return [*phases_of(survey.bind(algorithm.context), channel.survey(survey.fields()), label + " survey"), phase]


@dataclass(frozen=True)
class Trained:
    """What a client's training ended in: what it sends, what it keeps, and what passed its door.

    ``known`` are measures of the upload that were taken already.
    """

    upload: Any
    keeps: Tensors
    log: DoorLog
    known: Measured = field(default_factory=dict)

    def sending(self, other: Trained) -> Trained:
        """This training, but for what is sent: the upload of ``other``, the blind one, whose state is kept besides."""
        kept = {**self.keeps, **{BLIND + name: value for name, value in other.keeps.items()}}
        return Trained(other.upload, kept, other.log, other.known)


@dataclass(frozen=True)
class ClientResult:
    """What came back from one client: its upload after the client's side of the channel, or why there is none.

    ``zeroed`` says why an upload could not be used that counts as zeros; the server does not learn it. ``known`` are
    measures of the upload that were taken already.
    """

    client: int
    upload: Tensors | None
    client_state: Tensors
    log: DoorLog
    dropped: str = ""
    zeroed: str = ""
    known: Measured = field(default_factory=dict)


def send(
    channel: RoundChannel, client: int, trained: Trained, noise: NoiseStream, like: Tensor, look: Look | None = None
) -> ClientResult:
    """Pass ``client``'s upload through its side of ``channel``; one that cannot be used is dropped, with the reason.

    Where noise must hide who failed, it counts as zeros instead; the client then keeps what it had, as if dropped. So
    does a randomised report that cannot be used: it counts as the low end of its range, and is randomised like others.
    ``like`` [size] has the shape and type that an update must have; ``look`` is that of the round.
    """
    upload, unreported = _with_reports(channel, plain_parts(trained.upload), like)
    log = trained.log
    problem, known = _problem(channel, upload, like, trained.known)
    sent = None
    if not problem:
        try:
            sent = channel.at_client(upload, noise, like=like, broken=False, look=look)
            known = _measured(channel.measured, sent, known if sent is upload else NOTHING)
            problem = _too_long(channel, sent, known)
        except BrokenUpload as error:
            problem = str(error)
    if problem and not channel.zero_fills_failures:
        return ClientResult(client, None, {}, log, problem)
    if sent is None:
        sent, known = channel.at_client({}, noise, like=like, broken=True, look=look), NOTHING
    zeroed = problem or unreported
    return ClientResult(client, sent, {} if zeroed else trained.keeps, log, zeroed=zeroed, known=known)


def _with_reports(channel: RoundChannel, upload: Any, like: Tensor) -> tuple[Any, str]:
    """``upload`` with NaN for each randomised report that cannot be used, and why one cannot; empty if all can."""
    reports = [field.name for field in channel.fields if field.epsilon is not None]
    alone = len(reports) == len(channel.fields)
    if not reports or not (alone or isinstance(upload, dict)):
        return upload, ""
    given: dict[str, Any] = upload if isinstance(upload, dict) else {}
    broken = {name: problem for name in reports if (problem := _report_problem(name, given.get(name)))}
    filled = {**given, **dict.fromkeys(broken, like.new_tensor(math.nan))}
    return (filled, next(iter(broken.values()))) if broken else (upload, "")


def _report_problem(name: str, value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"sent no '{name}'"
    if plain(value) is None:
        return f"sent '{name}' as {type(value).__name__}"
    if value.shape != ():
        return f"sent '{name}' of shape {tuple(value.shape)}"
    return "" if value.dtype in (torch.float32, torch.float64) else f"sent '{name}' as {value.dtype}"


def _too_long(channel: RoundChannel, sent: Tensors, known: Measured) -> str:
    """Why what is ``sent`` is longer than any honest upload, in a few words; empty if it is not."""
    for kind in channel.measured:
        value, largest = sent[kind.name], known[kind.name].largest
        # No vector is longer than so many of its largest numbers. In float32 the norm of a long one is rounded, and of
        # a huge one infinite. Near the bound and above it the norm in float64 counts, of numbers that cannot overflow
        # when they are squared.
        enough = 0.99 * channel.max_upload_norm
        if not largest * math.sqrt(value.numel()) <= enough and not float(torch.linalg.vector_norm(value)) <= enough:
            scale = largest or 1.0
            if float(torch.linalg.vector_norm(value.double() / scale)) * scale > channel.max_upload_norm:
                return f"sent '{kind.name}' longer than max_upload_norm = {channel.max_upload_norm:g}"
    return ""


def _measured(fields: Iterable[Field], upload: Tensors, known: Measured) -> Measured:
    """The measures of these ``fields`` of ``upload``, with those that are ``known``."""
    return {**known, **{one.name: measures_of(upload[one.name]) for one in fields if one.name not in known}}


def _problem(channel: RoundChannel, upload: Any, like: Tensor, known: Measured) -> tuple[str, Measured]:
    """Why this upload cannot be used, in a few words, empty if it can, and its measures as far as they are taken.

    Raises:
        ConfigError: it is named otherwise than declared, which no client would get right.
    """
    names = {field.name for field in channel.fields}
    if isinstance(upload, dict) and upload and set(upload) != names:
        wrong = next(iter(set(upload) - names), None)
        if wrong is not None:
            raise unknown("field of an upload, which finish() returns and fields() does not declare,", wrong, names)
        raise ConfigError(
            f"finish() returned the fields {', '.join(upload)} and fields() declares {', '.join(sorted(names))}; "
            "return all that is declared, and declare all that is returned"
        )
    for kind in channel.fields:
        value = upload.get(kind.name) if isinstance(upload, dict) else None
        if not isinstance(value, Tensor):
            return f"sent no '{kind.name}'", known
        if plain(value) is None:
            return f"sent '{kind.name}' as {type(value).__name__}", known
        if tuple(value.shape) != (tuple(like.shape) if kind.shape is None else kind.shape):
            return f"sent '{kind.name}' of shape {tuple(value.shape)}", known
        if value.dtype not in (torch.float32, torch.float64):
            return f"sent '{kind.name}' as {value.dtype}", known
        if kind.epsilon is not None:
            continue  # see _with_reports
        known = _measured([kind], upload, known)
        if not known[kind.name].finite:
            return f"sent a non-finite '{kind.name}'", known
    return "", known
