"""Small runs that reconstruction attacks are tried on: clients of given sizes, and public data that no client holds."""

import torch

import privfl as pf
from attacks.auxiliary import Records

DIGITS = pf.load_dataset("digits", seed=0)


def rows_by_client(sizes, classes=None):
    """Row numbers of the training set for each client; with ``classes`` only rows of these."""
    rows = torch.arange(len(DIGITS))
    if classes is not None:
        rows = rows[torch.isin(DIGITS.targets, torch.tensor(classes))]
    return torch.split(rows[: sum(sizes)], list(sizes))


def run_of(rows, algorithm, training, rounds=1, model="two-nn", **more):
    """A recorded run in which client i holds the rows ``rows[i]``."""
    chosen = torch.cat(list(rows))
    owners = torch.cat([torch.full((len(part),), client) for client, part in enumerate(rows)])
    held = pf.Dataset(
        "digits", DIGITS.inputs[chosen], DIGITS.targets[chosen], DIGITS.test_inputs, DIGITS.test_targets, 10, owners
    )
    task = pf.Task.from_dataset(held, partition=pf.Natural(), model=model)
    return pf.simulate(
        task,
        algorithm,
        rounds=rounds,
        training=training,
        record=True,
        **{"execution": pf.Execution(engine="loop", workers=1), **more},
    ).transcript


def public(rows):
    """What no client of :func:`run_of` holds."""
    free = torch.ones(len(DIGITS), dtype=torch.bool)
    free[torch.cat(list(rows))] = False
    return Records(DIGITS.inputs[free], DIGITS.targets[free])
