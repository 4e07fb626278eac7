"""What the messages of a transcript say of gradients: one observation for each client, or for each secure sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacks.observations.head_gradients import HeadGradient, checked_head
from attacks.observations.update_labels import averaged_gradient, steps_of
from privfl.errors import ConfigError
from privfl.models.flat_network import Layout
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.simulation.transcript import PublicFacts, SeenRound, Transcript

SHIFTED = frozenset({"rebafl", "bsm-fedavg", "fedlc", "fedrs"})
"""Algorithms whose loss is shifted by the client's own label prior, which the server does not know."""
GRADIENTS = frozenset({"fedsampling", "fedsampling-naive"})
"""Algorithms that send a gradient instead of a difference of parameters."""


@dataclass(frozen=True)
class HeadObservation:
    """The head's gradient in one message.

    Args:
        round: number of the round.
        members: the client that sent it, or all clients of a secure sum.
        gradient: the mean gradient of one example; a sum over examples if ``summed``.
        summed: whether the magnitude tells how many examples there were.
        steps: local steps K behind it; ``None`` if it depends on a size that the server does not know.
        examples: how many examples the members hold together, if their exact sizes were sent.
        before, after: the networks between which gradients were taken: as received, and as returned unless K = 1.
    """

    round: int
    members: tuple[int, ...]
    gradient: HeadGradient
    summed: bool
    steps: int | None
    examples: float | None
    before: nn.Module
    after: nn.Module


def training_of(facts: PublicFacts, number: int) -> LocalTraining:
    """The local training of round ``number`` as the facts have it, its learning rate decayed."""
    plain = {name: value for name, value in facts.training.items() if name != "name"}
    return LocalTraining(**plain).in_round(number)


def exact_sizes(transcript: Transcript, rounds: int) -> dict[int, float]:
    """The clients' sizes by client, if they were sent as they are up to round ``rounds``; empty otherwise."""
    if transcript.facts.privacy.get("size") is not None:
        return {}
    found: dict[int, float] = {}
    for number in range(min(rounds + 1, len(transcript))):
        found |= transcript[number].sizes
    return found


def updates(seen: SeenRound) -> list[tuple[tuple[int, ...], Tensor]]:
    """Who sent what as its ``update``: single clients, or the members of a secure sum with their weighted mean.

    Nobody, where a secure sum was given up.

    Raises:
        ConfigError: nothing of that name was sent, or a part of the model only.
    """
    exchange = seen.training
    received = exchange.broadcast["parameters"]
    if exchange.uploads is not None:
        missing = [client for client, upload in exchange.uploads.items() if "update" not in upload]
        if missing:
            raise ConfigError(f"client {missing[0]} sent no 'update' in round {seen.number}; attack another algorithm")
        return [
            ((client,), require_full_update(upload["update"], received)) for client, upload in exchange.uploads.items()
        ]
    if not exchange.members or exchange.weight <= 0:
        return []
    if "update" not in exchange.total:
        raise ConfigError(f"no 'update' was summed in round {seen.number}; attack another algorithm")
    mean = exchange.total["update"] / exchange.weight
    return [(exchange.members, require_full_update(mean.to(received), received))]


def recorded_round(transcript: Transcript, number: int) -> SeenRound:
    """Round ``number`` of a transcript (−1: the last).

    Raises:
        ConfigError: there is no such round.
    """
    if not -len(transcript) <= number < len(transcript):
        raise ConfigError(f"round {number} was not recorded; the transcript has {len(transcript)} rounds")
    return transcript[number]


def single_update(seen: SeenRound, client: int | None) -> Tensor:
    """The update [size] of ``client``, or for ``None`` the mean of a secure sum.

    Raises:
        ConfigError: the client sent nothing, or several did and none was named.
    """
    sent = [update for members, update in updates(seen) if client is None or members == (client,)]
    if len(sent) != 1:
        raise ConfigError(f"{len(sent)} updates of client {client} were seen in round {seen.number}; name another")
    return sent[0]


def training_behind(facts: PublicFacts, number: int, client: int | None, images: int) -> LocalTraining:
    """The local training behind an update: a sum over clients (``None``) of steps is one step on all their images."""
    training = training_of(facts, number)
    if client is None:
        return replace(training, batch_size=max(training.batch_size, images))
    return training


def require_full_update(update: Tensor, received: Tensor) -> Tensor:
    """``update`` as it is, if it says of every parameter [size] of the ``received`` model how it moved.

    Raises:
        ConfigError: it covers a part of the model, as where clients keep a part to themselves.
    """
    if update.shape != received.shape:
        raise ConfigError(
            f"the updates hold {update.numel()} of the model's {received.numel()} parameters; this attack needs an "
            "algorithm that sends all of them, such as fedavg"
        )
    return update


def head_observations(transcript: Transcript, number: int) -> list[HeadObservation]:
    """What round ``number`` tells about the gradients of the head, message by message.

    Raises:
        ConfigError: the algorithm sends nothing that these attacks can read.
    """
    facts, seen = transcript.facts, transcript[number]
    name = facts.algorithm["name"]
    if name in SHIFTED:
        raise ConfigError(
            f"{name} shifts every client's loss by its own labels, so its updates hardly show them; attack its "
            "uploaded counts with 'disclosed-counts', or another algorithm"
        )
    if facts.loss != "cross_entropy":
        raise ConfigError(f"the loss is {facts.loss}; attacks on labels and sizes read the soft-max cross-entropy")
    if name == "fedsampling" and facts.algorithm["local_steps"] != 1:
        raise ConfigError("fedsampling with several local steps sends no sum of gradients; attack local_steps = 1")
    received = seen.broadcast["parameters"]
    before = transcript.network(received)
    probe = torch.zeros(1, *facts.input_shape, dtype=torch.float32 if facts.vocabulary is None else torch.int64)
    layout, named = Layout.of(before), checked_head(before, probe)
    sizes = exact_sizes(transcript, number)
    found = []
    for members, update in updates(seen):
        known = sum(sizes[member] for member in members) if all(member in sizes for member in members) else None
        if name in GRADIENTS:
            factor = float(facts.algorithm["samples_per_round"]) * len(members) if name == "fedsampling" else 1.0
            head = HeadGradient.of(update * factor, layout, named)
            found.append(HeadObservation(number, members, head, name == "fedsampling", 1, known, before, before))
            continue
        training = training_of(facts, number)
        steps = _steps(facts, training, None if known is None else known / len(members))
        mean = averaged_gradient(update, training.learning_rate, steps or 1, training.momentum)
        head = HeadGradient.of(mean, layout, named)
        # one step takes its gradient at the model that was received, and nowhere else
        after = before if steps == 1 else transcript.network(received + update.to(received))
        found.append(HeadObservation(number, members, head, False, steps, known, before, after))
    return found


def _steps(facts: PublicFacts, training: LocalTraining, size: float | None) -> int | None:
    """Local steps of a client of ``size`` examples, ``None`` if they depend on a size that is not known."""
    protection = facts.privacy.get("training")
    if protection is not None:
        rate = protection.get("sample_rate")
        return training.steps_at(rate) if isinstance(rate, int | float) else training.steps
    if training.steps is not None:
        return training.steps
    return None if size is None else steps_of(size, training.batch_size, training.epochs, None)
