"""Image datasets in IDX and CIFAR files: digits, MNIST and its kin, CIFAR-10 and -100, by published constants."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.holdout import stratified_holdout
from privfl.errors import DataError
from privfl.validation import check_choice

Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]

_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EMNIST = {
    "byclass": (*_DIGITS, *_LETTERS, *_LETTERS.lower()),
    "balanced": (*_DIGITS, *_LETTERS, *"abdefghnqrt"),
    "letters": tuple(_LETTERS),
    "digits": _DIGITS,
    "mnist": _DIGITS,
}
"""The splits and their classes; in ``bymerge`` and ``balanced`` 15 small letters count as their capitals."""
_EMNIST["bymerge"] = _EMNIST["balanced"]
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_digits(entry: DatasetInfo, located: Located | None, *, seed: int, test_fraction: float = 0.2) -> Dataset:
    """scikit-learn's 1,797 digits, float32 [N, 1, 8, 8]; pixels 0..16 become -1..1, stratified hold-out."""
    pixels, labels = _bundled_digits()
    images = pixels.reshape(-1, 1, 8, 8)
    test = stratified_holdout(labels, fraction=test_fraction, seed=seed)
    return _dataset(entry, (images[~test], labels[~test]), (images[test], labels[test]), _DIGITS, brightest=16.0)


@cache
def _bundled_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Pixels [N, 64] and labels [N], read once in a process and without loading scikit-learn, which takes longer."""
    found = find_spec("sklearn")
    (folder, *_) = (found.submodule_search_locations if found else None) or [""]
    path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = np.loadtxt(file, delimiter=",")
        pixels, labels = rows[:, :-1], rows[:, -1].astype(np.int64)
    else:  # another version may keep it elsewhere
        from sklearn.datasets import load_digits as bundled

        pixels, labels = bundled(return_X_y=True)
    for array in (pixels, labels):
        array.flags.writeable = False
    return pixels, labels


def load_mnist(entry: DatasetInfo, located: Located, *, seed: int) -> Dataset:
    """MNIST, float32 [N, 1, 28, 28], the published division into training and test."""
    return _load_idx(entry, located, _DIGITS)


def load_fashion_mnist(entry: DatasetInfo, located: Located, *, seed: int) -> Dataset:
    """Fashion-MNIST, float32 [N, 1, 28, 28], the published division into training and test."""
    return _load_idx(entry, located, _FASHION)


def load_emnist(entry: DatasetInfo, located: Located, *, seed: int, split: str = "balanced") -> Dataset:
    """EMNIST, float32 [N, 1, 28, 28], upright, with its published division.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, the division is published.
        split: ``balanced`` (47 classes), ``byclass`` (62), ``bymerge`` (47), ``letters`` (26), ``digits`` or ``mnist``.
    """
    check_choice("split", split, _EMNIST)
    (path,) = located.paths.values()
    names = _EMNIST[split]

    def part(which: str) -> Part:
        images, labels = (
            _packed_idx(located, path, f"emnist-{split}-{which}-{kind}-ubyte.gz", dimensions)
            for kind, dimensions in (("images-idx3", 3), ("labels-idx1", 1))
        )
        upright = np.ascontiguousarray(images.transpose(0, 2, 1)[:, None])  # the files hold them mirrored
        return upright, labels - np.uint8(split == "letters")  # whose labels begin with 1

    return _dataset(entry, part("train"), part("test"), names)


def load_cifar100(entry: DatasetInfo, located: Located, *, seed: int, labels: str = "fine") -> Dataset:
    """CIFAR-100, float32 [N, 3, 32, 32] in RGB order, the published division into training and test.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, the division is published.
        labels: ``fine`` (100 classes) or ``coarse`` (their 20 groups).
    """
    check_choice("labels", labels, ("fine", "coarse"))
    (archive,) = located.paths.values()
    classes = {"fine": 100, "coarse": 20}[labels]
    read = _cifar100_binary if located.format == "binary" else _cifar100_python
    return _dataset(entry, *read(archive, labels), tuple(map(str, range(classes))))


def load_cifar10(entry: DatasetInfo, located: Located, *, seed: int) -> Dataset:
    """CIFAR-10, float32 [N, 3, 32, 32] in RGB order, the published division into training and test."""
    if located.format == "webp":
        train = _joined([read_webp_strips(located.paths[f"cifar10_train_{part}.npz"]) for part in (0, 1)])
        test = read_webp_strips(located.paths["cifar10_test.npz"])
    else:
        (archive,) = located.paths.values()
        train, test = (read_cifar_binary if located.format == "binary" else read_cifar_python)(archive)
    return _dataset(entry, train, test, _CIFAR10)


def read_idx(path: Path, dimensions: int, packed: IO[bytes] | None = None) -> NDArray[np.uint8]:
    """A gzip-compressed IDX file of unsigned bytes with ``dimensions`` dimensions, or ``packed``, a member of ``path``.

    Raises:
        DataError: the file is not gzip, not IDX, or shorter or longer than its header says.
    """
    magic = bytes((0, 0, 8, dimensions))
    try:
        with gzip.open(packed or path) as file:  # no more is unpacked than the header announces, and a byte
            began = file.read(4)
            if began != magic:
                raise DataError(
                    f"{path} begins with {began.hex(' ')} where an IDX file of unsigned bytes with {dimensions} "
                    f"dimensions begins with {magic.hex(' ')}; fetch it again."
                )
            sizes = file.read(4 * dimensions)
            shape = tuple(int.from_bytes(sizes[start : start + 4], "big") for start in range(0, len(sizes), 4))
            pixels = _at_most(file, math.prod(shape) + 1)
            more = " and more" if file.read(1) else ""
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}); fetch it again.") from error
    if len(sizes) != 4 * dimensions or len(pixels) != math.prod(shape):
        found = f"{4 + len(sizes) + len(pixels):,} bytes{more}"
        raise DataError(f"{path} holds {found}, not what its header {shape} announces; fetch it again.")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def _packed_idx(located: Located, path: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    """The IDX file ``name`` of EMNIST's zip, or of the folder that it unpacks to."""
    if located.format == "folder":
        return read_idx(path / name, dimensions)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"gzip/{name}") as packed:
            return read_idx(path, dimensions, packed)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not EMNIST's gzip.zip ({error}); fetch it again.") from error


