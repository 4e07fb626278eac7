"""Large 8-bit arrays stay bytes that nobody copies, and every batch has the bits of the float32 array."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import privfl as pf
from audits.canaries.canaries import noise_canaries, plant
from privfl.data import Dataset, eight_bit
from privfl.data.eight_bit import EightBitRows, stay_eight_bit
from privfl.data.set_aside import set_aside

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 1, 6, 6), dtype=np.uint8)
LABELS = np.arange(60) % 3
TEST = (PIXELS[:9], LABELS[:9])


@pytest.fixture
def bytes_stay(monkeypatch):
    """Every 8-bit array is taken for a large one, once the function is called."""
    return lambda: monkeypatch.setattr(eight_bit, "LARGE", 0)


def made(**given):
    return pf.Task.from_arrays(PIXELS, LABELS, scale=1 / 255, partition=pf.IID(clients=4), model="logistic", **given)


@pytest.mark.parametrize("test", [None, TEST], ids=["held out", "given"])
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("training", [None, pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)], ids=["plain", "DP-SGD"])
def test_bytes_train_to_the_same_bits_as_the_float32_array(bytes_stay, test, engine, training):
    runs = []
    for prepare in (lambda: None, bytes_stay):
        prepare()
        task = made(test=test)
        execution = pf.Execution(engine=engine, device="cpu", workers=2)
        privacy = None if training is None else pf.Privacy(training=training, noise_key=3)
        runs.append(
            (task, pf.simulate(task, pf.FedAvg(weighting="uniform"), rounds=2, privacy=privacy, execution=execution))
        )
    (plain, first), (kept, second) = runs
    assert isinstance(plain.inputs, torch.Tensor)
    assert isinstance(kept.inputs, EightBitRows)
    assert torch.equal(first.parameters, second.parameters)
    assert first.metrics == second.metrics
    assert plain.content() == kept.content()


def test_rows_of_bytes_answer_as_the_tensor_does(bytes_stay):
    tensor = Dataset.from_arrays(PIXELS, LABELS, scale=0.5).inputs
    bytes_stay()
    rows = Dataset.from_arrays(PIXELS, LABELS, scale=0.5).inputs
    assert (len(rows), rows.shape, rows.ndim, rows.dtype) == (len(tensor), tensor.shape, tensor.ndim, tensor.dtype)
    for index in (torch.tensor([5, 0, 5]), torch.tensor([[1, 2], [3, 4]]), torch.tensor([], dtype=torch.int64)):
        assert torch.equal(rows[index], tensor[index])
        assert torch.equal(rows.only(torch.arange(10, 40))[index], tensor[10:40][index])
    assert torch.equal(rows.to(torch.device("cpu"))[3:9], tensor[3:9])


def test_nothing_is_copied_and_arrays_of_any_layout_are_read_right(bytes_stay):
    bytes_stay()
    read_only = PIXELS.copy()
    read_only.setflags(write=False)
    for array in (PIXELS, read_only, PIXELS[:, :, ::2], np.asfortranarray(PIXELS), PIXELS[::-1]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows = Dataset.from_arrays(array, LABELS, test=(array, LABELS)).inputs
        assert torch.equal(rows[:], torch.from_numpy(array.astype(np.float32)))
        shared = rows.pixels.data_ptr() == array.__array_interface__["data"][0]
        assert shared == (array.strides[0] > 0)


def test_only_large_arrays_of_unsigned_bytes_stay_as_they_are():
    image = np.zeros((1, 1, 28, 28), np.uint8)
    many = np.broadcast_to(image, (2**28 // (4 * 784) + 1, 1, 28, 28))
    assert stay_eight_bit(many, 1 / 255)
    assert not stay_eight_bit(many[:-1], 1 / 255)
    assert not stay_eight_bit(many, 1e37)  # the brightest pixel would be infinite, which a check of all values refuses
    assert not any(stay_eight_bit(np.broadcast_to(image.astype(kind), many.shape), 1.0) for kind in (np.int8, np.bool_))


def test_canaries_are_planted_and_images_set_aside_as_in_a_tensor(bytes_stay, tmp_path):
    found = []
    for prepare in (lambda: None, bytes_stay):
        prepare()
        task, data = made(), Dataset.from_arrays(PIXELS, LABELS, test=TEST)
        planted = plant(task, noise_canaries(task, 2), np.array([True, False]))
        left = set_aside(data, tmp_path / "server.npz", per_class=2)
        found.append((planted.inputs, left.inputs[:], replace(left, name="left").targets))
    for plain, kept in zip(*found, strict=True):
        assert torch.equal(plain, kept)
