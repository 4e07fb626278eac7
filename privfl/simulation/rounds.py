"""The phases of a round: each collects what its cohort sends, then aggregates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.engine.aggregation import Aggregator, CohortSums, PlainAggregator, aggregate_uploads
from privfl.engine.choice import Engine
from privfl.engine.secure_aggregation import SecureAggregator
from privfl.engine.workspace import Phase, RoundContext
from privfl.errors import ConfigError
from privfl.federation.cohorts import Selection
from privfl.federation.task import Task
from privfl.plain_tensors import given_plain
from privfl.privacy.sizes.known_sizes import Sizes
from privfl.randomness import torch_stream
from privfl.simulation.plan import Plan
from privfl.simulation.ray_engine import RayEngine
from privfl.simulation.recorder import Recorder
from privfl.simulation.remote_engine import RemoteEngine
from privfl.simulation.round_costs import RoundCosts
from privfl.simulation.shared_state import SharedState
from privfl.validation import said


@dataclass(frozen=True)
class ServerContext(RoundContext):
    """The round that is going on as the server sees it, from when its cohort is known.

    Args:
        engine: trains the cohort.
        recorder: writes down what observers see.
        sizes: what clients answered about their sizes.
        facts: what the server knows before uploads arrive; the weight is the public one.
        task: that clients train on.
    """

    engine: Engine | RayEngine
    recorder: Recorder
    sizes: Sizes
    facts: Round
    task: Task


def prices(plan: Plan, phases: Sequence[Phase], server: Tensors, unlearnt: Tensors | None) -> list[RoundCosts]:
    """What each of ``phases`` costs, for a ``server`` as it is; ``unlearnt``: as :meth:`Plan.unlearnt` says."""
    training = plan.training.in_round(phases[0].channel.round.number)
    return [
        RoundCosts(
            phase,
            training,
            phase.algorithm.broadcast(server),
            sends=any(one.channel.fields for one in phases),
            first=None if unlearnt is None else phase.algorithm.broadcast(dict(unlearnt)),
        )
        for phase in phases
    ]


def collect(costs: RoundCosts, selection: Selection, server: Tensors, context: ServerContext) -> CohortSums:
    """Let the cohort do its part of the phase that ``costs`` prices, and put together what arrives."""
    phase, clients = costs.phase, selection.clients.tolist()
    received: Tensors = given_plain(phase.algorithm.broadcast(server), f"what {phase.algorithm.name} broadcasts")
    hidden = phase.channel.has_client_level_noise or phase.channel.noise_at_server
    weights = _weights(phase.algorithm, selection, server, context.sizes, hidden=hidden)
    factors = dict(zip(clients, weights.tolist(), strict=True))
    known = dict(zip(clients, selection.multiplicity.tolist(), strict=True)) if phase.channel.hides_weights else factors
    aggregator = _aggregator(phase, known, received["parameters"], context)
    states = () if isinstance(context.engine, RayEngine) else context.engine.states
    before = SharedState(context.task, phase, costs.training, received, states)
    context = replace(context, look=before.look)
    if isinstance(aggregator, str):
        sums = CohortSums(problems=Counter({aggregator: len(clients)}), aborted=True)
    elif isinstance(context.engine, RayEngine):
        assert isinstance(aggregator, PlainAggregator)
        sums = context.engine.sums(phase, received, factors, context, aggregator, costs.check)
    else:
        results = context.engine.train(clients, received, context, phase)
        seen = context.recorder.uploads(results) if isinstance(aggregator, PlainAggregator) else results
        sums = aggregate_uploads(seen, aggregator, factors, context.client_state, costs.check)
    if not sums.members:
        like = received["parameters"]
        like = like.double() if phase.channel.has_central_noise else like  # as a sum: noise must not be rounded apart
        sums.total = {field.name: _nothing(field.shape, like) for field in phase.channel.sent}
    sums.asked, sums.shared = factors, sums.shared + before.changed()
    if isinstance(context.engine, RemoteEngine):
        sums.shared += context.engine.left
        context.engine.left = []
    context.recorder.exchanged(phase, phase.channel.broadcast_to_clients(received), known, sums)
    return sums


def aggregate(costs: RoundCosts, sums: CohortSums, server: Tensors, context: ServerContext) -> Tensors:
    """The server's state after the phase; unchanged if nothing arrived, unless noise must hide just that.

    Whatever the algorithm's code makes of what it is told is published. Where noise is added to sums it is told who was
    asked and not whose upload could be used, which is for the data to say; where the claim rests on a secret draw,
    nothing that the draw decides.
    """
    phase, channel = costs.phase, costs.phase.channel
    hidden = channel.has_client_level_noise or channel.has_central_noise
    if sums.aborted or (not hidden and not sums.members):
        return server
    told = sums.asked if hidden else dict(zip(sums.members, sums.weights, strict=True))
    weight = sum(told.values()) if hidden else sums.weight
    facts = replace(
        context.facts,
        weight=context.facts.weight if channel.has_client_level_noise else weight,
        generator=torch_stream(context.seed, "server" + phase.label, context.number),
    )
    if not channel.amplified:
        members = torch.tensor(list(told), dtype=torch.int64)
        facts = replace(facts, members=members, weights=torch.tensor(list(told.values()), dtype=torch.float64))
    total = channel.at_server(sums.total, context.source, phase.label, context.facts.weight)
    learnt = {name: total.pop(name) for name in channel.chain.server_state if name in total}
    if channel.has_central_noise or channel.secure is not None:
        total = {name: value.to(costs.received["parameters"].dtype) for name, value in total.items()}
    after = phase.algorithm.aggregate(server, total, facts, costs.training)
    _check_state(phase.algorithm.name, after, server)
    return {**after, **_in_its_type(after, server), **learnt}


def _in_its_type(after: Tensors, before: Tensors) -> Tensors:
    """The model in the type that it had: one client that sends float64 would have everybody train in it from then."""
    if "parameters" not in before:
        return {}
    return {"parameters": after["parameters"].to(before["parameters"].dtype)}


def _check_state(name: str, after: Any, before: Tensors) -> None:
    """Refuse what the aggregate of the algorithm ``name`` returned, unless it may follow on the state ``before``.

    Raises:
        ConfigError: it is no dictionary of tensors, or its parameters are missing or have another shape.
    """
    mend = "return the server's next state, such as {**server, 'parameters': server['parameters'] + step}"
    if not isinstance(after, Mapping):
        raise ConfigError(f"{name}'s aggregate returned {said(after)}, which is no dictionary of tensors; {mend}")
    for part, value in after.items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"{name}'s aggregate returned {said(value)} as {part!r}, which is no tensor; {mend}")
    if "parameters" not in before:
        return
    if "parameters" not in after:  # other parts may be dropped
        raise ConfigError(f"{name}'s aggregate returned no 'parameters', which the server's state holds; {mend}")
    shapes = tuple(after["parameters"].shape), tuple(before["parameters"].shape)
    if shapes[0] != shapes[1]:  # of a history, say, it may grow
        found = f"'parameters' of shape {shapes[0]}, and before it was {shapes[1]}"
        raise ConfigError(f"{name}'s aggregate returned {found}; {mend}")


def _aggregator(phase: Phase, weights: Mapping[int, float], like: Tensor, context: ServerContext) -> Aggregator | str:
    """What adds the cohort's uploads up, or why their sum cannot be had; ``weights``, as the server knows them."""
    if phase.channel.secure is None:
        channel = phase.channel
        return PlainAggregator(channel.sent, narrows=not channel.has_central_noise)
    if phase.channel.refusal:
        return phase.channel.refusal
    engine = context.engine
    aggregator = engine.secure_aggregator if isinstance(engine, RemoteEngine) else SecureAggregator
    try:
        return aggregator(phase, list(weights), list(weights.values()), like, context.source)
    except ConfigError as error:
        return f"no secure sum over {len(weights)} clients: {error}"


def _weights(
    algorithm: Algorithm, selection: Selection, server: Tensors, sizes: Sizes, *, hidden: bool
) -> NDArray[np.float64]:
    """The weight of each upload of the cohort; uniform where noise on sums covers what every one may add (``hidden``).

    Raises:
        ConfigError: what the server decided are no weights.
    """
    times = selection.multiplicity.astype(np.float64)
    if hidden or algorithm.weights() == "uniform":
        return times
    if algorithm.weights() == "size":
        return times * sizes.weights(selection.clients)
    decided = algorithm.server_weights(server, torch.from_numpy(selection.clients)).double().cpu().numpy()
    if decided.shape != selection.clients.shape or not (np.isfinite(decided).all() and (decided >= 0).all()):
        raise ConfigError(
            f"{algorithm.name} decided the weights {decided}; give one finite number ≥ 0 for each of "
            f"{len(selection.clients)} clients"
        )
    weights: NDArray[np.float64] = times * decided
    return weights


def _nothing(shape: tuple[int, ...] | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if shape is None else like.new_zeros(shape)
