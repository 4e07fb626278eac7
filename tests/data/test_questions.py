"""Medical question pairs: fixed hashing, fixed places, and no question on both sides of the split."""

import csv
import os
import re
import zlib
from pathlib import Path

import pytest
import torch

from privfl.data import info, load_dataset
from privfl.data.files import DataFile, Layout, Located
from privfl.data.questions import hashed, load_medical_questions
from privfl.errors import ConfigError, DataError

ROOM = os.environ.get("PRIVFL_DATA", "")
needs_room = pytest.mark.skipif(not ROOM, reason="PRIVFL_DATA does not name a folder with the real datasets")


def load(path, **options):
    return load_medical_questions(
        info("mqp"), Located(Layout("csv", (DataFile(path.name),)), {path.name: path}), seed=0, **options
    )


def test_a_word_has_the_id_of_its_crc32_in_a_public_vocabulary():
    """CRC-32 of 'hello' is 0x3610a686, a published check value of the polynomial."""
    assert hashed("Hello, HELLO", 1002) == [2 + 0x3610A686 % 1000] * 2
    assert hashed("", 1002) == []
    assert all(2 <= i < 50 for i in hashed("does aspirin thin the blood at night?", 50))


def test_a_pair_is_first_question_separator_second_question(tmp_path):
    path = tmp_path / "mqp.csv"
    path.write_text("".join(f'{d},"is it, {i} bad",why {i} so,{i % 2}\n' for d in (1, 2) for i in range(10)))
    data = load(path, length=4, vocabulary=500)
    rows = torch.cat([data.inputs, data.test_inputs])

    def word(w):
        return 2 + zlib.crc32(w.encode()) % 498

    assert rows.shape == (20, 8)
    assert (rows[:, 3] == 1).all()
    assert (rows[:, 0] == word("is")).all()
    assert (rows[:, 1] == word("it")).all()
    assert (rows[:, 4] == word("why")).all()
    assert (rows[:, 7] == 0).all()
    assert set(rows[:, 5].tolist()) == {word(str(i)) for i in range(10)}
    assert (data.vocabulary, data.client_names) == (500, ("doctor 1", "doctor 2"))


@needs_room
def test_the_doctors_have_the_published_numbers_of_pairs():
    data = load_dataset("mqp")
    counts = torch.bincount(torch.cat([data.clients, data.test_clients])).tolist()
    assert counts == [130, 426, 280, 272, 276, 280, 278, 280, 280, 280, 266]
    assert torch.bincount(torch.cat([data.targets, data.test_targets])).tolist() == [1524, 1524]
    assert data.client_names[10] == "doctor 11"


@needs_room
def test_no_question_is_on_both_sides_of_the_split():
    """Questions are found again by their words: the twin hashes both columns of the file into a huge vocabulary, in
    which all 4,567 texts differ unless their words are the same."""
    data = load_dataset("mqp", length=80, vocabulary=1 << 40)
    halves = {
        part: {tuple(row[:79]) for row in rows.tolist()} | {tuple(row[80:159]) for row in rows.tolist()}
        for part, rows in (("train", data.inputs), ("test", data.test_inputs))
    }
    assert not halves["train"] & halves["test"]
    with open(Path(ROOM) / "mqp/mqp.csv", encoding="utf-8", newline="") as file:
        texts = {tuple(re.findall(r"\w+", q.lower())) for row in csv.reader(file) for q in row[1:3]}
    assert len(halves["train"]) + len(halves["test"]) == len(texts)
    for part in (data.targets, data.test_targets):
        assert abs(float(part.float().mean()) - 0.5) < 0.01


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,a,b\n", "row 1, is .*expected doctor number"),
        ("1,a,b,1\n1,a,b,2\n", "row 2"),
        ("x,a,b,1\n", "row 1"),
        ("", "is empty"),
    ],
)
def test_a_damaged_file_is_refused_with_its_row(tmp_path, text, sentence):
    (tmp_path / "mqp.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        load(tmp_path / "mqp.csv")


def test_impossible_options_are_refused(tmp_path):
    for options in ({"length": 1}, {"vocabulary": 2}, {"length": 2.5}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            load(tmp_path / "mqp.csv", **options)
