"""What an algorithm sends and which protection it takes, read off what it declares."""

from __future__ import annotations

import torch
from torch import nn

from privfl.algorithms.base import Algorithm
from privfl.federation.context import RunContext
from privfl.models.base import Network


def declared(algorithm: Algorithm) -> dict[str, str]:
    """One algorithm's row of the compatibility table.

    ``sends``: the fields of an upload, those of surveys first, each with how the server combines it. ``secure sums``:
    ``yes`` if the server needs nothing but sums over clients, so that it may see no more. ``dp-sgd``: ``yes``, or
    ``no:`` and why.
    """
    algorithm = algorithm.bind(_example())
    phases, phase = [algorithm], algorithm.survey()
    while phase is not None:
        phases.insert(0, phase := phase.bind(algorithm.context))
        phase = phase.survey()
    fields = [field for one in phases for field in one.fields()]
    sizes = ["size (once)"] if algorithm.asks_sizes() or algorithm.weights() == "size" else []
    sends = sizes + [f"{field.name} ({field.combine})" for field in fields]
    apart = [field.name for field in fields if field.combine == "each"]
    return {
        "sends": ", ".join(sends) or "nothing",
        "secure sums": f"no: {', '.join(apart)}" if apart else "yes",
        "dp-sgd": f"no: {refusal}" if (refusal := algorithm.dpsgd_refusal()) else "yes",
    }


def _example() -> RunContext:
    """A setting that every algorithm can be asked about: a network with a body and a head."""

    def model(seed: int) -> nn.Module:
        return Network(nn.Linear(4, 3), nn.Linear(3, 2))

    return RunContext(model, classes=2, clients=10, planned=10, seed=0, input_shape=(4,), device=torch.device("cpu"))
