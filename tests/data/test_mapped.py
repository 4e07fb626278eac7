"""A memory-mapped array trains like the same array in memory, and what is not asked for is never read."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.data import Dataset
from privfl.data.mapped import MappedRows, is_mapped
from privfl.errors import ConfigError, DataError

LABELS = np.arange(60) % 3
OWNERS = np.arange(60) % 4
STATUS = Path("/proc/self/status")


def saved(folder, array):
    np.save(folder / "inputs.npy", array)
    return np.load(folder / "inputs.npy", mmap_mode="r")


def resident_megabytes():
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


ARRAYS = {
    "8-bit images": np.random.default_rng(0).integers(0, 256, (60, 1, 6, 6), dtype=np.uint8),
    "float64 features": np.random.default_rng(1).normal(size=(60, 5)),
    "big-endian float32": np.random.default_rng(2).normal(size=(60, 5)).astype(">f4"),
    "columns first": np.asfortranarray(np.random.default_rng(3).normal(size=(60, 5)).astype(np.float32)),
    "16-bit signals": np.random.default_rng(4).integers(-9, 9, (60, 2, 8), dtype=np.int16),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("privacy", [None, pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5))])
def test_a_mapped_task_trains_to_the_same_bits_as_the_array_in_memory(tmp_path, name, privacy):
    if privacy is not None:
        privacy = pf.Privacy(training=privacy.training, noise_key=3)
    trained = []
    for inputs in (ARRAYS[name], saved(tmp_path, ARRAYS[name])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            task = pf.Task.from_arrays(inputs, LABELS, clients=OWNERS, scale=1 / 255, model="logistic")
            run = pf.simulate(
                task,
                pf.FedAvg(weighting="uniform"),
                rounds=3,
                privacy=privacy,
                execution=pf.Execution(device="cpu", workers=2),
            )
        trained.append((run.parameters, run.metrics))
    assert torch.equal(trained[0][0], trained[1][0])
    assert trained[0][1] == trained[1][1]


def test_mapped_rows_answer_as_the_tensor_does(tmp_path):
    array = ARRAYS["8-bit images"]
    tensor = Dataset.from_arrays(array, LABELS, scale=0.5).inputs
    rows = Dataset.from_arrays(saved(tmp_path, array), LABELS, scale=0.5).inputs
    assert isinstance(rows, MappedRows)
    assert (len(rows), rows.shape, rows.ndim, rows.dtype) == (len(tensor), tensor.shape, tensor.ndim, tensor.dtype)
    for index in (torch.tensor([5, 0, 5]), torch.tensor([[1, 2], [3, 4]]), torch.tensor([], dtype=torch.int64)):
        assert torch.equal(rows[index], tensor[index])
    assert torch.equal(rows[3:9], tensor[3:9])


def test_a_batch_may_be_changed_without_reaching_the_file(tmp_path):
    array = np.random.default_rng(5).normal(size=(60, 4)).astype(np.float32)
    rows = Dataset.from_arrays(saved(tmp_path, array), LABELS).inputs
    before = rows[:].clone()
    rows[torch.arange(9)].zero_()
    rows[:].zero_()
    assert torch.equal(rows[:], before)


@pytest.mark.skipif(not STATUS.exists(), reason="reads the resident memory from /proc")
def test_forty_gigabytes_become_a_task_in_little_memory_and_a_batch_can_be_read(tmp_path):
    rows, shape = 66_500, (3, 224, 224)
    inputs = np.memmap(tmp_path / "sparse.bin", mode="w+", dtype=np.float32, shape=(rows, *shape))
    assert inputs.nbytes > 40e9
    inputs[123] = 7.0
    before = resident_megabytes()
    owners = np.arange(rows) // 10_000
    task = pf.Task.from_arrays(inputs, np.arange(rows) % 10, clients=owners, test_fraction=1e-3, seed=1)
    where = np.flatnonzero(task.inputs.index == 123)
    batch = task.to(torch.device("cpu")).inputs[torch.from_numpy(where)]
    assert resident_megabytes() - before < 500
    assert (len(task.clients), batch.shape, batch.unique().tolist()) == (7, (1, *shape), [7.0])


def test_moving_a_task_to_where_it_is_copies_nothing(tmp_path):
    for inputs in (ARRAYS["8-bit images"], saved(tmp_path, ARRAYS["8-bit images"])):
        task = pf.Task.from_arrays(inputs, LABELS, clients=OWNERS)
        moved = task.to(torch.device("cpu"))
        assert moved.targets.data_ptr() == task.targets.data_ptr()
        assert moved.test_inputs.data_ptr() == task.test_inputs.data_ptr()
        if isinstance(task.inputs, MappedRows):
            assert moved.inputs.array is task.inputs.array
        else:
            assert moved.inputs.data_ptr() == task.inputs.data_ptr()


def test_a_map_stays_where_it_is_and_its_batches_go_to_the_device(tmp_path):
    task = pf.Task.from_arrays(saved(tmp_path, ARRAYS["8-bit images"]), LABELS, clients=OWNERS)
    away = task.to(torch.device("meta"))
    assert away.inputs.array is task.inputs.array
    assert (away.inputs.device.type, away.inputs[torch.arange(3)].device.type) == ("meta", "meta")


def test_token_ids_in_a_map_need_their_vocabulary_and_are_held_to_it(tmp_path):
    tokens = saved(tmp_path, np.random.default_rng(6).integers(0, 9, (60, 7)))
    with pytest.raises(DataError, match="may be token ids or features; give vocabulary"):
        Dataset.from_arrays(tokens, LABELS)
    rows = Dataset.from_arrays(tokens, LABELS, vocabulary=9).inputs
    assert rows.dtype == rows[:2].dtype == torch.int64
    low = Dataset.from_arrays(tokens, LABELS, vocabulary=8, test=(np.zeros((2, 7), np.int64), [0, 1]))
    with pytest.raises(DataError, match=r"inputs\[\d+, \d\] is 8, outside 0\.\.7"):
        low.inputs[:]


@pytest.mark.parametrize(
    ("array", "labels", "sentence"),
    [
        (np.zeros(60, np.float32), LABELS, r"a row needs at least one dimension"),
        (np.zeros((60, 2), np.float32), LABELS[:50], "60 inputs but 50 targets"),
        (np.zeros((60, 2), np.complex64), LABELS, "encode them as numbers"),
        (np.zeros((60, 0), np.float32), LABELS, "inputs are empty"),
    ],
)
def test_maps_of_the_wrong_shape_are_refused_in_one_sentence(tmp_path, array, labels, sentence):
    np.save(tmp_path / "inputs.npy", array)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r" if array.size else None)
    with pytest.raises(DataError, match=sentence) as error:
        Dataset.from_arrays(mapped, labels)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), "half", 1e-60, 1e60])
def test_a_scale_that_is_not_positive_or_leaves_nothing_of_the_inputs_is_refused(scale):
    with pytest.raises(ConfigError, match="scale is"):
        Dataset.from_arrays(np.zeros((60, 2)), LABELS, scale=scale)


def test_whole_numbers_in_a_map_that_float32_rounds_are_refused_as_they_are_read(tmp_path):
    array = np.zeros((60, 2, 3), np.int64)
    array[40, 1, 2] = 2**24 + 1
    rows = Dataset.from_arrays(saved(tmp_path, array), LABELS, test=(array[:3], LABELS[:3])).inputs
    assert rows[:40].count_nonzero() == 0
    with pytest.raises(DataError, match=r"inputs\[40, 1, 2\] is 16777217, and float32 holds every whole number up to"):
        rows[torch.tensor([[1, 2], [3, 40]])]


def test_an_array_that_merely_came_from_a_map_lies_in_memory(tmp_path):
    mapped = saved(tmp_path, np.zeros((6, 3)))
    assert is_mapped(mapped)
    assert is_mapped(mapped[2:, :1])
    assert is_mapped(np.asarray(mapped).T)
    assert not is_mapped(mapped[[1, 2]])
    assert not is_mapped(mapped + 1)
    assert not is_mapped(torch.zeros(3))
