"""LEAF's federations as its scripts write them: folders ``train`` and ``test`` of JSON, a client for each user.

Every file has ``users`` and ``user_data[user]`` with rows ``x`` and labels ``y``. LEAF decides which users and rows
there are (its options ``--sf``, ``-s``, ``-t`` and ``-k``), so no count of them is published and none is checked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.pictures import decoded, normalised
from privfl.data.targets import IGNORED
from privfl.errors import DataError
from privfl.validation import check_count

Users = dict[str, tuple[list[Any], list[Any]]]
"""Rows and labels of each user."""

PADDING, BEGIN, END, FIRST_WORD = 0, 1, 2, 3
_SPECIAL = {"<PAD>": PADDING, "<BOS>": BEGIN, "<EOS>": END}
_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def load_femnist(entry: DatasetInfo, located: Located, *, seed: int) -> Dataset:
    """FEMNIST, float32 [N, 1, 28, 28] in 0..1 as LEAF stores it (paper is 1, ink 0), 62 classes, a writer a client."""

    def images(users: Users) -> tuple[Tensor, Tensor]:
        rows = np.array([row for x, _ in users.values() for row in x], np.float32)
        if rows.ndim != 2 or rows.shape[1] != 784:
            raise DataError(f"{entry.name}: rows are {rows.shape[1:]}, not 784 pixels; make them with LEAF.")
        return torch.from_numpy(rows.reshape(-1, 1, 28, 28)), _labels(users)

    return _federation(entry, located, images, classes=62, class_names=_CLASSES)


def load_celeba(entry: DatasetInfo, located: Located, *, seed: int, size: int = 84) -> Dataset:
    """CelebA's smiles, float32 [N, 3, size, size] in −1..1, two classes, a celebrity a client.

    LEAF's rows name pictures, which are read from ``celeba/raw/img_align_celeba``.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, LEAF has divided the rows.
        size: pixels of each side.
    """
    check_count("size", size)
    folder = located.paths["img_align_celeba"]

    def images(users: Users) -> tuple[Tensor, Tensor]:
        names = [str(name) for x, _ in users.values() for name in x]
        return normalised(entry, decoded([folder / name for name in names], size)), _labels(users)

    return _federation(entry, located, images, classes=2, class_names=("no smile", "smile"))


def load_reddit(
    entry: DatasetInfo, located: Located, *, seed: int, length: int = 10, vocabulary: int = 10_000
) -> Dataset:
    """Reddit's comments as a next-token task, int64 [N, length] of token ids, an author a client.

    LEAF cuts comments into pieces of ten tokens and says which token follows each. A word has the id
    3 + crc32(word) mod (vocabulary − 3), so that no vocabulary is learned from the data; padding, beginning and end are
    0, 1 and 2, and are not to be predicted.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, LEAF has divided the comments.
        length: tokens of a piece, as LEAF was told.
        vocabulary: number of ids, at least 4.
    """
    check_count("length", length, 2)
    check_count("vocabulary", vocabulary, 4)

    def ids(pieces: Sequence[Sequence[str]]) -> NDArray[np.int64]:
        wrong = next((piece for piece in pieces if len(piece) != length), None)
        if wrong is not None:
            raise DataError(
                f"{entry.name}: a piece has {len(wrong)} tokens where {length} are asked for; load it with "
                f"length={len(wrong)}."
            )
        return np.array([[_token(word, vocabulary) for word in piece] for piece in pieces], np.int64)

    def comments(users: Users) -> tuple[Tensor, Tensor]:
        pieces = [piece for x, _ in users.values() for comment in x for piece in comment]
        follow = [piece for _, y in users.values() for told in y for piece in told["target_tokens"]]
        if len(pieces) != len(follow):
            raise DataError(f"{entry.name}: {len(pieces)} pieces have {len(follow)} targets; make them with LEAF.")
        targets = ids(follow)
        targets[targets < FIRST_WORD] = IGNORED
        return torch.from_numpy(ids(pieces)), torch.from_numpy(targets)

    def rows(x: list[Any]) -> int:
        return sum(map(len, x))

    return _federation(
        entry, located, comments, classes=vocabulary, rows=rows, vocabulary=vocabulary, kind="next-token"
    )


def read_users(folder: Path) -> Users:
    """What every user of LEAF's JSON files in ``folder`` holds; users of several files are one.

    Raises:
        DataError: there is no such file, or one is not LEAF's.
    """
    users: Users = {}
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"{folder} holds no .json file; put LEAF's {folder.name} files there.")
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for user in content["users"]:
                told = content["user_data"][user]
                if len(told["x"]) != len(told["y"]):
                    raise DataError(f"{path}: {user} has {len(told['x'])} rows and {len(told['y'])} labels.")
                x, y = users.setdefault(str(user), ([], []))
                x.extend(told["x"])
                y.extend(told["y"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is not a file of LEAF ({error!r}); make it again with LEAF.") from error
    return users


def _federation(
    entry: DatasetInfo,
    located: Located,
    arrays: Callable[[Users], tuple[Tensor, Tensor]],
    *,
    classes: int,
    rows: Callable[[list[Any]], int] = len,
    **more: Any,
) -> Dataset:
    """Both parts as tensors; users with training rows are numbered first."""
    train, test = ({name: own for name, own in read_users(located.paths[part]).items() if own[0]} for part in _PARTS)
    if not train or not test:
        raise DataError(f"{entry.name}: no user has rows in {'train' if not train else 'test'}; make it with LEAF.")
    names = (*train, *(name for name in test if name not in train))
    number = {name: place for place, name in enumerate(names)}
    (x, y), (test_x, test_y) = arrays(train), arrays(test)
    owner, test_owner = (torch.tensor(list(_owners(part, number, rows))) for part in (train, test))
    return Dataset(entry.name, x, y, test_x, test_y, classes, owner, test_owner, client_names=names, **more)


_PARTS = ("train", "test")


def _owners(users: Users, number: Mapping[str, int], rows: Callable[[list[Any]], int]) -> Iterator[int]:
    for name, (x, _) in users.items():
        yield from [number[name]] * rows(x)


def _labels(users: Users) -> Tensor:
    return torch.tensor([int(label) for _, y in users.values() for label in y], dtype=torch.int64)


def _token(word: str, vocabulary: int) -> int:
    if word in _SPECIAL:
        return _SPECIAL[word]
    return FIRST_WORD + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (vocabulary - FIRST_WORD)
