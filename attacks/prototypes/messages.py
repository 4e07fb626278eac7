"""What the messages of a transcript say of prototypes: class means, counts, and the extractor that made them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from attacks.observations.messages import recorded_round, updates
from privfl.algorithms.label_skew.prototypes import means
from privfl.errors import ConfigError
from privfl.models import Network
from privfl.simulation.transcript import PublicFacts, SeenRound, Transcript

CHUNK = 1024
"""Images that an attacker puts through an extractor at a time."""


@dataclass(frozen=True)
class PrototypeMessage:
    """Prototypes as they reached the server, from one client or as a secure sum.

    Args:
        round: number of the round.
        members: the client that sent them, or all clients of a secure sum.
        prototypes: P̂ [C, d].
        counts: of samples, [C]; noisy if they were sent so.
        network: at the parameters that its members returned, on average: its features made the prototypes (for a
            secure sum only nearly, since every member has an extractor of its own).
    """

    round: int
    members: tuple[int, ...]
    prototypes: Tensor
    counts: Tensor
    network: Network

    @property
    def classes(self) -> list[int]:
        """The classes that have a prototype, ascending."""
        rows: list[int] = (self.counts > 0.5).nonzero().flatten().tolist()
        return rows

    def features(self, inputs: Tensor) -> Tensor:
        """Features [N, d] of network inputs [N, ...] under the extractor, without a gradient."""
        with torch.no_grad():
            return torch.cat([self.network.features(part) for part in torch.split(inputs, CHUNK)])


def prototype_messages(transcript: Transcript, number: int = -1) -> list[PrototypeMessage]:
    """The prototypes that reached the server in round ``number`` of a transcript (−1: the last), message by message.

    Raises:
        ConfigError: there is no such round, its messages hold no prototypes, or the model has no features.
    """
    seen = recorded_round(transcript, number)
    exchange, received = seen.training, seen.broadcast["parameters"]
    found = []
    for members, update in updates(seen):
        sent = exchange.total if exchange.uploads is None else exchange.uploads[members[0]]
        if "prototype_sums" not in sent:
            raise ConfigError(
                f"{transcript.facts.algorithm['name']} sent no prototypes in round {seen.number}; attack a run of "
                "rebafl with mu > 0"
            )
        sums, counts = sent["prototype_sums"], sent["prototype_counts"]
        network = transcript.network(received + update.to(received)).requires_grad_(False)
        if not hasattr(network, "features"):
            raise ConfigError(f"{type(network).__name__} has no features; give a privfl.models.Network")
        found.append(PrototypeMessage(seen.number, members, means(sums, counts), counts, cast(Network, network)))
    return found


def noise_of(facts: PublicFacts) -> tuple[float, float]:
    """The public deviations of the noise on each number of the sums of features, and on each count; 0 without noise."""
    for total in facts.privacy.get("statistics") or ():
        if total["statistic"] == "prototypes":
            deviation = float(total["max_norm"] * total["noise_multiplier"])
            norm = float(facts.algorithm["feature_norm"])
            return deviation * (norm if math.isfinite(norm) else 1.0), deviation  # as the algorithm scales its sums
    return 0.0, 0.0


def took_part(seen: SeenRound, client: int | None) -> bool:
    """Whether ``client``, or for ``None`` anybody, sent something in a round that the server saw."""
    return bool(seen.training.members) if client is None else client in seen.training.members


def message_of(transcript: Transcript, client: int | None, number: int = -1) -> PrototypeMessage:
    """The message of ``client`` in round ``number``, or for ``None`` the only one: the secure sum.

    Raises:
        ConfigError: the client sent nothing in that round, or several did and none was named.
    """
    messages = prototype_messages(transcript, number)
    if client is None:
        if len(messages) != 1:
            raise ConfigError(f"{len(messages)} messages with prototypes were seen; name one of their clients")
        return messages[0]
    for message in messages:
        if message.members == (client,):
            return message
    senders = ", ".join(str(message.members[0]) for message in messages if len(message.members) == 1) or "only sums"
    raise ConfigError(f"client {client} sent no prototypes of its own in that round; seen: {senders}")
