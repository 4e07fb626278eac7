"""MIND: the topic of a piece of news from the words of its title."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.questions import hashed
from privfl.errors import DataError
from privfl.validation import check_count, check_number

TOPICS = (
    "autos", "entertainment", "finance", "foodanddrink", "games", "health", "kids", "lifestyle", "middleeast", "movies",
    "music", "news", "northamerica", "sports", "travel", "tv", "video", "weather",
)  # fmt: skip
_COLUMNS = 8


def load_mind(
    entry: DatasetInfo,
    located: Located,
    *,
    seed: int,
    length: int = 30,
    vocabulary: int = 10_000,
    test_fraction: float = 0.2,
) -> Dataset:
    """Titles of ``news.tsv`` as int64 [N, length] token ids, the topic (18) as class; the last rows are for testing.

    0 is padding; a word (lower case, letters and digits) has the id 2 + crc32(word) mod (vocabulary − 2), so that no
    vocabulary is learned from the data.

    Args:
        entry: catalog entry.
        located: its file.
        seed: not used, the division follows the order of the file.
        length: words of a title, at most.
        vocabulary: number of ids, at least 3.
        test_fraction: share of the rows at the end of the file that is held out, in (0, 1).
    """
    check_count("length", length)
    check_count("vocabulary", vocabulary, 3)
    check_number("test_fraction", test_fraction, 0, 1, above=True, below=True)
    (path,) = located.paths.values()
    rows = read_news(path)
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    for row, (_, title) in enumerate(rows):
        ids = hashed(title, vocabulary)[:length]
        tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    labels = torch.tensor([TOPICS.index(topic) for topic, _ in rows])
    cut = len(rows) - int(len(rows) * test_fraction)

    def part(which: slice) -> tuple[Tensor, Tensor]:
        return tokens[which].clone(), labels[which].clone()

    return Dataset(
        entry.name, *part(slice(cut)), *part(slice(cut, None)), classes=len(TOPICS), class_names=TOPICS,
        vocabulary=vocabulary,
    )  # fmt: skip


def read_news(path: Path) -> list[tuple[str, str]]:
    """Topic and title of every row.

    Raises:
        DataError: the file is not MIND's, or names a topic that MIND does not have.
    """
    try:
        with open(path, newline="", encoding="utf-8") as lines:
            rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is not MIND's news.tsv ({error!r}); fetch it again.") from error
    for number, row in enumerate(rows, 1):
        if len(row) != _COLUMNS:
            raise DataError(f"{path}: line {number} has {len(row)} columns where MIND has {_COLUMNS}; fetch it again.")
        if row[1] not in TOPICS:
            raise DataError(f"{path}: line {number} is of the topic '{row[1]}', which MIND does not have.")
    return [(row[1], row[3]) for row in rows]
