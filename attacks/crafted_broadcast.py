"""Active servers: an algorithm whose server crafts what it broadcasts, and stays itself in everything else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.door.batch_plans import LocalTraining

Craft = Callable[[FlatNetwork, Tensor, int], Tensor]
"""From a network to work with, the honest parameters [size] (a copy) and the round's number to what is sent, [size]."""
Keep = Callable[[FlatNetwork, Tensor, int], Tensor]
"""From a network, the honest parameters [size] and the round's number to a mask [size] of those that the clients'
updates may change."""
CLOCK = "crafted_round"
"""The name under which the server's state holds the number of the round."""
VERSION = "version"
"""The name under which a client is told which of the broadcasts is its own."""


def crafting_server(
    algorithm: Algorithm,
    craft: Craft,
    name: str,
    keep: Keep | None = None,
    *,
    others: tuple[Craft, ...] = (),
    version: Callable[[int], int] | None = None,
) -> Algorithm:
    """``algorithm`` run by a server that sends ``craft(…)`` of its honest parameters.

    The server's own model stays honest: updates are added to it, but for the parameters that ``keep`` masks out. All
    else is the algorithm's own, and a mechanism that protects the clients protects them as before.

    With ``others`` the broadcast differs by client: client i is sent version ``version(i)``, 0 of ``craft`` and k of
    ``others[k − 1]``. It is simulated as one broadcast of all versions, of which each client sees its own alone; a
    transcript of the server's view holds all of them, as the server knows all, version 0 as ``parameters``.

    Args:
        name: of the kind of server, for the class that is made.
    """
    kind = type(algorithm)
    crafts = (craft, *others)

    def begin_round(self: Any, server: Tensors, number: int) -> Tensors:
        return {**kind.begin_round(self, server, number), CLOCK: torch.tensor(number)}

    def broadcast(self: Any, server: Tensors) -> Tensors:
        sent = kind.broadcast(self, server)
        network, number = FlatNetwork(self.context.network(), sent["parameters"].device), int(server.get(CLOCK, 0))
        made = [one(network, sent["parameters"].clone(), number) for one in crafts]
        return {**sent, "parameters": made[0], **{_name(k): made[k] for k in range(1, len(made))}}

    def aggregate(self: Any, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if keep is None:
            return kind.aggregate(self, server, total, round, training)
        network = FlatNetwork(self.context.network(), server["parameters"].device)
        kept = keep(network, server["parameters"].clone(), round.number).to(total["update"].dtype)
        return kind.aggregate(self, server, {**total, "update": total["update"] * kept}, round, training)

    methods: dict[str, Any] = {"begin_round": begin_round, "broadcast": broadcast, "aggregate": aggregate}
    if others:
        methods |= _addressed(kind, len(crafts), version or int)
    active = copy.copy(algorithm)
    made = type(f"{name}{kind.__name__}", (kind,), methods)
    object.__setattr__(active, "__class__", made)
    return active


def _addressed(kind: type[Algorithm], count: int, version: Callable[[int], int]) -> dict[str, Any]:
    """Methods by which a client of ``kind`` sees its own one of ``count`` versions of the parameters."""
    names = {_name(k) for k in range(1, count)}

    def own(received: Tensors, which: Tensor) -> Tensors:
        chosen = received["parameters"]
        for k in range(1, count):
            chosen = torch.where(which == k, received[_name(k)], chosen)
        return {**{name: value for name, value in received.items() if name not in names}, "parameters": chosen}

    def initial_client_state(self: Any, client: int) -> Tensors:
        return {**kind.initial_client_state(self, client), VERSION: torch.tensor(version(client))}

    def begin(self: Any, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        which = client_state[VERSION]
        return {**kind.begin(self, own(received, which), client_state, training), VERSION: which}

    def seeing_its_own(method: str) -> Callable[..., Any]:
        def call(self: Any, local: Tensors, received: Tensors, *rest: Any) -> Any:
            return getattr(kind, method)(self, local, own(received, local[VERSION]), *rest)

        return call

    optional = ("prepare", "conclude", "personalise")
    called = [name for name in optional if getattr(kind, name) is not getattr(Algorithm, name)]
    return {
        "keeps": (*kind.keeps, VERSION),
        "initial_client_state": initial_client_state,
        "begin": begin,
        **{name: seeing_its_own(name) for name in ("step", "finish", *called)},
    }


def _name(version: int) -> str:
    return f"parameters, version {version}"
