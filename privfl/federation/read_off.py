"""What the rows themselves decide of how rows are dealt with: no claim covers it, so a statement names it."""

from __future__ import annotations

from collections.abc import Collection

from privfl.data.label_noise import LabelNoise
from privfl.data.partitions import Natural, Partition

HELD_BACK, VALIDATION = "held-back tests", "validation rows"
"""The test rows are clients' own: those held back for testing, or those that a trial is judged by."""

READ_OFF_ROWS = {
    "classes": "how many classes there are (say it: classes=)",
    "class names": "which number each class has (list their names: classes=[…])",
    "test rows": "which examples are held out for tests (give test=)",
    "division": "which client holds which example (say it: clients=, instead of a partition)",
    "kept clients": "which clients hold enough examples to take part (leave min_size out)",
    "label noise": "which labels are flipped (leave label_noise out)",
    "local tests": "which examples clients hold back (leave local tests out)",
    HELD_BACK: "the test examples, which clients hold back, so that no claim covers test figures (have "
    "global_test='official')",
    VALIDATION: "the test examples, which are for validation by clients, so that no claim covers test figures",
}
"""What may be read off the rows, in the words of a statement, with the mend where there is one."""

READ_OFF_FILES = READ_OFF_ROWS | {
    "classes": "how many classes there are (say it: arrays.classes)",
    "class names": "which number each class has (list their names: arrays.classes = […])",
    "test rows": "which examples are held out for tests (bring test_inputs and test_targets in a .npz file)",
    "division": "which client holds which example (say it: arrays.client, instead of a partition)",
    "local tests": "which examples clients hold back (leave local_tests out)",
}
"""The same where the rows come from a file that an experiment names."""


def dealt_by_rows(partition: Partition, label_noise: LabelNoise | None) -> tuple[str, ...]:
    """What one row more may change for other rows, or decide about its client, where these two go over rows."""
    found = {
        "division": type(partition) is not Natural,
        "kept clients": isinstance(partition, Natural) and partition.min_size > 1,
        "label noise": label_noise is not None,
    }
    return tuple(name for name, true in found.items() if true)


def held_back(read_off: Collection[str], *, published: bool, union: bool) -> tuple[str, ...]:
    """What is read off once clients hold rows back; with ``union`` these take the place of all other test rows."""
    found = {"local tests": not published, HELD_BACK: union}
    return (*read_off, *(name for name, true in found.items() if true))


def validated(read_off: Collection[str]) -> tuple[str, ...]:
    """What is read off where validation rows of clients take the place of all other test rows."""
    return (*(one for one in read_off if one != HELD_BACK), VALIDATION)


def judged_by_clients(read_off: Collection[str]) -> bool:
    """Whether the released model is tested on rows of clients."""
    return HELD_BACK in read_off or VALIDATION in read_off
