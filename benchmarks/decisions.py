"""Milliseconds for one decision of AAggFF: over a million clients by entropy, over a thousand by the Newton step."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from privfl.algorithms.base import Round, Tensors
from privfl.algorithms.fair.aaggff import AAggFFD, AAggFFS, FairAggregation
from privfl.federation.context import RunContext
from privfl.models.flat_network import FlatNetwork

MANY, FEW, SAMPLED = 1_000_000, 1_000, 1_000


def decide(algorithm: FairAggregation, server: Tensors, clients: int, members: torch.Tensor, seed: int) -> Tensors:
    """The server's state after the reports of ``members``, and the weights of everybody looked at once."""
    losses = torch.rand(len(members), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    facts = Round(float(len(members)), len(members), clients, number=seed, members=members)
    server = algorithm.hear(server, losses, facts)
    algorithm.server_metrics(server)
    return server


def seconds(algorithm: FairAggregation, clients: int, members: torch.Tensor, repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` decisions, after one that is not counted."""
    setting = RunContext(lambda seed: torch.nn.Linear(1, 2), 2, clients, repeats, 0, (1,), torch.device("cpu"))
    FlatNetwork(setting.network())  # as in every run, where an engine's network has seen to freed pages being kept
    algorithm = algorithm.bind(setting)
    server = decide(algorithm, algorithm.start(torch.zeros(4)), clients, members, 0)
    found = []
    for repeat in range(repeats):
        began = time.perf_counter()
        server = decide(algorithm, server, clients, members, repeat + 1)
        found.append(time.perf_counter() - began)
    return found


def run(repeats: int) -> list[dict[str, Any]]:
    """Three cases: a sample of many clients, all of many, all of few; one thread."""
    sample = torch.randperm(MANY, generator=torch.Generator().manual_seed(0))[:SAMPLED].sort().values
    cases: list[tuple[str, float, FairAggregation, int, torch.Tensor]] = [
        ("AAggFF-D over 1,000,000 clients, 1,000 of them sampled", 0.1, AAggFFD(), MANY, sample),
        ("AAggFF-D over 1,000,000 clients, all reporting", 0.1, AAggFFD(), MANY, torch.arange(MANY)),
        ("AAggFF-S over 1,000 clients", 2.0, AAggFFS(), FEW, torch.arange(FEW)),
    ]
    rows = []
    for what, target, algorithm, clients, members in cases:
        found = seconds(algorithm, clients, members, repeats)
        rows.append(
            {
                "what": f"seconds for one decision of {what}",
                "target": target,
                "median": median(found),
                "min": min(found),
                "max": max(found),
            }
        )
    return rows
