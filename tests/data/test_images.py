"""Image files of every supported format give the right pixels, and damaged or hostile ones are refused."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from privfl.data import info, load_dataset
from privfl.data.files import DataFile, Layout, Located
from privfl.data.images import (
    load_cifar10,
    load_cifar100,
    load_emnist,
    load_mnist,
    read_cifar_binary,
    read_cifar_python,
    read_idx,
)
from privfl.errors import ConfigError, DataError
from tests.data.official import private_round

needs_room = pytest.mark.skipif(
    not os.environ.get("PRIVFL_DATA"), reason="PRIVFL_DATA does not name a folder with the real datasets"
)
RNG = np.random.default_rng(3)


def write_idx(path, array):
    """IDX as its specification has it: two zero bytes, type 8, dimensions, big-endian sizes, data."""
    head = bytes((0, 0, 8, array.ndim)) + b"".join(struct.pack(">I", size) for size in array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def located(layout, *paths):
    return Located(Layout(layout, tuple(DataFile(path.name) for path in paths)), {path.name: path for path in paths})


def batches(rows=4):
    """Six batches of random images and labels."""
    return [(RNG.integers(0, 256, (rows, 3, 32, 32), np.uint8), RNG.integers(0, 10, rows, np.uint8)) for _ in range(6)]


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def idx_files(tmp_path, labels):
    images = RNG.integers(0, 256, (len(labels), 28, 28), np.uint8)
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.array(labels, np.uint8))
    return images, located("idx", *sorted(tmp_path.iterdir()))


def test_idx_pixels_are_normalised_by_the_published_constants(tmp_path):
    images, found = idx_files(tmp_path, [3, 1, 4, 1, 5])
    data = load_mnist(info("mnist"), found, seed=0)
    expected = (images[:, None].astype(np.float64) / 255 - 0.1307) / 0.3081
    assert np.allclose(data.inputs.numpy(), expected, atol=1e-6)
    assert data.targets.tolist() == [3, 1, 4, 1, 5]


def test_a_label_out_of_range_is_named_with_its_index(tmp_path):
    _, found = idx_files(tmp_path, [3, 1, 200, 1])
    with pytest.raises(DataError, match=r"mnist: targets\[2\] is 200, outside 0\.\.9"):
        load_mnist(info("mnist"), found, seed=0)


def test_damaged_idx_files_are_refused(tmp_path):
    path = tmp_path / "x.gz"
    write_idx(path, np.zeros((3, 2, 2), np.uint8))
    whole = path.read_bytes()
    assert read_idx(path, 3).shape == (3, 2, 2)
    with pytest.raises(DataError, match=r"begins with 00 00 08 03 where .* 1 dimensions begins with 00 00 08 01"):
        read_idx(path, 1)
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(DataError, match=r"27 bytes, not what its header \(3, 2, 2\) announces"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(gzip.decompress(whole) + b"\0"))
    with pytest.raises(DataError, match="29 bytes, not what its header"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 3, 0))))
    with pytest.raises(DataError, match="announces"):
        read_idx(path, 3)


def test_the_binary_archive_of_cifar10_is_rows_of_a_label_and_three_planes(tmp_path):
    parts = batches()
    members = {
        f"cifar-10-batches-bin/{name}.bin": b"".join(bytes([y]) + x.tobytes() for x, y in zip(*part, strict=True))
        for name, part in zip(BATCHES, parts, strict=True)
    }
    path = tar(tmp_path / "cifar-10-binary.tar.gz", members)
    train, test = read_cifar_binary(path)
    assert (train[0] == np.concatenate([x for x, _ in parts[:5]])).all()
    assert (train[1] == np.concatenate([y for _, y in parts[:5]])).all()
    assert (test[0] == parts[5][0]).all()
    data = load_cifar10(info("cifar10"), located("binary", path), seed=0)
    red = (parts[0][0][2, 0, 5, 7] / 255 - 0.49139968) / 0.24703223
    assert data.inputs[2, 0, 5, 7].item() == pytest.approx(red, abs=1e-6)
    members.pop("cifar-10-batches-bin/data_batch_3.bin")
    with pytest.raises(DataError, match=r"lacks cifar-10-batches-bin/data_batch_3\.bin"):
        read_cifar_binary(tar(tmp_path / "lacking.tar.gz", members))
    members["cifar-10-batches-bin/data_batch_3.bin"] = b"\0" * 3072
    with pytest.raises(DataError, match="3,072 bytes, no multiple of 3,073"):
        read_cifar_binary(tar(tmp_path / "odd.tar.gz", members))
    (tmp_path / "cut.tar.gz").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"not a complete tar\.gz archive"):
        read_cifar_binary(tmp_path / "cut.tar.gz")


def python_2_batch(images, labels):
    """A batch as Python 2 pickled it: protocol 2, byte-string keys, numpy.core names, labels as a list."""

    class Python2(pickle._Pickler):
        def save_str(self, text):
            self.write(pickle.SHORT_BINSTRING + bytes([len(text)]) + text.encode("ascii"))
            self.memoize(text)

        dispatch = pickle._Pickler.dispatch | {str: save_str}

        def save_bytes(self, raw):
            self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
            self.memoize(raw)

        dispatch[bytes] = save_bytes

    buffer = io.BytesIO()
    Python2(buffer, 2).dump({"data": images.reshape(len(images), -1), "labels": labels.tolist(), "batch_label": "b"})
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.mark.parametrize("protocol", ["python 2", 2, 4])
def test_the_python_archive_of_cifar10_is_read_without_running_what_it_holds(tmp_path, protocol):
    parts = batches()
    members = {}
    for name, (images, labels) in zip(BATCHES, parts, strict=True):
        members[f"cifar-10-batches-py/{name}"] = (
            python_2_batch(images, labels)
            if protocol == "python 2"
            else pickle.dumps({b"data": images.reshape(len(images), -1), b"labels": labels.tolist()}, protocol)
        )
    train, test = read_cifar_python(tar(tmp_path / "cifar-10-python.tar.gz", members))
    assert (train[0] == np.concatenate([x for x, _ in parts[:5]])).all()
    assert (test[0] == parts[5][0]).all()
    assert (test[1] == parts[5][1]).all()


def test_a_pickle_that_asks_for_anything_but_arrays_is_refused_before_it_runs(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    for payload in (Hostile(), {b"data": Hostile(), b"labels": [1]}):
        members = {f"cifar-10-batches-py/{name}": pickle.dumps(payload, 2) for name in BATCHES}
        with pytest.raises(DataError, match=r"asks for (posix|nt)\.mkdir"):
            read_cifar_python(tar(tmp_path / "x.tar.gz", members))
    assert not (tmp_path / "ran").exists()


@needs_room
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_real_images_have_the_published_mean_deviation_and_class_counts(name):
    data = load_dataset(name)
    axes = (0, 2, 3)
    assert data.inputs.mean(axes).abs().max() < 1e-3
    assert (data.inputs.std(axes) - 1).abs().max() < 1e-3
    train, test = torch.bincount(data.targets), torch.bincount(data.test_targets)
    if name == "mnist":
        assert train.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert test.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    else:
        assert set(train.tolist()) == {6000 if name == "fashion-mnist" else 5000}
        assert set(test.tolist()) == {1000}


def test_an_archive_is_unpacked_no_further_than_its_header_announces(tmp_path):
    """64 MB of zeros, packed: behind another header, behind a small one, behind a huge one."""
    zeros = bytes(1 << 20)
    for name, began, sentence in (
        ("other", b"\0\0\0\0", "begins with 00 00 00 00"),
        ("small", bytes((0, 0, 8, 1)) + (3).to_bytes(4, "big"), r"holds 12 bytes and more, not what its header \(3,\)"),
        ("short", bytes((0, 0, 8, 1)) + b"\0", "holds 5 bytes"),
    ):
        path = tmp_path / f"{name}.gz"
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(began)
            for _ in range(0 if name == "short" else 64):
                file.write(zeros)
        tracemalloc.start()
        with pytest.raises(DataError, match=sentence):
            read_idx(path, 1)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 1)) + (2**32 - 1).to_bytes(4, "big") + b"few"))
    with pytest.raises(DataError, match="holds 11 bytes"):
        read_idx(path, 1)


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_cifar_100_has_fine_and_coarse_labels_in_both_official_formats(kind, tmp_path):
    parts = {}
    for part, rows in (("train", 6), ("test", 3)):
        images = RNG.integers(0, 256, (rows, 3072), np.uint8)
        parts[part] = images, RNG.integers(0, 100, rows, np.uint8), RNG.integers(0, 20, rows, np.uint8)
    members = {}
    for part, (images, fine, coarse) in parts.items():
        batch = {b"data": images, b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
        rows = np.concatenate([coarse[:, None], fine[:, None], images], axis=1)
        members |= {
            f"cifar-100-python/{part}": pickle.dumps(batch, protocol=2),
            f"cifar-100-binary/{part}.bin": rows.tobytes(),
        }
    found = located(kind, tar(tmp_path / f"cifar-100-{kind}.tar.gz", members))
    for labels, column in (("coarse", 2), ("fine", 1)):
        data = load_cifar100(info("cifar100"), found, seed=0, labels=labels)
        assert data.targets.tolist() == parts["train"][column].tolist()
        assert data.test_targets.tolist() == parts["test"][column].tolist()
        assert data.classes == {"fine": 100, "coarse": 20}[labels]
    mean, std = (np.array(values)[:, None, None] for values in (info("cifar100").mean, info("cifar100").std))
    expected = (parts["test"][0].reshape(-1, 3, 32, 32) / 255 - mean) / std
    assert np.allclose(data.test_inputs.numpy(), expected, atol=1e-5)
    assert private_round(data, "logistic") > 0


def test_damaged_archives_of_cifar_100_are_refused(tmp_path):
    members = {f"cifar-100-binary/{part}.bin": b"x" * 3073 for part in ("train", "test")}
    cut = located("binary", tar(tmp_path / "cifar-100-binary.tar.gz", members))
    with pytest.raises(DataError, match=r"train\.bin holds 3,073 bytes, no multiple of 3,074"):
        load_cifar100(info("cifar100"), cut, seed=0)
    with pytest.raises(ConfigError, match="unknown labels 'middle'"):
        load_cifar100(info("cifar100"), cut, seed=0, labels="middle")
    hostile = {f"cifar-100-python/{part}": pickle.dumps(os.system) for part in ("train", "test")}
    with pytest.raises(DataError, match="it asks for posix"):
        load_cifar100(info("cifar100"), located("python", tar(tmp_path / "hostile.tar.gz", hostile)), seed=0)


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_emnist_is_turned_upright_and_its_letters_begin_with_a(kind, tmp_path):
    (tmp_path / "gzip").mkdir()
    images = RNG.integers(0, 256, (4, 28, 28), np.uint8)
    for split, labels in (("letters", [1, 26, 2, 2]), ("balanced", [0, 46, 10, 1])):
        for part in ("train", "test"):
            write_idx(tmp_path / f"gzip/emnist-{split}-{part}-images-idx3-ubyte.gz", images)
            write_idx(tmp_path / f"gzip/emnist-{split}-{part}-labels-idx1-ubyte.gz", np.array(labels, np.uint8))
    path = tmp_path / "gzip"
    if kind == "zip":
        path = tmp_path / "gzip.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted((tmp_path / "gzip").iterdir()):
                archive.write(file, f"gzip/{file.name}")
    found = located(kind, path)
    data = load_emnist(info("emnist"), found, seed=0)
    assert torch.allclose(data.inputs[:, 0] * 255, torch.from_numpy(images.transpose(0, 2, 1).astype(np.float32)))
    assert [data.class_names[label] for label in data.targets] == ["0", "t", "A", "1"]
    letters = load_emnist(info("emnist"), found, seed=0, split="letters")
    assert [letters.class_names[label] for label in letters.targets] == ["A", "Z", "B", "B"]
    assert private_round(data, "logistic") > 0
    with pytest.raises(DataError, match="emnist-digits-train-images"):
        load_emnist(info("emnist"), found, seed=0, split="digits")
