"""Medical question pairs as token ids of a fixed public hashing vocabulary."""

from __future__ import annotations

import csv
import re
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.holdout import stratified_holdout
from privfl.errors import DataError
from privfl.validation import check_count

PADDING, SEPARATOR, FIRST_WORD = 0, 1, 2
_WORD = re.compile(r"\w+")


def load_medical_questions(
    entry: DatasetInfo, located: Located, *, seed: int, length: int = 48, vocabulary: int = 8192
) -> Dataset:
    """Question pairs as int64 [N, 2 * length] token ids, the doctor who wrote the pair as natural client.

    The first half of a row is the first question (at most length - 1 words), padded, with the separator 1 as last id;
    the second half is the second question (at most length words), padded. 0 is padding; a word (lower case, letters
    and digits) has the id 2 + crc32(word) mod (vocabulary - 2), so no vocabulary is learned from the data.
    A fifth of each doctor's first questions is held out; pairs that share any question stay together.

    Args:
        entry: catalog entry.
        located: its files.
        seed: root seed of the hold-out.
        length: ids per question, at least 2.
        vocabulary: number of ids, at least 3.
    """
    check_count("length", length, 2)
    check_count("vocabulary", vocabulary, 3)
    (path,) = located.paths.values()
    doctors, first, second, labels = read_mqp(path)
    inputs = torch.zeros(len(labels), 2 * length, dtype=torch.int64)
    inputs[:, length - 1] = SEPARATOR
    for row, (one, two) in enumerate(zip(first, second, strict=True)):
        for start, ids in ((0, hashed(one, vocabulary)[: length - 1]), (length, hashed(two, vocabulary)[:length])):
            inputs[row, start : start + len(ids)] = torch.tensor(ids, dtype=torch.int64)
    names, owner = np.unique(doctors, return_inverse=True)
    groups = _sharing(first, second)
    _, representative = np.unique(groups, return_index=True)
    held = stratified_holdout(np.zeros(len(representative)), clients=owner[representative], seed=seed)
    test = np.isin(groups, groups[representative[held]])
    y, clients = torch.tensor(labels), torch.from_numpy(owner)
    return Dataset(
        entry.name, inputs[~test], y[~test], inputs[test], y[test], 2, clients[~test], clients[test],
        client_names=tuple(f"doctor {number}" for number in names), class_names=("different", "similar"),
        vocabulary=vocabulary,
    )  # fmt: skip


def hashed(text: str, vocabulary: int) -> list[int]:
    """The ids of the words of ``text``.

    >>> hashed("Is aspirin safe?", 8192) == hashed("is ASPIRIN, safe", 8192)
    True
    """
    words = _WORD.findall(text.lower())
    return [FIRST_WORD + zlib.crc32(word.encode()) % (vocabulary - FIRST_WORD) for word in words]


def read_mqp(path: Path) -> tuple[list[int], list[str], list[str], list[int]]:
    """Doctor numbers, first questions, second questions and labels of the published CSV (no header row).

    Raises:
        DataError: a row has not four fields, a doctor is no number, or a label is not 0 or 1.
    """
    doctors, first, second, labels = [], [], [], []
    with open(path, encoding="utf-8", newline="") as file:
        for number, fields in enumerate(csv.reader(file), start=1):
            if len(fields) != 4 or not fields[0].isdecimal() or fields[3] not in ("0", "1"):
                raise DataError(
                    f"{path}, row {number}, is {fields!r:.80}; expected doctor number, question, question, 0 or 1."
                )
            doctors.append(int(fields[0]))
            first.append(fields[1])
            second.append(fields[2])
            labels.append(int(fields[3]))
    if not labels:
        raise DataError(f"{path} is empty; fetch it again.")
    return doctors, first, second, labels


def _sharing(first: list[str], second: list[str]) -> NDArray[np.int64]:
    """A group number for each pair: pairs that are linked by common questions have the same."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = len(first)
    number: dict[str, int] = {}
    question = [number.setdefault(text, len(number)) for text in first + second]
    rows = np.tile(np.arange(pairs), 2)
    links = coo_array((np.ones(2 * pairs), (rows, pairs + np.array(question))), shape=(pairs + len(number),) * 2)
    groups: NDArray[np.int64] = connected_components(links, directed=False)[1][:pairs].astype(np.int64)
    return groups
