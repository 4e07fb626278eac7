"""Data sets of picture files: decoding them by Pillow, and TinyImageNet, ISIC 2019 and MedMNIST."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.errors import DataError
from privfl.files import UNREADABLE
from privfl.validation import check_choice, check_count

Pixels = NDArray[np.uint8]
_SKIN = ("melanoma", "nevus", "basal cell carcinoma", "actinic keratosis", "benign keratosis", "dermatofibroma")
_ISIC = (*_SKIN, "vascular lesion", "squamous cell carcinoma")
_HOSPITALS = 6


def load_tiny_imagenet(entry: DatasetInfo, located: Located, *, seed: int) -> Dataset:
    """TinyImageNet, float32 [N, 3, 64, 64], 200 classes; its labelled validation part is the test part.

    The classes are those of ``wnids.txt`` in its order. The official test part has no labels and is not read.
    """
    (path,) = located.paths.values()
    try:
        root: Any = zipfile.Path(path, "tiny-imagenet-200/") if located.format == "zip" else path
        ids = (root / "wnids.txt").read_text(encoding="utf-8").split()
        train = [
            (picture, label)
            for label, one in enumerate(ids)
            for picture in sorted((root / "train" / one / "images").iterdir(), key=lambda found: str(found.name))
        ]
        told = (root / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
        known = {one: label for label, one in enumerate(ids)}
        columns = [line.split("\t") for line in told if line.strip()]
        test = [(root / "val" / "images" / line[0], known[line[1]]) for line in columns]
    except (OSError, KeyError, IndexError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not TinyImageNet ({error!r}); fetch it again.") from error
    entry.check_counts(train=len(train), test=len(test))

    def part(rows: Sequence[tuple[Any, int]]) -> tuple[Tensor, Tensor]:
        return normalised(entry, decoded([one for one, _ in rows], 64)), torch.tensor([label for _, label in rows])

    return Dataset(entry.name, *part(train), *part(test), classes=len(ids), class_names=tuple(ids))


def load_isic(entry: DatasetInfo, located: Located, *, seed: int, size: int = 200) -> Dataset:
    """FLamby's ISIC 2019, float32 [N, 3, size, size], eight classes, a hospital's camera a client.

    ``train_test_split`` is FLamby's table, whose column ``fold`` divides the rows, and the pictures are those that its
    script has resized. The middle of each is cut out; FLamby's random crops, flips and tints are left to the training.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, FLamby has divided the rows.
        size: pixels of each side of the cut.
    """
    check_count("size", size)
    table, folder = located.paths["train_test_split"], located.paths["ISIC_2019_Training_Input_preprocessed"]
    try:
        with open(table, newline="", encoding="utf-8") as lines:
            rows = [
                (one["image"], int(one["target"]), int(one["center"]), one["fold"]) for one in csv.DictReader(lines)
            ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{table} is not FLamby's table ({error!r}); fetch it again from FLamby.") from error
    wrong = next((one for one in rows if one[3] not in ("train", "test") or not 0 <= one[2] < _HOSPITALS), None)
    if wrong is not None:
        raise DataError(f"{table}: {wrong[0]} is of fold {wrong[3]!r} and center {wrong[2]}; fetch it again.")
    entry.check_counts(pictures=len(rows))

    def part(fold: str) -> tuple[Tensor, Tensor, Tensor]:
        own = [one for one in rows if one[3] == fold]
        pictures = decoded([folder / f"{name}.jpg" for name, *_ in own], size, crop=True)
        return normalised(entry, pictures), torch.tensor([one[1] for one in own]), torch.tensor([one[2] for one in own])

    (x, y, owner), (test_x, test_y, test_owner) = part("train"), part("test")
    names = tuple(f"center {number}" for number in range(int(torch.cat([owner, test_owner]).max()) + 1))
    return Dataset(
        entry.name, x, y, test_x, test_y, len(_ISIC), owner, test_owner, client_names=names, class_names=_ISIC
    )


def load_medmnist(entry: DatasetInfo, located: Located, *, seed: int, holdout: str = "test") -> Dataset:
    """A set of MedMNIST, float32 [N, channels, 28, 28], with its published division.

    Args:
        entry: catalog entry.
        located: its file.
        seed: not used, the division is published.
        holdout: ``test`` trains on the training and the validation part; ``validation`` is judged by the latter.
    """
    check_choice("holdout", holdout, ("test", "validation"))
    (path,) = located.paths.values()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {part: _medical(arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in _MEDICAL}
    except UNREADABLE as error:
        raise DataError(f"{path} is not a file of MedMNIST ({error!r}); fetch it again.") from error
    entry.check_counts(**{part: len(labels) for part, (_, labels) in found.items()})
    train = ["train"] if holdout == "validation" else ["train", "val"]
    images = np.concatenate([found[part][0] for part in train])
    labels = np.concatenate([found[part][1] for part in train])
    test_images, test_labels = found["val" if holdout == "validation" else "test"]
    return Dataset(
        entry.name,
        normalised(entry, images),
        torch.from_numpy(labels),
        normalised(entry, test_images),
        torch.from_numpy(test_labels),
        classes=entry.classes,
    )


_MEDICAL = ("train", "val", "test")


def _medical(images: NDArray[Any], labels: NDArray[Any]) -> tuple[Pixels, NDArray[np.int64]]:
    """uint8 [N, channels, H, W] and int64 [N] of MedMNIST's [N, H, W(, 3)] and [N, 1]."""
    pixels = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or labels.shape != (len(images), 1):
        raise ValueError(f"images are {images.dtype} {images.shape} and labels {labels.shape}")
    return np.ascontiguousarray(pixels), labels[:, 0].astype(np.int64)


def decoded(pictures: Sequence[Any], size: int, *, crop: bool = False) -> Pixels:
    """The files ``pictures`` (paths, or members of a zip) as uint8 [N, 3, size, size] in RGB.

    A picture of another size is resized, or with ``crop`` cut out of its middle, after enlarging one that is too small.

    Raises:
        DataError: a file is absent or no picture.
    """
    from PIL import Image, ImageOps

    found = np.empty((len(pictures), 3, size, size), np.uint8)
    for row, picture in enumerate(pictures):
        try:
            with Image.open(io.BytesIO(picture.read_bytes())) as image:
                colours = image.convert("RGB")
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{picture} is no picture that can be read ({error}); fetch it again.") from error
        if crop and min(colours.size) >= size:
            left, top = ((length - size) // 2 for length in colours.size)
            colours = colours.crop((left, top, left + size, top + size))
        elif colours.size != (size, size):
            colours = ImageOps.fit(colours, (size, size)) if crop else colours.resize((size, size))
        found[row] = np.asarray(colours).transpose(2, 0, 1)
    return found


def normalised(entry: DatasetInfo, pixels: Pixels) -> Tensor:
    """float32 of the shape of ``pixels`` [N, channels, H, W]: scaled to 0..1, then by the entry's public constants."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (entry.mean, entry.std))
    return torch.from_numpy(pixels.astype(np.float32)).div_(255.0).sub_(mean).div_(std)
