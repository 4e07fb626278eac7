"""Where the tape is let in: the noise source, the mechanisms, the clients' uploads and the server's side of a round."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from audits.fuzz.tape import BOTH, Tape, give, replaced, view
from privfl.engine import choice, loop, vectorised
from privfl.privacy.accounting import claims, tracker
from privfl.privacy.accounting.accountant import Bound
from privfl.privacy.accounting.population import Population
from privfl.privacy.channel.field import Field
from privfl.privacy.mechanisms.correlated import CorrelatedNoiseState
from privfl.privacy.mechanisms.distributed import DiscreteGaussianNoise, DistributedNoise, SkellamNoise
from privfl.privacy.noise import source
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.privacy.sizes import responses
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.simulation import plan, simulation

Change = tuple[Any, str, Any]


_STACKED: dict[object, str] = {}
"""Whether a combination can be stacked, found out once."""


@contextmanager
def watching(tape: Tape, fixed_key: bytes, *, price: bool = False, combination: object = None) -> Iterator[None]:
    """Whatever privfl does meanwhile goes to ``tape``; without ``price`` finite cells say ε = 1 instead of the truth.

    ``combination`` names what decides whether clients can be stacked: the library tries that once for each.
    """
    changes = [*_noise(tape, fixed_key), *_mechanisms(tape), *_messages(tape), *_statement(tape, price=price)]
    with replaced([*changes, *_out_of_sight(tape), *_shortcuts(combination)]):
        yield


def _out_of_sight(tape: Tape) -> list[Change]:
    """Mechanisms hold the tape now, and its gradients could be taken for training examples that they hold."""
    look = vars(plan)["check_held_examples"]

    def check(*given: Any) -> Any:
        noted = dict(vars(tape))
        vars(tape).update(vars(Tape()))
        try:
            return look(*given)
        finally:
            vars(tape).update(noted)

    return [(plan, "check_held_examples", check)]


def _shortcuts(combination: object) -> list[Change]:
    """What takes time and has no part in any claim: threads, evaluation on public rows, facts of a transcript."""
    why = vars(choice)["why_not_stacked"]

    def one_by_one(self: Any, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(work, items)

    def why_not_stacked(engine: Any, way: Any, received: Any) -> str:
        if combination is None:
            return str(why(engine, way, received))
        key = (combination, way)
        if key not in _STACKED:
            _STACKED[key] = why(engine, way, received)
        return _STACKED[key]

    return [
        (loop.LoopEngine, "in_order", one_by_one),
        (choice, "why_not_stacked", why_not_stacked),
        (simulation, "evaluate", lambda *given: {}),
        (simulation, "public_facts", lambda plan: None),
    ]


def _noise(tape: Tape, fixed_key: bytes) -> list[Change]:
    make, build, draw, add = (
        NoiseSource.stream,
        NoiseStream.__init__,
        NoiseStream.poisson_sample,
        source.add_gaussian_rows_,
    )

    def stream(self: NoiseSource, *labels: int | str) -> NoiseStream:
        made: Any = make(self, *labels)
        place = tape.session, labels
        if tape.played is not None and place in tape.played.keys and not tape.paused:
            made = NoiseStream(tape.played.keys[place])
        if not tape.paused:
            tape.keys.setdefault(place, made.fuzz_key)
        made.fuzz_labels = labels
        tape.fixed_key_used |= self.key == fixed_key
        stream: NoiseStream = made
        return stream

    def from_os(kind: type[NoiseSource]) -> NoiseSource:
        """A key that nobody gave, another one in every session, but the same in both worlds."""
        return kind(hashlib.sha256(fixed_key + bytes([tape.session])).digest(), reproducible=False)

    def begin(self: NoiseStream, key: bytes | Callable[[], bytes]) -> None:
        build(self, key)
        self.fuzz_key = self.key  # type: ignore[attr-defined]

    def poisson_sample(self: NoiseStream, n: int, rate: float) -> Any:
        return tape.draw(self, n, rate, draw(self, n, rate))

    def add_gaussian_rows_(streams: Sequence[NoiseStream], rows: Tensor, deviations: Sequence[float]) -> Tensor:
        before = [view(row) for row in rows]
        made = add(streams, rows, deviations)
        for one, row, value, deviation in zip(streams, made, before, deviations, strict=True):
            kind = str(getattr(one, "fuzz_labels", ("unknown",))[0]).split(" ")[0]
            other = tape.note(one, kind, value, deviation, view(row))
            if other is not None:
                give(row, other)
        return made

    holders = [module for module in _holders() if vars(module)["add_gaussian_rows_"] is add]
    return [
        (NoiseSource, "stream", stream),
        (NoiseSource, "from_os", classmethod(from_os)),
        (NoiseStream, "__init__", begin),
        (NoiseStream, "poisson_sample", poisson_sample),
        *[(module, "add_gaussian_rows_", add_gaussian_rows_) for module in holders],
    ]


@cache
def _holders() -> list[Any]:
    """The modules that call the function that noises rows by its name."""
    named = [module for name, module in list(sys.modules.items()) if name.startswith("privfl.")]
    return [module for module in named if "add_gaussian_rows_" in vars(module)]


def _mechanisms(tape: Tape) -> list[Change]:
    respond, randomise = SizeMechanism.respond, Field.randomise
    add, add_share = CorrelatedNoiseState.add_, DistributedNoise.add_share_
    variances: list[float] = []
    fresh = vars(responses)["_draw"]

    def ask(clients: Any, given: Any, sizes: Any, mechanism: Any, source: NoiseSource) -> Any:
        tape.answered.update((int(a), int(b), source.key) for a, b in zip(clients, given, strict=True))
        return fresh(clients, given, sizes, mechanism, source)

    def answer(self: SizeMechanism, sizes: Any, stream: NoiseStream) -> Any:
        answers = respond(self, sizes, stream)
        value, released = np.asarray(sizes, dtype=np.float64), np.asarray(answers, dtype=np.float64)
        other = tape.note(stream, "size", value, self.epsilon, released)
        return answers if other is None else other.astype(answers.dtype)

    def report(self: Field, value: Tensor, noise: NoiseStream) -> Tensor:
        made = randomise(self, value, noise)
        other = tape.note(noise, "report", view(value), self.epsilon or 0.0, view(made))
        if other is not None:
            give(made, other)
        return made

    def correlated(self: CorrelatedNoiseState, total: Tensor, round: int, noise: NoiseSource) -> Tensor:
        before = view(total)
        made = add(self, total, round, noise)
        stream = noise.stream("server", "correlated", "round", round)
        column = float(self.columns[round])
        other = tape.note(stream, "correlated", before, self.deviation, view(made), column=column)
        if other is not None:
            give(made, other)
        return made

    def share(self: DistributedNoise, integers: Any, stream: NoiseStream, terms: Any) -> Any:
        before = integers.astype(np.float64)
        variances.clear()
        made = add_share(self, integers, stream, terms)
        facts = {
            "bound": float(terms.l2_norm),
            "variance": sum(variances),
            "total": sum(variances) * terms.survivors,
            "claimed": (self.noise_multiplier * terms.levels) ** 2,
        }
        other = tape.note(stream, "share", before, self.noise_multiplier, made.astype(np.float64), **facts)
        if other is not None:
            made[:] = other.astype(made.dtype)
        return made

    def drawn(kind: type[DistributedNoise]) -> Callable[..., Any]:
        before = kind._draw

        def draw(self: Any, stream: NoiseStream, n: int, variance: float) -> Any:
            variances.append(variance)
            return before(self, stream, n, variance)

        return draw

    return [
        (responses, "_draw", ask),
        (SizeMechanism, "respond", answer),
        (Field, "randomise", report),
        (CorrelatedNoiseState, "add_", correlated),
        (DistributedNoise, "add_share_", share),
        (DiscreteGaussianNoise, "_draw", drawn(DiscreteGaussianNoise)),
        (SkellamNoise, "_draw", drawn(SkellamNoise)),
    ]


def _messages(tape: Tape) -> list[Change]:
    send, collect, aggregate = vars(loop)["send"], vars(simulation)["collect"], vars(simulation)["aggregate"]

    pick = vars(simulation)["pick_engine"]

    def choose(*given: Any) -> Any:
        tape.paused = True
        try:
            return pick(*given)
        finally:
            tape.paused = False

    def leave(channel: Any, client: int, trained: Any, *rest: Any) -> Any:
        if tape.paused:
            return send(channel, client, trained, *rest)
        arrives = replace(trained, upload={}) if client == tape.left_out else trained
        result = send(channel, client, arrives, *rest)
        number = channel.round.number
        tape.senders.add((number, client))
        tape.logs.append((client, trained.log))
        if channel.secure is None:
            values = [] if result.upload is None else [result.upload[name] for name in sorted(result.upload)]
            tape.see(f"round {number}: upload of client {client}", ("server",), *values)
        return result

    def gather(costs: Any, selection: Any, server: Mapping[str, Tensor], context: Any) -> Any:
        number, phase = context.number, costs.phase
        told = phase.channel.broadcast_to_clients(phase.algorithm.broadcast(server))
        tape.see(f"round {number}: what clients receive", BOTH, *[told[name] for name in sorted(told)])
        tape.see(f"round {number}: who is asked", ("server",), selection.clients, selection.multiplicity)
        sums = collect(costs, selection, server, context)
        known = [sums.total[name] for name in sorted(sums.total)]
        tape.see(f"round {number}: sums", ("server",), *known, sums.members, sums.weights, sums.weight, sums.aborted)
        return sums

    def advance(costs: Any, sums: Any, server: Any, context: Any) -> Any:
        after = aggregate(costs, sums, server, context)
        number = context.number
        tape.see(f"round {number}: state of the server", ("server",), *[after[name] for name in sorted(after)])
        tape.see(f"round {number}: model", BOTH, after["parameters"])
        return after

    return [
        (simulation, "pick_engine", choose),
        (loop, "send", leave),
        (vectorised, "send", leave),
        (simulation, "collect", gather),
        (simulation, "aggregate", advance),
    ]


def _statement(tape: Tape, *, price: bool) -> list[Change]:
    make = vars(simulation)["make_statement"]

    def state(ledger: Any, *given: Any, reproducible_noise: bool, caveats: Sequence[str] = (), **named: Any) -> Any:
        tape.ledger, tape.reproducible = ledger, reproducible_noise
        tape.statement = make(ledger, *given, reproducible_noise=reproducible_noise, caveats=caveats, **named)
        return tape.statement

    changes: list[Change] = [(simulation, "make_statement", state)]
    if not price:
        changes += [(claims, "account", _finite), (tracker.EpsilonTracker, "so_far", lambda self: {})]
    return changes


def _finite(kinds: Any, counts: Any, delta: float, *, interval: bool = True) -> Population:
    """A finite ε for everybody, for who only asks whether a cell is finite: an accountant takes a second."""
    bound = Bound(1.0, "none", 0.0, 1.0, 1.0, "not computed")
    return Population(np.ones(counts.shape[0]), 0, replace(bound), "")
