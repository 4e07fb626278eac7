"""Active servers: an algorithm whose server crafts what it broadcasts, and stays itself in everything else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.door.batch_plans import LocalTraining

Craft = Callable[[FlatNetwork, Tensor], Tensor]
"""From a network to work with and the honest parameters [size] to those that are sent, [size]; the honest ones are left
as they are."""
Keep = Callable[[FlatNetwork, Tensor], Tensor]
"""From a network and the honest parameters [size] to a mask [size] of those that the clients' updates may change."""


def crafting_server(algorithm: Algorithm, craft: Craft, name: str, keep: Keep | None = None) -> Algorithm:
    """``algorithm`` run by a server that sends ``craft(…)`` of its honest parameters to every client.

    The server's own model stays honest: updates are added to it, but for the parameters that ``keep`` masks out. All
    else is the algorithm's own, and a mechanism that protects the clients protects them as before. Every client of a
    round is sent the same. A transcript records what was sent.

    Args:
        name: of the kind of server, for the class that is made.
    """
    kind = type(algorithm)

    def broadcast(self: Any, server: Tensors) -> Tensors:
        sent = kind.broadcast(self, server)
        network = FlatNetwork(self.context.network(), sent["parameters"].device)
        return {**sent, "parameters": craft(network, sent["parameters"].clone())}

    def aggregate(self: Any, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if keep is None:
            return kind.aggregate(self, server, total, round, training)
        network = FlatNetwork(self.context.network(), server["parameters"].device)
        kept = keep(network, server["parameters"].clone()).to(total["update"].dtype)
        return kind.aggregate(self, server, {**total, "update": total["update"] * kept}, round, training)

    active = copy.copy(algorithm)
    made = type(f"{name}{kind.__name__}", (kind,), {"broadcast": broadcast, "aggregate": aggregate})
    object.__setattr__(active, "__class__", made)
    return active
