"""Shakespeare's plays as next-character prediction, each speaking role a client."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.errors import ConfigError, DataError
from privfl.validation import check_count

# A public alphabet: newline and the 95 printable ASCII characters; id 0 stands for every other character.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
_IDS = np.zeros(0x110000, np.uint8)
_IDS[[ord(character) for character in ALPHABET]] = np.arange(1, len(ALPHABET) + 1)
VOCABULARY = len(ALPHABET) + 1

Windows = NDArray[np.int64]


@dataclass(frozen=True)
class Role:
    """One role's windows, int64 [., length + 1] ids (the last is the target), and its number of characters."""

    name: str
    characters: int
    train: Windows
    test: Windows


def load_shakespeare(
    entry: DatasetInfo,
    located: Located,
    *,
    seed: int,
    length: int = 80,
    stride: int = 20,
    min_characters: int = 2000,
    every_position: bool = False,
) -> Dataset:
    """Rows int64 [N, length] of character ids, target the id of the character that follows (97 classes).

    With ``every_position`` a next-token task: at each of the ``length`` positions the character that follows it.

    The last fifth of a role's text is for testing; no window reaches over the cut.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, the division is fixed.
        length: characters per row (LEAF's all_data.json has rows of 80).
        stride: characters from one row to the next.
        min_characters: roles with less text are left out; a fifth of it must hold a row and its target.
        every_position: predict the next character everywhere, not behind the end of a row only.
    """
    for option, value in (("length", length), ("stride", stride), ("min_characters", min_characters)):
        check_count(option, value)
    if min_characters // 5 < length + 1:
        raise ConfigError(
            f"min_characters is {min_characters}, too few to test on rows of length {length}; "
            f"give at least {5 * (length + 1)}."
        )
    (path,) = located.paths.values()
    read = {"roles": read_roles, "leaf": read_leaf, "tff": read_tff}[located.format]
    roles = [role for role in read(path, length, stride) if role.characters >= min_characters and len(role.train)]
    if not roles:
        raise DataError(f"{path} holds no role with {min_characters} characters; lower min_characters.")

    def part(windows: list[Windows]) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.from_numpy(np.concatenate(windows))
        clients = torch.repeat_interleave(torch.tensor([len(own) for own in windows]))
        targets = rows[:, 1:].contiguous() if every_position else rows[:, -1].clone()
        return rows[:, :-1].contiguous(), targets, clients

    x, y, clients = part([role.train for role in roles])
    test_x, test_y, test_clients = part([role.test for role in roles])
    return Dataset(
        entry.name, x, y, test_x, test_y, VOCABULARY, clients, test_clients,
        client_names=tuple(role.name for role in roles), class_names=("other", *ALPHABET), vocabulary=VOCABULARY,
        kind="next-token" if every_position else "classification",
    )  # fmt: skip


def character_ids(text: str) -> Windows:
    """The ids int64 [len(text)] of the characters of ``text``.

    >>> character_ids("\\n ~\\u00e9").tolist()
    [1, 2, 96, 0]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    ids: Windows = _IDS[codes].astype(np.int64)
    return ids


def read_roles(path: Path, length: int, stride: int) -> list[Role]:
    """Roles from gzip-compressed JSON lines with ``play``, ``role`` and ``text``."""
    roles = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                cut = len(item["text"]) - len(item["text"]) // 5
                texts = [item["text"][:cut]], [item["text"][cut:]]
                roles.append(_role(f"{item['play']}: {item['role']}", *texts, length, stride))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a complete file of roles ({error!r}); fetch it again.") from error
    return roles


def read_leaf(path: Path, length: int, stride: int) -> list[Role]:
    """Roles from LEAF's all_data.json: ``user_data[user]`` holds rows ``x`` and the characters ``y`` that follow.

    LEAF's rows begin one character apart, so every ``stride``-th is taken, and ``length`` rows before the test part
    are left out because they overlap it.
    """
    roles = []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for user in content["users"]:
            rows = [
                x + y for x, y in zip(content["user_data"][user]["x"], content["user_data"][user]["y"], strict=True)
            ]
            wrong = next((row for row in rows if len(row) != length + 1), None)
            if wrong is not None:
                raise DataError(
                    f"{path}: {user} has a row of {len(wrong) - 1} characters where {length} are asked for; "
                    f"load it with length={len(wrong) - 1}."
                )
            ids = character_ids("".join(rows)).reshape(-1, length + 1)
            cut = len(rows) - len(rows) // 5
            train, test = ids[: max(cut - length, 0) : stride], ids[cut::stride]
            roles.append(Role(user, len(rows) + length if rows else 0, train, test))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not LEAF's all_data.json ({error!r}); make it again with LEAF.") from error
    return roles


def read_tff(path: Path, length: int, stride: int) -> list[Role]:
    """Roles from TensorFlow Federated's database, with its own division into training and test snippets."""
    texts: dict[str, dict[str, list[str]]] = {}
    query = "SELECT client_id, split_name, serialized_example_proto FROM examples ORDER BY rowid"
    try:
        with TemporaryDirectory() as folder:
            unpacked = Path(folder, "shakespeare.sqlite")
            unpacked.write_bytes(lzma.decompress(path.read_bytes()))
            with closing(sqlite3.connect(unpacked)) as database:
                for client, split, example in database.execute(query):
                    own = texts.setdefault(str(client), {"train": [], "test": []})
                    own[split].append(_snippet(example).decode("utf-8", "replace"))
    except (OSError, EOFError, lzma.LZMAError, sqlite3.Error, KeyError, IndexError) as error:
        raise DataError(f"{path} is not a complete Shakespeare database ({error!r}); fetch it again.") from error
    return [_role(name, own["train"], own["test"], length, stride) for name, own in sorted(texts.items())]


def _role(name: str, train: list[str], test: list[str], length: int, stride: int) -> Role:
    """A role from pieces of contiguous text; no window reaches over the end of a piece."""

    def windows(texts: list[str]) -> Windows:
        cut = [
            np.lib.stride_tricks.sliding_window_view(character_ids(text), length + 1)[::stride]
            for text in texts
            if len(text) > length
        ]
        return np.concatenate(cut) if cut else np.empty((0, length + 1), np.int64)

    return Role(name, sum(len(text) for text in train + test), windows(train), windows(test))


def _snippet(example: bytes) -> bytes:
    """The bytes of feature ``snippets`` in a serialised tf.train.Example.

    Example { features = 1 } > Features { map entry = 1 } > { key = 1, value = 2 } > Feature { bytes_list = 1 } >
    BytesList { value = 1 }; all are length-delimited protocol-buffer fields.
    """
    for entry in _fields(_fields(example)[1][0])[1]:
        parts = _fields(entry)
        if parts[1] == [b"snippets"]:
            return _fields(_fields(parts[2][0])[1][0])[1][0]
    raise KeyError("snippets")


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """The length-delimited fields of a protocol-buffer message by number."""
    fields: dict[int, list[bytes]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        if key & 7 != 2:
            raise KeyError(f"wire type {key & 7}")
        size = varint()
        fields.setdefault(key >> 3, []).append(message[position : position + size])
        position += size
    return fields
