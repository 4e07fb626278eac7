"""What a server owns is taken out of the training rows: balanced, in no client's hands, and in no test."""

import numpy as np
import pytest
import torch

from privfl.data.catalog import load_dataset
from privfl.data.dataset import Dataset
from privfl.data.set_aside import set_aside
from privfl.errors import ConfigError, DataError


def rows_of(inputs):
    return [row.tobytes() for row in np.asarray(inputs)]


def test_the_rows_are_balanced_and_leave_the_training_part_alone(tmp_path):
    digits = load_dataset("digits")
    rest = set_aside(digits, tmp_path / "server.npz", per_class=7, seed=3)
    with np.load(tmp_path / "server.npz", allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    assert np.bincount(labels).tolist() == [7] * 10
    assert len(rest) == len(digits) - 70
    assert torch.equal(rest.test_inputs, digits.test_inputs)
    pairs = sorted(zip(rows_of(rest.inputs), rest.targets.tolist(), strict=True))
    pairs = sorted(pairs + list(zip(rows_of(images), labels.tolist(), strict=True)))
    assert pairs == sorted(zip(rows_of(digits.inputs), digits.targets.tolist(), strict=True))


def test_the_seed_decides_which(tmp_path):
    digits, kept = load_dataset("digits"), {}
    for seed in (0, 0, 1):
        kept.setdefault(seed, []).append(set_aside(digits, tmp_path / "server", per_class=2, seed=seed).inputs)
    assert torch.equal(*kept[0])
    assert not torch.equal(kept[0][0], kept[1][0])
    assert [path.name for path in tmp_path.iterdir()] == ["server"]  # the file has the name that was given


def test_a_memory_map_stays_one(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40.0, dtype=np.float32).reshape(20, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    targets = np.arange(20) % 2
    data = Dataset.from_arrays(mapped, targets, test=(np.zeros((2, 2), np.float32), [0, 1]))
    rest = set_aside(data, tmp_path / "server.npz", per_class=3)
    assert type(rest.inputs) is type(data.inputs)
    with np.load(tmp_path / "server.npz", allow_pickle=False) as arrays:
        held = arrays["images"]
    together = np.concatenate([held, rest.inputs[:].numpy()])
    assert sorted(together[:, 0]) == list(range(0, 40, 2))


def test_what_cannot_be_set_aside_is_refused(tmp_path):
    data = Dataset.from_arrays(np.zeros((9, 2)), [0, 0, 0, 0, 0, 0, 1, 1, 1], test=(np.zeros((2, 2)), [0, 1]))
    with pytest.raises(ConfigError, match="per_class is 3, but class 1 of arrays has 3 training rows"):
        set_aside(data, tmp_path / "server.npz", per_class=3)
    with pytest.raises(ConfigError, match="per_class is 0"):
        set_aside(data, tmp_path / "server.npz", per_class=0)
    owned = Dataset.from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], clients=[0, 0, 1, 1], test=(np.zeros((1, 2)), [0]))
    with pytest.raises(DataError, match="its training rows belong to clients"):
        set_aside(owned, tmp_path / "server.npz", per_class=1)
    assert not (tmp_path / "server.npz").exists()
    data = Dataset.from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], test=(np.zeros((1, 2)), [0]))
    with pytest.raises(ConfigError, match=r"cannot write the server's images to .*: No such file or directory"):
        set_aside(data, tmp_path / "nowhere" / "server.npz", per_class=1)
