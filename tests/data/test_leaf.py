"""LEAF's JSON becomes datasets whose clients are its users, and damaged files are refused."""

import numpy as np
import pytest

from privfl.data.leaf import read_users
from privfl.data.targets import IGNORED
from privfl.errors import DataError
from tests.data.official import RNG, loaded, picture, private_round, write, write_leaf


def test_femnists_writers_are_clients_and_those_of_the_test_part_come_last(tmp_path, monkeypatch):
    rows = RNG.random((6, 784)).round(3).tolist()
    write_leaf(tmp_path / "femnist/train", {"f1": (rows[:3], [0, 10, 61]), "f2": (rows[3:4], [5]), "f9": ([], [])})
    write_leaf(tmp_path / "femnist/test", {"f7": (rows[4:5], [1]), "f1": (rows[5:], [2])})
    data = loaded("femnist", monkeypatch, tmp_path)
    assert data.client_names == ("f1", "f2", "f7")
    assert (data.clients.tolist(), data.test_clients.tolist()) == ([0, 0, 0, 1], [2, 0])
    assert [data.class_names[label] for label in data.targets] == ["0", "A", "z", "5"]
    assert np.allclose(data.inputs.flatten(1).numpy(), rows[:4])
    assert private_round(data, "logistic") > 0


def test_celebas_pictures_are_found_by_the_names_that_leaf_gives(tmp_path, monkeypatch):
    for number, brightness in enumerate((0, 255, 128)):
        colours = np.full((218, 178, 3), brightness, np.uint8)
        write(tmp_path / f"celeba/raw/img_align_celeba/00000{number}.jpg", picture(colours))
    write_leaf(tmp_path / "celeba/train", {"1": (["000000.jpg", "000001.jpg"], [0, 1])})
    write_leaf(tmp_path / "celeba/test", {"1": (["000002.jpg"], [1])})
    data = loaded("celeba", monkeypatch, tmp_path, size=20)
    assert tuple(data.inputs.shape) == (2, 3, 20, 20)
    assert np.allclose(data.inputs.mean((1, 2, 3)).numpy(), [-1, 1], atol=0.02)
    assert private_round(data, "logistic") > 0
    (tmp_path / "celeba/raw/img_align_celeba/000001.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"000001\.jpg is no picture"):
        loaded("celeba", monkeypatch, tmp_path)


def test_of_reddits_tokens_all_but_the_special_ones_are_to_be_predicted(tmp_path, monkeypatch):
    said = ["<BOS>", "good", "morning", "<EOS>", "<PAD>"]
    follow = [*said[1:], "<PAD>"]
    pieces, told = [said, said], {"target_tokens": [follow, follow], "count_tokens": 2, "subreddit": "a"}
    write_leaf(tmp_path / "reddit/train", {"ann": ([pieces], [told]), "bob": ([pieces] * 2, [told] * 2)})
    write_leaf(tmp_path / "reddit/test", {"ann": ([pieces], [told])})
    data = loaded("reddit", monkeypatch, tmp_path, length=5, vocabulary=50)
    good, morning = data.inputs[0, 1:3].tolist()
    assert data.inputs[0].tolist() == [1, good, morning, 2, 0]
    assert min(good, morning) >= 3
    assert data.targets[0].tolist() == [good, morning, IGNORED, IGNORED, IGNORED]
    assert (data.clients.tolist(), data.kind) == ([0, 0, 1, 1, 1, 1], "next-token")
    assert private_round(data, "next-token-lstm") > 0
    with pytest.raises(DataError, match="a piece has 5 tokens where 10 are asked for; load it with length=5"):
        loaded("reddit", monkeypatch, tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"users": ["a"], "user_data": {}}', "[]"])
def test_a_file_that_leaf_did_not_write_is_refused(content, tmp_path):
    write(tmp_path / "x.json", content)
    with pytest.raises(DataError, match=r"x\.json is not a file of LEAF"):
        read_users(tmp_path)


def test_rows_without_labels_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no \.json file"):
        read_users(tmp_path)
    write(tmp_path / "x.json", '{"users": ["a"], "user_data": {"a": {"x": [1], "y": []}}}')
    with pytest.raises(DataError, match="a has 1 rows and 0 labels"):
        read_users(tmp_path)


def test_users_of_several_files_are_one(tmp_path):
    for number in range(2):
        write(tmp_path / f"{number}.json", f'{{"users": ["a"], "user_data": {{"a": {{"x": [{number}], "y": [0]}}}}}}')
    assert read_users(tmp_path) == {"a": ([0, 1], [0, 0])}
