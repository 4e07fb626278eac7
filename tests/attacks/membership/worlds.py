"""Small worlds for membership attacks: digits with random labels, which a network can only learn by heart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.game import membership_game
from privfl.simulation.transcript import Transcript


@cache
def shuffled_digits(seed: int = 0) -> Records:
    """All training digits in random order, with labels drawn at random."""
    data = pf.load_dataset("digits")
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data.inputs), generator=generator)
    return Records(data.inputs[rows], torch.randint(10, (len(rows),), generator=generator))


def part(first: int, last: int) -> Records:
    """The records from ``first`` to ``last`` of the shuffled digits; parts that do not overlap share no record."""
    return shuffled_digits()[torch.arange(first, last)]


def task_of(clients: Sequence[Records], hidden: int = 32) -> pf.Task:
    """A federation in which every client holds the records given."""
    owners = torch.cat([torch.full((len(one),), number) for number, one in enumerate(clients)])
    inputs, targets = torch.cat([one.inputs for one in clients]), torch.cat([one.targets for one in clients])
    dataset = pf.Dataset.from_arrays(inputs, targets, clients=owners, test=(inputs[:10], targets[:10]), classes=10)
    return pf.Task.from_dataset(dataset, model="two-nn", model_options={"hidden": [hidden]})


def watch(task: pf.Task, rounds: int = 1, algorithm=None, privacy=None, **training) -> Transcript:
    """What the server saw of a run."""
    given = pf.LocalTraining(**{"learning_rate": 0.2, "batch_size": 20, **training})
    run = pf.simulate(
        task,
        algorithm or pf.FedAvg(),
        rounds=rounds,
        training=given,
        privacy=privacy,
        record=True,
        execution=pf.Execution(engine="loop"),
    )
    return run.transcript


def game(members: Records, others: Records, public: Records | None = None) -> Auxiliary:
    """The game about ``members`` against ``others``."""
    return membership_game(members, others, torch.Generator().manual_seed(9), public)
