"""Item sequences: prefixes, padding and the held-out last item, from both formats."""

import dataclasses
import gzip
import json
import os
import random

import pytest
import torch

from privfl.data import catalog, info, load_dataset
from privfl.data.files import DataFile, Layout, Located
from privfl.data.sequences import load_amazon, read_reviews, read_sequences
from privfl.errors import ConfigError, DataError

needs_room = pytest.mark.skipif(
    not os.environ.get("PRIVFL_DATA"), reason="PRIVFL_DATA does not name a folder with the real datasets"
)
SEQUENCES = {"1": [1, 2, 3, 4, 5, 2], "2": [6, 1, 3], "9": [7, 6, 5, 4, 3]}


def text_file(path, sequences):
    lines = [" ".join([user, *map(str, items)]) for user, items in sequences.items()]
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    return path


def load(path, layout="sequences", counts=None, **options):
    entry = dataclasses.replace(info("amazon-toys"), counts=counts or {})
    found = Located(Layout(layout, (DataFile(path.name),)), {path.name: path})
    return load_amazon(entry, found, seed=0, **options)


def twin(sequences, length, targets):
    """Rows (client, padded prefix, target) one at a time; ``targets`` gives the target positions for a length."""
    return [
        (client, ([0] * length + items[:at])[-length:], items[at])
        for client, items in enumerate(sequences.values())
        for at in targets(len(items))
    ]


def rows(inputs, targets, clients):
    return list(zip(clients.tolist(), inputs.tolist(), targets.tolist(), strict=True))


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("chosen", ["all", "last"])
def test_each_row_is_the_padded_past_and_the_last_item_is_held_out(tmp_path, length, chosen):
    data = load(text_file(tmp_path / "x.gz", SEQUENCES), length=length, targets=chosen)
    training = (lambda n: range(1, n - 1)) if chosen == "all" else (lambda n: [n - 2])
    assert rows(data.inputs, data.targets, data.clients) == twin(SEQUENCES, length, training)
    assert rows(data.test_inputs, data.test_targets, data.test_clients) == twin(SEQUENCES, length, lambda n: [n - 1])
    assert (data.classes, data.vocabulary, data.client_names) == (8, 8, ("1", "2", "9"))


def test_validation_forgets_the_last_item(tmp_path):
    longer = {user: items for user, items in SEQUENCES.items() if len(items) > 3}
    data = load(text_file(tmp_path / "x.gz", longer), length=4, holdout="validation")
    assert data.test_targets.tolist() == [5, 4]
    assert 2 not in data.targets[data.clients == 0].tolist()[1:]
    with pytest.raises(DataError, match="user 2 has too few items for holdout='validation'"):
        load(text_file(tmp_path / "x.gz", SEQUENCES), holdout="validation")


def test_official_reviews_give_the_same_sequences_whatever_their_order_in_the_file(tmp_path):
    reviews = [
        {"reviewerID": f"A{user}", "asin": f"B{item:04d}", "overall": 5.0, "unixReviewTime": 1_300_000_000 + at,
         "reviewText": "fine", "helpful": [0, 1]}
        for user, items in SEQUENCES.items()
        for at, item in enumerate(items)
    ]  # fmt: skip
    random.Random(2).shuffle(reviews)
    path = tmp_path / "reviews.json.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(review) + "\n" for review in reviews).encode()))
    name = {number: review for number, review in enumerate(dict.fromkeys(r["asin"] for r in reviews), start=1)}
    found = {user: [int(name[item][1:]) for item in items] for user, items in read_reviews(path).items()}
    assert {user.removeprefix("A"): items for user, items in found.items()} == SEQUENCES
    data = load(path, "reviews", counts={"users": 3, "items": 7, "interactions": 14})
    assert len(data.targets) == 14 - 2 * 3
    with pytest.raises(DataError, match="14 interactions were read where 167,597 are published"):
        load(path, "reviews", counts={"users": 3, "interactions": 167_597})


def test_reviews_of_the_same_second_keep_the_order_of_the_file(tmp_path):
    lines = [{"reviewerID": "u", "asin": asin, "unixReviewTime": time} for asin, time in (("c", 5), ("a", 5), ("b", 1))]
    path = tmp_path / "r.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert read_reviews(path) == {"u": [3, 1, 2]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("1 2 3\n1 4 5\n", "line 2, is not a new user"), ("1 0 3\n", "line 1"), ("1 a\n", "line 1"), ("1\n", "line 1")],
)
def test_a_damaged_sequence_file_is_refused_with_its_line(tmp_path, content, sentence):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataError, match=sentence):
        read_sequences(path)
    path.write_bytes(gzip.compress(content.encode())[:-3])
    with pytest.raises(DataError):
        read_sequences(path)


@pytest.mark.parametrize("line", ['{"asin": "a"}', "not json", "[1]"])
def test_a_damaged_review_file_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "r.gz"
    good = json.dumps({"reviewerID": "u", "asin": "a", "unixReviewTime": 1})
    path.write_bytes(gzip.compress(f"{good}\n{line}\n".encode()))
    with pytest.raises(DataError, match="stops being a file of reviews in line 2"):
        read_reviews(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="is empty"):
        read_reviews(path)


def test_an_official_file_in_the_data_folder_is_checked_by_its_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path))
    (tmp_path / "amazon2014").mkdir()
    path = tmp_path / "amazon2014/reviews_Beauty_5.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"reviewerID": "u", "asin": "a", "unixReviewTime": 1}).encode()))
    with pytest.raises(DataError, match="amazon-beauty: 1 users were read where 22,363 are published"):
        load_dataset("amazon-beauty")
    assert catalog.info("amazon-beauty").downloads[0][1] is None


def test_impossible_options_are_refused(tmp_path):
    path = text_file(tmp_path / "x.gz", SEQUENCES)
    for options in ({"length": 0}, {"targets": "first"}, {"holdout": "none"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            load(path, **options)


@needs_room
@pytest.mark.parametrize("name", ["amazon-toys", "amazon-beauty"])
def test_the_real_sequences_hold_out_one_item_of_every_user(name):
    data = load_dataset(name)
    assert torch.equal(data.test_clients, torch.arange(data.num_clients))
    assert (data.inputs[:, -1] > 0).all()
    assert (data.targets > 0).all()
    shortest, longest = (int(x) + 2 for x in torch.aminmax(torch.bincount(data.clients)))
    assert (shortest, longest) == (5, 550 if name == "amazon-toys" else 204)
