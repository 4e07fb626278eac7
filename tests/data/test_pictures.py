"""TinyImageNet, FLamby's ISIC 2019 and MedMNIST from small files in their official formats."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from privfl.data import info
from privfl.data.files import locate
from privfl.data.pictures import load_tiny_imagenet
from privfl.errors import DataError
from tests.damaged_archives import DAMAGES
from tests.data.official import RNG, loaded, picture, private_round, write


def tiny(root):
    """TinyImageNet of two classes with two training pictures and one test picture each."""
    ids = ("n02", "n01")
    write(root / "wnids.txt", "\n".join(ids) + "\n")
    for label, one in enumerate(ids):
        for number in range(2):
            colours = np.full((64, 64, 3), 100 * label + 50 * number, np.uint8)
            write(root / f"train/{one}/images/{one}_{number}.JPEG", picture(colours))
        write(root / f"val/images/val_{label}.JPEG", picture(np.full((64, 64, 3), 100 * label, np.uint8)))
    told = "".join(f"val_{label}.JPEG\t{one}\t0\t0\t63\t63\n" for label, one in enumerate(ids))
    write(root / "val/val_annotations.txt", told)


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_tiny_imagenets_classes_are_those_of_its_list(kind, tmp_path, monkeypatch):
    root = tmp_path / "tiny-imagenet/tiny-imagenet-200"
    tiny(root)
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "tiny-imagenet/tiny-imagenet-200.zip", "w") as archive:
            for file in sorted(root.rglob("*")):
                archive.write(file, f"tiny-imagenet-200/{file.relative_to(root).as_posix()}")
    data = loaded("tiny-imagenet", monkeypatch, tmp_path)
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([0, 0, 1, 1], [0, 1])
    assert data.class_names == ("n02", "n01")
    mean, std = info("tiny-imagenet").mean, info("tiny-imagenet").std
    expected = [(brightness / 255 - mean[0]) / std[0] for brightness in (0, 50, 100, 150)]
    assert np.allclose(data.inputs[:, 0].mean((1, 2)).numpy(), expected, atol=0.02)
    assert private_round(data, "logistic") > 0


def test_an_incomplete_tiny_imagenet_is_refused_by_its_counts(tmp_path, monkeypatch):
    tiny(tmp_path / "tiny-imagenet/tiny-imagenet-200")
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path))
    entry = info("tiny-imagenet")
    found = locate(entry.name, entry.layouts)
    with pytest.raises(DataError, match="4 train were read where 100,000 are published"):
        load_tiny_imagenet(entry, found, seed=0)
    (tmp_path / "tiny-imagenet/tiny-imagenet-200/val/val_annotations.txt").write_text("val_0.JPEG\tn99\n")
    with pytest.raises(DataError, match=r"is not TinyImageNet \(KeyError\('n99'\)\)"):
        load_tiny_imagenet(replace(entry, counts={}), found, seed=0)


def isic(root, rows):
    lines = [",image,target,center,fold,fold2"]
    for number, (target, center, fold) in enumerate(rows):
        lines.append(f"{number},ISIC_{number},{target},{center},{fold},{fold}_{center}")
        colours = np.zeros((30, 40, 3), np.uint8)
        colours[10:20, 15:25] = 255  # the middle, which holds a cut of 4 pixels
        write(root / f"isic2019/ISIC_2019_Training_Input_preprocessed/ISIC_{number}.jpg", picture(colours))
    write(root / "isic2019/train_test_split", "\n".join(lines) + "\n")


def test_isics_centres_are_clients_and_the_middle_of_a_picture_is_taken(tmp_path, monkeypatch):
    isic(tmp_path, [(0, 0, "train"), (7, 1, "train"), (1, 0, "test"), (2, 0, "train")])
    data = loaded("isic2019", monkeypatch, tmp_path, size=4)
    assert (data.targets.tolist(), data.clients.tolist()) == ([0, 7, 2], [0, 1, 0])
    assert (data.test_targets.tolist(), data.test_clients.tolist()) == ([1], [0])
    white = (1 - np.array(info("isic2019").mean)) / np.array(info("isic2019").std)
    assert np.allclose(data.inputs[0].mean((1, 2)).numpy(), white, atol=0.1)
    assert private_round(data, "logistic") > 0
    assert tuple(loaded("isic2019", monkeypatch, tmp_path, size=35).inputs.shape[1:]) == (3, 35, 35)
    isic(tmp_path, [(0, 9, "train"), (7, 1, "test")])
    with pytest.raises(DataError, match="ISIC_0 is of fold 'train' and center 9"):
        loaded("isic2019", monkeypatch, tmp_path)


@pytest.mark.parametrize(("name", "shape"), [("derma-mnist", (28, 28, 3)), ("organc-mnist", (28, 28))])
def test_medmnists_validation_rows_train_unless_they_judge(name, shape, tmp_path, monkeypatch):
    arrays = {}
    for part, rows in (("train", 5), ("val", 2), ("test", 3)):
        arrays[f"{part}_images"] = RNG.integers(0, 256, (rows, *shape), np.uint8)
        arrays[f"{part}_labels"] = RNG.integers(0, info(name).classes, (rows, 1), np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    path = tmp_path / f"medmnist/{info(name).layouts[0].files[0].name}"
    write(path, file.getvalue())
    data = loaded(name, monkeypatch, tmp_path)
    assert data.targets.tolist() == [*arrays["train_labels"][:, 0], *arrays["val_labels"][:, 0]]
    pixels = arrays["test_images"].reshape(3, 28, 28, -1).transpose(0, 3, 1, 2)
    assert np.allclose(data.test_inputs.numpy(), pixels / 127.5 - 1, atol=1e-6)
    judged = loaded(name, monkeypatch, tmp_path, holdout="validation")
    assert (len(judged.targets), judged.test_targets.tolist()) == (5, arrays["val_labels"][:, 0].tolist())
    assert private_round(data, "logistic") > 0
    for damage in DAMAGES:
        write(path, file.getvalue())
        damage(path)
        with pytest.raises(DataError, match="is not a file of MedMNIST"):
            loaded(name, monkeypatch, tmp_path)
