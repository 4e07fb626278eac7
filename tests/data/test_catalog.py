"""The catalog: every entry loads, agrees with what it says of itself, and trusts no file that it has not checked."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from privfl.data import Dataset, datasets, fetch, images, info, load_dataset
from privfl.data.catalog import options
from privfl.errors import ConfigError, DataError

ROOM = os.environ.get("PRIVFL_DATA", "")
needs_room = pytest.mark.skipif(not ROOM, reason="PRIVFL_DATA does not name a folder with the real datasets")
NAMES = (
    "digits", "mnist", "fashion-mnist", "cifar10", "mitbih", "heart-disease", "berka", "medical-questions",
    "shakespeare", "amazon-toys", "amazon-beauty",
)  # fmt: skip


@pytest.fixture
def room(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path))
    return tmp_path


def put(room: Path, path: str, content: bytes | None = None) -> Path:
    """A writable copy of a real file, or other content, at its place in a data folder."""
    target = room / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((Path(ROOM) / path).read_bytes() if content is None else content)
    return target


FURTHER = (
    "emnist", "cifar100", "tiny-imagenet", "femnist", "celeba", "reddit", "speech-commands", "mind", "derma-mnist",
    "organc-mnist", "isic2019",
)  # fmt: skip
NO_DOWNLOAD = {"digits", "femnist", "celeba", "reddit", "mind", "isic2019"}


def test_the_catalog_lists_the_datasets_with_licence_and_citation():
    assert tuple(entry.name for entry in datasets()) == NAMES + FURTHER
    for entry in datasets():
        assert all((entry.title, entry.task, entry.inputs, entry.licence, entry.citation, entry.notes)), entry.name


def test_hashes_are_whole_sha256_values_and_addresses_are_complete():
    for entry in datasets():
        assert bool(entry.downloads) is (entry.name not in NO_DOWNLOAD)
        assert entry.downloads or entry.name == "digits" or "No download: " in entry.notes
        for url, _ in entry.downloads:
            assert re.fullmatch(r"https?://[\w.-]+\.\w+/\S+", url)
        for layout in entry.layouts:
            for file in layout.files:
                assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
                assert (file.sha256 is None) == (file.size is None)


@needs_room
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "cifar10" else ()) for name in NAMES]
)
def test_a_dataset_is_what_its_entry_says(name):
    entry, data = info(name), load_dataset(name)
    assert (len(data.targets), len(data.test_targets)) == entry.rows
    assert data.classes == entry.classes
    dtype, shape = entry.inputs.split(" ", 1)
    assert str(data.inputs.dtype) == f"torch.{dtype}"
    assert list(data.inputs.shape[1:]) == [int(size) for size in re.match(r"\[(.*?)\]", shape)[1].split(",")]
    if entry.client_id is None:
        assert data.clients is None
    else:
        assert data.num_clients == int(re.search(r"\(([\d,]+)", entry.client_id)[1].replace(",", ""))
        assert data.client_names is not None
        assert set(data.test_clients.tolist()) == set(data.clients.tolist())
    for option, default in options(name).items():
        assert default is not inspect.Parameter.empty, option


@needs_room
def test_the_seed_decides_a_drawn_holdout_and_leaves_a_published_one_alone():
    first, again, other = (load_dataset("heart-disease", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(load_dataset("mnist", seed=1).inputs[:100], load_dataset("mnist", seed=2).inputs[:100])


def test_digits_need_no_file_and_are_the_default(monkeypatch):
    monkeypatch.delenv("PRIVFL_DATA", raising=False)
    data = load_dataset()
    assert (len(data.targets), len(data.test_targets), data.classes) == (1438, 359, 10)
    assert tuple(data.inputs.shape[1:]) == (1, 8, 8)
    assert (data.inputs.min(), data.inputs.max()) == (-1, 1)
    assert torch.bincount(torch.cat([data.targets, data.test_targets])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert fetch("digits") == []
    assert len(load_dataset("digits", test_fraction=0.5).test_targets) == 898


def test_digits_are_those_of_scikit_learn_also_where_its_file_is_not_found(monkeypatch):
    pixels, labels = load_digits(return_X_y=True)
    for known in (images.find_spec, lambda name: None):
        monkeypatch.setattr(images, "find_spec", known)
        images._bundled_digits.cache_clear()
        for found, expected in zip(images._bundled_digits(), (pixels, labels), strict=True):
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
            assert not found.flags.writeable


def test_what_is_done_to_one_copy_of_the_digits_reaches_no_other():
    first = load_dataset("digits")
    first.inputs.zero_()
    first.targets.zero_()
    assert (load_dataset("digits").inputs.max(), load_dataset("digits").targets.max()) == (1, 9)


def test_unknown_names_and_options_are_refused_with_the_nearest_valid_one():
    with pytest.raises(ConfigError, match="unknown dataset 'fashion_mnist': did you mean 'fashion-mnist'"):
        load_dataset("fashion_mnist")
    with pytest.raises(ConfigError, match="unknown option of digits 'test_fractoin': did you mean 'test_fraction'"):
        load_dataset("digits", test_fractoin=0.1)
    with pytest.raises(ConfigError, match="unknown option of mnist 'split'"):
        load_dataset("mnist", split="x")
    with pytest.raises(ConfigError, match="unknown dataset"):
        fetch("emnits")
    assert info("mqp") is info("medical-questions")


def test_listing_the_catalog_waits_for_no_heavy_library_and_the_digits_not_for_scikit_learn():
    """The data room's own modules are imported under a bare parent, since the package's root offers everything."""
    code = (
        "import sys, types; root = types.ModuleType('privfl');"
        "root.__path__ = [sys.argv[1]]; sys.modules['privfl'] = root;"
        "import privfl.data; assert len(privfl.data.datasets()) == 22; privfl.data.info('mnist');"
        "print([m for m in ('torch', 'numpy', 'pooch', 'sklearn', 'rich') if m in sys.modules]);"
        "privfl.data.load_dataset('digits'); print('sklearn' in sys.modules)"
    )
    root = Path(inspect.getfile(Dataset)).parents[1]
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]


def test_the_package_offers_nothing_else():
    import privfl.data

    with pytest.raises(AttributeError, match="has no attribute 'load_data'"):
        _ = privfl.data.load_data


@needs_room
def test_fetch_names_the_files_in_the_data_folder():
    paths = fetch("heart-disease")
    assert [path.name for path in paths] == [
        f"processed.{s}.data" for s in ("cleveland", "hungarian", "switzerland", "va")
    ]
    assert all(path.is_relative_to(ROOM) for path in paths)


@needs_room
def test_a_file_that_is_cut_short_is_named_with_both_sizes_and_the_mend(room):
    content = (Path(ROOM) / "mqp/mqp.csv").read_bytes()
    put(room, "mqp/mqp.csv", content[:1000])
    with pytest.raises(
        DataError, match=r"mqp\.csv is cut short, 1,000 bytes where 665,688 .*fresh copy from https://raw"
    ):
        load_dataset("mqp")


@needs_room
def test_a_file_with_one_altered_byte_is_refused_with_both_hashes(room):
    content = bytearray((Path(ROOM) / "mqp/mqp.csv").read_bytes())
    content[5000] ^= 1
    path = put(room, "mqp/mqp.csv", bytes(content))
    with pytest.raises(DataError, match=r"has sha256 [0-9a-f]{64} where 94ecd609\w+ is published; replace it"):
        load_dataset("mqp")
    put(room, "mqp/mqp.csv")
    os.utime(path, ns=(1, 1))  # the remembered hash belongs to another state of the file
    assert len(load_dataset("mqp")) == 2438


@needs_room
def test_a_folder_with_some_files_of_a_dataset_is_refused_by_naming_the_others(room):
    put(room, "MNIST/raw/train-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match=r"not MNIST/raw/train-images-idx3-ubyte\.gz, MNIST/raw/t10k-images"):
        load_dataset("mnist")


def test_privfl_data_must_be_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match="which is not a folder; correct the variable or unset it"):
        load_dataset("mnist")


@needs_room
def test_a_dataset_in_the_cache_is_found_without_privfl_data(monkeypatch, tmp_path):
    monkeypatch.delenv("PRIVFL_DATA")
    monkeypatch.setattr("privfl.data.files.cache_folder", lambda: tmp_path)
    put(tmp_path, "mqp/mqp.csv")
    assert fetch("mqp") == [tmp_path / "mqp/mqp.csv"]
    shutil.rmtree(tmp_path / "mqp")
    put(tmp_path, "amazon2014/Beauty.txt.gz")
    assert fetch("amazon-beauty") == [tmp_path / "amazon2014/Beauty.txt.gz"]
    put(tmp_path, "amazon2014/Beauty.txt.gz", b"short")
    with pytest.raises(DataError, match="is cut short"):
        fetch("amazon-beauty")
