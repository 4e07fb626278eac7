"""Shakespeare: windows, targets and the division of each role, in all three formats."""

import gzip
import json
import lzma
import os
import sqlite3
from pathlib import Path

import pytest
import torch

from privfl.data import info, load_dataset
from privfl.data.files import DataFile, Layout, Located
from privfl.data.shakespeare import ALPHABET, character_ids, load_shakespeare
from privfl.errors import ConfigError, DataError

ROOM = os.environ.get("PRIVFL_DATA", "")
needs_room = pytest.mark.skipif(not ROOM, reason="PRIVFL_DATA does not name a folder with the real datasets")


def load(layout, path, **options):
    found = Located(Layout(layout, (DataFile(path.name),)), {path.name: path})
    return load_shakespeare(info("shakespeare"), found, seed=0, **options)


def text_of(ids):
    return "".join("?" if i == 0 else ALPHABET[i - 1] for i in ids)


def speech(seed, length):
    """A text in which every window of five characters is unlike the others."""
    return "".join(chr(97 + (i * i * seed + i // 7) % 26) for i in range(length))


def roles_file(path, roles):
    with gzip.open(path, "wt") as file:
        for (play, role), text in roles.items():
            file.write(json.dumps({"play": play, "role": role, "text": text}) + "\n")
    return path


def test_rows_are_windows_and_the_target_is_the_next_character(tmp_path):
    texts = {("lear", "FOOL"): speech(3, 103), ("lear", "KENT"): speech(5, 100), ("lear", "BRIEF"): "ha"}
    data = load("roles", roles_file(tmp_path / "r.gz", texts), length=10, stride=4, min_characters=60)
    assert data.client_names == ("lear: FOOL", "lear: KENT")
    for client, text in enumerate((texts["lear", "FOOL"], texts["lear", "KENT"])):
        cut = len(text) - len(text) // 5
        for part, own, clients, targets in (
            (text[:cut], data.inputs, data.clients, data.targets),
            (text[cut:], data.test_inputs, data.test_clients, data.test_targets),
        ):
            twin = [(part[i : i + 10], part[i + 10]) for i in range(0, len(part) - 10, 4)]
            rows, nexts = own[clients == client].tolist(), targets[clients == client].tolist()
            assert [(text_of(row), text_of([n])) for row, n in zip(rows, nexts, strict=True)] == twin


def test_the_next_character_may_be_asked_for_at_every_position(tmp_path):
    path = roles_file(tmp_path / "r.gz", {("lear", "FOOL"): speech(3, 103)})
    usual, every = (
        load("roles", path, length=10, stride=4, min_characters=60, every_position=x) for x in (False, True)
    )
    assert every.kind == "next-token"
    assert torch.equal(every.inputs, usual.inputs)
    assert torch.equal(every.targets[:, :-1], every.inputs[:, 1:])
    assert torch.equal(every.targets[:, -1], usual.targets)


def test_the_alphabet_is_printable_ascii_and_everything_else_is_one_id():
    assert len(ALPHABET) == 96
    assert character_ids("\n aZ~").tolist() == [1, 2, 67, 60, 96]
    assert character_ids("é€\t😀\ud800").tolist() == [0] * 5


def leaf_file(path, texts, length):
    data = {
        "users": list(texts),
        "num_samples": [len(text) - length for text in texts.values()],
        "user_data": {
            user: {
                "x": [text[i : i + length] for i in range(len(text) - length)],
                "y": [text[i + length] for i in range(len(text) - length)],
            }
            for user, text in texts.items()
        },
    }
    path.write_text(json.dumps(data))
    return path


def test_leafs_all_data_is_read_and_its_test_rows_do_not_overlap_the_training_rows(tmp_path):
    texts = {"HAMLET": speech(3, 400), "OPHELIA": speech(7, 300), "GHOST": speech(9, 40)}
    path = leaf_file(tmp_path / "all_data.json", texts, 10)
    data = load("leaf", path, length=10, stride=3, min_characters=200)
    assert data.client_names == ("HAMLET", "OPHELIA")
    for client, text in enumerate((texts["HAMLET"], texts["OPHELIA"])):
        rows = len(text) - 10
        cut = rows - rows // 5
        train = [text[i : i + 10] for i in range(0, cut - 10, 3)]
        test = [text[i : i + 10] for i in range(cut, rows, 3)]
        assert [text_of(row) for row in data.inputs[data.clients == client].tolist()] == train
        assert [text_of(row) for row in data.test_inputs[data.test_clients == client].tolist()] == test
        assert 3 * (len(train) - 1) + 10 < cut  # the last training row and its target end before the first test row
    with pytest.raises(DataError, match="has a row of 10 characters where 80 are asked for; load it with length=10"):
        load("leaf", path)


def field(number, content):
    """A length-delimited protocol-buffer field."""
    size, varint = len(content), b""
    while True:
        varint += bytes([size & 0x7F | (0x80 if size > 0x7F else 0)])
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + varint + content


def tff_file(path, rows):
    """A database as TensorFlow Federated publishes it, with another feature beside ``snippets``."""
    database = path.with_suffix(".sqlite")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        for split, client, text in rows:
            other = field(1, field(1, b"other") + field(2, field(1, field(1, b"x" * 300))))
            snippets = field(1, field(1, b"snippets") + field(2, field(1, field(1, text.encode()))))
            connection.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, field(1, other + snippets)))
    connection.close()
    path.write_bytes(lzma.compress(database.read_bytes(), format=lzma.FORMAT_ALONE))
    return path


def test_the_published_database_keeps_its_own_division_and_no_window_crosses_two_snippets(tmp_path):
    rows = [
        ("train", "LEAR_FOOL", speech(3, 300)),
        ("test", "LEAR_FOOL", speech(5, 120)),
        ("train", "LEAR_FOOL", speech(7, 50)),
        ("train", "LEAR_FOOL", "too short"),
        ("train", "ABBESS", speech(9, 200)),
        ("test", "ABBESS", speech(11, 90)),
    ]
    data = load("tff", tff_file(tmp_path / "s.sqlite.lzma", rows), length=20, stride=10, min_characters=105)
    assert data.client_names == ("ABBESS", "LEAR_FOOL")

    def twin(*texts):
        return [text[i : i + 20] for text in texts for i in range(0, len(text) - 20, 10)]

    assert [text_of(row) for row in data.inputs[data.clients == 1].tolist()] == twin(rows[0][2], rows[2][2])
    assert [text_of(row) for row in data.test_inputs[data.test_clients == 1].tolist()] == twin(rows[1][2])
    assert [text_of(row) for row in data.inputs[data.clients == 0].tolist()] == twin(rows[4][2])


def test_damaged_files_are_refused(tmp_path):
    whole = roles_file(tmp_path / "r.gz", {("a", "b"): speech(3, 3000)}).read_bytes()
    (tmp_path / "r.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match="not a complete file of roles"):
        load("roles", tmp_path / "r.gz")
    (tmp_path / "all_data.json").write_text('{"users": ["a"]}')
    with pytest.raises(DataError, match=r"not LEAF's all_data\.json"):
        load("leaf", tmp_path / "all_data.json")
    for content in (b"not lzma", lzma.compress(b"not sqlite" * 200, format=lzma.FORMAT_ALONE)):
        (tmp_path / "s.lzma").write_bytes(content)
        with pytest.raises(DataError, match="not a complete Shakespeare database"):
            load("tff", tmp_path / "s.lzma")
    roles_file(tmp_path / "r.gz", {("a", "b"): "short"})
    with pytest.raises(DataError, match="holds no role with 2000 characters"):
        load("roles", tmp_path / "r.gz")


def test_impossible_options_are_refused(tmp_path):
    for name, value in (("length", 0), ("stride", 0), ("stride", "x")):
        with pytest.raises(ConfigError, match=name):
            load("roles", tmp_path / "r.gz", **{name: value})
    with pytest.raises(
        ConfigError, match="min_characters is 404, too few to test on rows of length 80; give at least 405"
    ):
        load("roles", tmp_path / "r.gz", min_characters=404)


@needs_room
def test_the_real_roles_have_the_published_numbers_and_only_known_characters():
    data = load_dataset("shakespeare")
    assert data.num_clients == 445
    assert load_dataset("shakespeare", min_characters=10_000).num_clients == 135
    assert int(data.inputs.min()) >= 1
    assert data.class_names[int(data.targets[0])] in ALPHABET
    with gzip.open(Path(ROOM) / "shakespeare/shakespeare_roles.jsonl.gz", "rt") as file:
        first = next(item for item in map(json.loads, file) if len(item["text"]) >= 2000)
    assert text_of(data.inputs[0].tolist()) == first["text"][:80]
    assert torch.equal(torch.unique(data.test_clients), torch.arange(445))