def _at_most(file: gzip.GzipFile, size: int) -> bytes:
    """The next ``size`` bytes, or as many as there are; memory grows with what is read, whatever was announced."""
    pieces = []
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def read_webp_strips(path: Path) -> Part:
    """Images uint8 [N, 3, 32, 32] and labels uint8 [N] from a file of lossless WebP strips."""
    from PIL import Image

    with np.load(path, allow_pickle=False) as arrays:
        data, offsets, labels = arrays["x_webp"].tobytes(), arrays["offsets"], arrays["y"]
    images = np.empty((len(labels), 3, 32, 32), np.uint8)
    done = 0
    for begin, end in pairwise(offsets.tolist()):
        strip = np.asarray(Image.open(io.BytesIO(data[begin:end])).convert("RGB")).reshape(-1, 32, 32, 3)
        images[done : done + len(strip)] = strip.transpose(0, 3, 1, 2)
        done += len(strip)
    return images, labels


def read_cifar_binary(path: Path) -> tuple[Part, Part]:
    """Training and test part of the official binary archive: rows of one label byte and 3,072 pixel bytes."""

    def part(raw: bytes, member: str) -> Part:
        if not raw or len(raw) % 3073:
            raise DataError(
                f"{path}: {member} holds {len(raw):,} bytes, no multiple of 3,073; fetch the archive again."
            )
        rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]

    members = [f"cifar-10-batches-bin/{batch}.bin" for batch in _BATCHES]
    parts = [part(raw, member) for raw, member in zip(_tar_members(path, members), members, strict=True)]
    return _joined(parts[:-1]), parts[-1]


def read_cifar_python(path: Path) -> tuple[Part, Part]:
    """Training and test part of the official Python archive; its pickles may build arrays and nothing else."""

    members = [f"cifar-10-batches-py/{batch}" for batch in _BATCHES]
    parts = [_pickled(path, raw, one, b"labels") for raw, one in zip(_tar_members(path, members), members, strict=True)]
    return _joined(parts[:-1]), parts[-1]


def _pickled(path: Path, raw: bytes, member: str, labels: bytes) -> Part:
    """Images and ``labels`` of one pickled batch."""
    try:
        batch = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
        images, chosen = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[labels], np.uint8)
        return images.reshape(-1, 3, 32, 32), chosen
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {member} is not a CIFAR batch ({error}); fetch the archive again.") from error


def _cifar100_python(path: Path, labels: str) -> tuple[Part, Part]:
    members = [f"cifar-100-python/{part}" for part in ("train", "test")]
    raw = zip(_tar_members(path, members), members, strict=True)
    train, test = (_pickled(path, content, member, f"{labels}_labels".encode()) for content, member in raw)
    return train, test


def _cifar100_binary(path: Path, labels: str) -> tuple[Part, Part]:
    """Rows of a coarse and a fine label byte and 3,072 pixel bytes."""
    members = [f"cifar-100-binary/{part}.bin" for part in ("train", "test")]
    column = ("coarse", "fine").index(labels)
    parts = []
    for content, member in zip(_tar_members(path, members), members, strict=True):
        if not content or len(content) % 3074:
            raise DataError(f"{path}: {member} holds {len(content):,} bytes, no multiple of 3,074; fetch it again.")
        rows = np.frombuffer(content, np.uint8).reshape(-1, 3074)
        parts.append((rows[:, 2:].reshape(-1, 3, 32, 32), rows[:, column]))
    return parts[0], parts[1]


_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can rebuild NumPy arrays of plain numbers and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            return lambda text, codec: text.encode("latin-1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of images has no use for")


def _tar_members(path: Path, members: Sequence[str]) -> list[bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            found = {member.name: member for member in archive.getmembers() if member.isfile()}
            missing = [member for member in members if member not in found]
            if missing:
                raise DataError(f"{path} lacks {', '.join(missing)}; fetch the archive again.")
            return [archive.extractfile(found[member]).read() for member in members]  # type: ignore[union-attr]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete tar.gz archive ({error}); fetch it again.") from error


def _joined(parts: Sequence[Part]) -> Part:
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _load_idx(entry: DatasetInfo, located: Located, names: tuple[str, ...]) -> Dataset:
    def part(prefix: str) -> Part:
        images = read_idx(located.paths[f"{prefix}-images-idx3-ubyte.gz"], 3)
        return images[:, None], read_idx(located.paths[f"{prefix}-labels-idx1-ubyte.gz"], 1)

    return _dataset(entry, part("train"), part("t10k"), names)


def _dataset(entry: DatasetInfo, train: Part, test: Part, names: tuple[str, ...], brightest: float = 255.0) -> Dataset:
    """Images scaled to 0..1 and normalised by the entry's public constants."""
    mean, std = torch.tensor(entry.mean).view(-1, 1, 1), torch.tensor(entry.std).view(-1, 1, 1)

    def tensors(part: Part) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(part[0].astype(np.float32))
        return images.div_(brightest).sub_(mean).div_(std), torch.from_numpy(part[1].astype(np.int64))

    return Dataset(entry.name, *tensors(train), *tensors(test), classes=len(names), class_names=names)
