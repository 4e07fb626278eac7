"""The phases of a round: a survey if the algorithm asks for one, then training; each collects, then aggregates."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.engine.aggregation import Adder, PlainAdder, Sums, add_up
from privfl.engine.choice import Engine
from privfl.engine.secure_aggregation import SecureAdder
from privfl.engine.workspace import Phase
from privfl.errors import ConfigError
from privfl.federation.cohorts import Selection
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.known_sizes import Sizes
from privfl.randomness import torch_stream
from privfl.simulation.recorder import Recorder
from privfl.simulation.round_costs import RoundCosts


@dataclass(frozen=True)
class Moment:
    """The round that is going on: its number, its streams, and what the server knows about the federation.

    Args:
        number: of the round, from 0.
        seed: root of the experiment's randomness.
        source: of privacy noise.
        public_weight: divides the sums if the channel hides clients.
        clients: of the whole federation.
        asked: clients that were asked in this round, each as often as it counts.
        samples: of the whole federation, exact or estimated; ``None`` if nobody asked.
        recorder: writes down what observers see.
    """

    number: int
    seed: int
    source: NoiseSource
    public_weight: float
    clients: int
    asked: int
    samples: float | None
    recorder: Recorder


def phases_of(algorithm: Algorithm, channel: RoundChannel, label: str = "") -> list[Phase]:
    """What a round consists of, in order, a survey's own survey first; ``channel`` is that of the training phase."""
    phase = Phase(algorithm, channel, label)
    survey = algorithm.survey()
    if survey is None:
        return [phase]
    return [*phases_of(survey.on(algorithm.setting), channel.survey(survey.fields()), label + " survey"), phase]


def collect(
    phase: Phase,
    engine: Engine,
    selection: Selection,
    server: Tensors,
    kept: MutableMapping[int, Tensors],
    sizes: Sizes,
    costs: RoundCosts,
    moment: Moment,
) -> Sums:
    """Let the cohort do its part of ``phase``, and put together what arrives."""
    clients, algorithm = selection.clients.tolist(), phase.algorithm
    received = algorithm.broadcast(server)
    weights = selection.times.astype(np.float64)
    if algorithm.weights() == "size":
        weights = weights * sizes.weights(selection.clients)
    elif algorithm.weights() == "server":
        weights = weights * _decided(algorithm, server, selection)
    factors = dict(zip(clients, weights.tolist(), strict=True))
    adder = _adder(phase, selection, received["parameters"], moment)
    if isinstance(adder, str):
        sums = Sums(problems=Counter({adder: len(clients)}), aborted=True)
    else:
        results = engine.train(
            clients, received, kept, round=moment.number, seed=moment.seed, source=moment.source, phase=phase
        )
        seen = moment.recorder.uploads(results) if isinstance(adder, PlainAdder) else results
        sums = add_up(seen, adder, factors, kept, costs.check)
    if not sums.members:
        sums.total = {field.name: _nothing(field.shape, received["parameters"]) for field in phase.channel.sent}
    known = dict(zip(clients, selection.times.tolist(), strict=True)) if phase.channel.hides_weights else factors
    moment.recorder.exchanged(phase, phase.channel.broadcast_to_clients(received), known, sums)
    return sums


def aggregate(phase: Phase, sums: Sums, server: Tensors, costs: RoundCosts, moment: Moment) -> Tensors:
    """The server's state after ``phase``; unchanged if nothing arrived, unless noise must hide just that."""
    channel = phase.channel
    hidden = channel.has_client_level_noise or channel.has_central_noise
    if sums.aborted or (not hidden and not sums.members):
        return server
    facts = Round(
        weight=moment.public_weight if channel.has_client_level_noise else sums.weight,
        cohort=moment.asked,
        clients=moment.clients,
        samples=moment.samples,
        number=moment.number,
        members=torch.tensor(sums.members, dtype=torch.int64),
        factors=torch.tensor(sums.factors, dtype=torch.float64),
        generator=torch_stream(moment.seed, "server" + phase.label, moment.number),
    )
    total = channel.at_server(sums.total, moment.source, phase.label, moment.public_weight)
    learnt = {name: total.pop(name) for name in channel.chain.server_state if name in total}
    if channel.has_central_noise or channel.secure is not None:
        total = {name: value.to(costs.received["parameters"].dtype) for name, value in total.items()}
    after = phase.algorithm.aggregate(server, total, facts, costs.training)
    return {**after, **learnt}


def _adder(phase: Phase, selection: Selection, like: Tensor, moment: Moment) -> Adder | str:
    """What adds the cohort's uploads up, or why their sum cannot be had."""
    if phase.channel.secure is None:
        return PlainAdder(phase.channel.sent, wide=phase.channel.has_central_noise)
    if phase.channel.refusal:
        return phase.channel.refusal
    try:
        return SecureAdder(phase, selection.clients.tolist(), selection.times.tolist(), like, moment.source)
    except ConfigError as error:
        return f"no secure sum over {len(selection.clients)} clients: {error}"


def _decided(algorithm: Algorithm, server: Tensors, selection: Selection) -> NDArray[np.float64]:
    """The server's weights of the cohort.

    Raises:
        ConfigError: they are no weights.
    """
    decided = algorithm.decided(server, torch.from_numpy(selection.clients)).double().cpu().numpy()
    if decided.shape != selection.clients.shape or not (np.isfinite(decided).all() and (decided >= 0).all()):
        raise ConfigError(
            f"{algorithm.name} decided the weights {decided}; give one finite number ≥ 0 for each of "
            f"{len(selection.clients)} clients"
        )
    return decided


def _nothing(shape: tuple[int, ...] | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if shape is None else like.new_zeros(shape)
