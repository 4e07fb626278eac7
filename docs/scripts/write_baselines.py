"""Write the table of `docs/baselines.md` from the algorithms themselves: `python docs/scripts/write_baselines.py`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import privfl as pf
from privfl.algorithms import ALGORITHMS, Algorithm
from privfl.algorithms.declarations import declared
from privfl.commands.json_schema import markdown
from privfl.commands.papers import WITHOUT
from privfl.models import Network
from privfl.privacy.door.keeper import DoorKeeper

PAGE = Path(__file__).parents[1] / "baselines.md"
MARKS = "<!-- table: written by docs/scripts/write_baselines.py -->", "<!-- end of table -->"
HEAD = ("method", "clients count", "passes a round", "sends", "defaults", "source", "what differs")
COUNTS = {"size": "by size", "uniform": "alike", "server": "by their losses"}
BY_THEMSELVES = {
    "fedsampling": "by the samples drawn",
    "grp-fed": "by their losses",
    "aaggff-d-sums": "by their losses",
    "fedmgda": "by the directions of their updates",
}
"""How clients count where uploads are summed as they are, and the method is about what they count."""
USUAL = {
    "weighting": tuple(COUNTS),
    "server_learning_rate": (1.0,),
    "loss_bound": (math.inf,),
    "response_epsilon": (math.inf,),
}
"""Values of settings that need no mention: a column says them, or they change nothing."""
SAMPLES, BATCH, CLIENTS = 24, 6, 3
OTHERWISE = {
    **dict.fromkeys(("fedsampling", "fedsampling-naive"), "one gradient of a sample"),
    **dict.fromkeys(("fedcgan", "fedcvae", "fedevg"), "E, of another network"),
}
"""Passes of methods that do not train the task's network by passes over the data."""


def paragraphs(kind: type[Algorithm]) -> list[str]:
    """The paragraphs of a docstring, each on one line."""
    return [" ".join(part.split()) for part in inspect.cleandoc(kind.__doc__ or "").split("\n\n")]


def differs(kind: type[Algorithm]) -> str:
    """What an algorithm, or the nearest base class that says it, does otherwise than its paper."""
    for one in kind.__mro__:
        told = [part for part in paragraphs(one) if part.startswith("Differs from")] if one is not object else []
        if told:
            return markdown(" ".join(told))
    return "—"


def defaults(algorithm: Algorithm) -> str:
    """The settings with their defaults, as an experiment file writes them."""
    rows = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    written = (
        f"`{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}`".replace("'", '"')
        for name, value in rows.items()
        if value is not None and value not in USUAL.get(name, ())
    )
    return ", ".join(written) or "—"


@contextmanager
def counted() -> Iterator[list[int]]:
    """A list that grows by the rows of every gradient that training takes, those that stay with a client included."""
    rows: list[int] = []

    def counting(ask: Any) -> Any:
        def asked(keeper: DoorKeeper, loss: Any, parameters: Any, batch: Any, *more: Any, **named: Any) -> Any:
            rows.append(sum(keeper._drawn(batch).counts))
            return ask(keeper, loss, parameters, batch, *more, **named)

        return asked

    names = ("gradient", "local_only_gradient")
    with patch.multiple(DoorKeeper, **{name: counting(getattr(DoorKeeper, name)) for name in names}):
        yield rows


def task() -> pf.Task:
    """A handful of rows, of which every client has as many."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(CLIENTS * SAMPLES, 1, 4, 4, generator=generator)
    targets = torch.arange(len(inputs)) % 2

    def model() -> nn.Module:
        activation = nn.Softsign()  # takes autograd, so that every pass goes through the network
        return Network(nn.Sequential(nn.Flatten(), nn.Linear(16, 4), activation), nn.Linear(4, 2))

    clients = torch.arange(len(inputs)) // SAMPLES
    return pf.Task.from_arrays(inputs, targets, clients=clients, test=(inputs[:8], targets[:8]), model=model)


def passes(name: str) -> str:
    """Gradients of a client in one round over its samples, measured with one and two epochs: ``2E + 1`` for ``E``."""
    if name in OTHERWISE:
        return OTHERWISE[name]
    found, federation = [], task()
    for epochs in (1, 2):
        training = pf.LocalTraining(batch_size=BATCH, epochs=epochs)
        with counted() as rows:
            pf.simulate(
                federation, ALGORITHMS[name](), rounds=1, training=training, evaluate_every=9,
                execution=pf.Execution(engine="loop", workers=1),
            )  # fmt: skip
        found.append(sum(rows) / (CLIENTS * SAMPLES))
    slope = round(found[1] - found[0])
    rest = round(found[0] - slope)
    parts = ["E" if slope == 1 else f"{slope}E"] * (slope > 0) + [str(rest)] * (rest > 0)
    return " + ".join(parts)


def row(name: str) -> list[str]:
    """What the algorithm ``name`` says of itself: the cells of its row but for the measured one."""
    kind = ALGORITHMS[name]
    weights = "—" if name in WITHOUT else BY_THEMSELVES.get(name, COUNTS[kind().weights()])
    if kind.counts_by:
        weights = f"as chosen, else {COUNTS[kind().weighs]}"
    sends = declared(kind())["sends"]
    return [f"`{name}`", weights, sends, defaults(kind()), markdown(paragraphs(kind)[0]), differs(kind)]


def table() -> str:
    """The whole table, with measured passes."""
    lines = [list(HEAD), ["---"] * len(HEAD)]
    for name in ALGORITHMS:
        first, weights, *rest = row(name)
        lines.append([first, weights, passes(name), *rest])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def written(page: str) -> str:
    """``page`` with the table of the day between its marks."""
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
