"""A recipe says how a task can be had again, and hashes tell its data apart."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.data.mapped import MappedRows
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.recipe import Recipe, content_hash
from privfl.federation.task import call_for_task
from privfl.schema import Named
from tests.own_parts import hospitals, hospitals_of


def test_a_memory_map_has_the_hash_of_its_rows_in_memory(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 255, size=(50, 3, 4), dtype=np.uint8)
    np.save(tmp_path / "x.npy", values)
    index = np.array([7, 3, 3, 49])
    mapped = MappedRows(np.load(tmp_path / "x.npy", mmap_mode="r"), index, scale=1 / 255)
    rows = torch.from_numpy(values[index].astype(np.float32)) * (1 / 255)
    assert content_hash(mapped) == content_hash(rows)
    whole = content_hash(rows)
    monkeypatch.setattr("privfl.federation.recipe._PIECE", 13)
    assert content_hash(mapped) == content_hash(rows) == whole


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([[1.0, 2.0], [3.0, 5.0]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64),
        torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
        torch.tensor([[3.0, 4.0], [1.0, 2.0]]),
    ],
)
def test_other_values_types_shapes_and_orders_have_other_hashes(other):
    assert content_hash(other) != content_hash(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_local_tests_added_by_the_same_seed_belong_to_the_recipe():
    task = pf.load("digits", partition=pf.IID(3), seed=2)
    tests = pf.LocalTests(0.3)
    assert (
        task.with_local_tests(tests, seed=2).recipe
        == pf.load("digits", partition=pf.IID(3), local_tests=tests, seed=2).recipe
        != task.recipe
    )
    assert task.with_local_tests(tests, seed=3).recipe is None


def test_a_dataset_and_data_from_python_exclude_each_other():
    with pytest.raises(ConfigError, match="keep one"):
        Recipe(task="a:b", dataset=Named("digits"))
    with pytest.raises(ConfigError, match=r"\[loss\] stands beside \[data\]"):
        Recipe(data={"name": "arrays"}, loss=Named("a:b"))


def test_a_task_that_was_changed_after_loading_is_not_taken_for_the_loaded_one(tmp_path):
    loaded = pf.load("digits", partition=pf.IID(3), model="logistic")
    assert loaded.to(torch.device("cpu")).recipe == loaded.recipe is not None
    changed = replace(loaded, targets=(loaded.targets + 1) % 10)
    assert changed.recipe is None
    pf.simulate(changed, pf.FedAvg(), rounds=1, out=tmp_path / "run")
    settings = tomllib.loads((tmp_path / "run" / "config.toml").read_text(encoding="utf-8"))
    assert "dataset" not in settings
    assert settings["data"] == changed.describe() != loaded.describe()
    with pytest.raises(ConfigError, match=r"data of this run \(digits\) were handed over in Python; name a function"):
        Experiment.of_run(tmp_path / "run").task()


def test_a_function_makes_its_task_with_or_without_the_seed():
    assert call_for_task(hospitals, 7).describe() == hospitals().describe()
    assert call_for_task(hospitals_of, 7).describe() == hospitals_of(7).describe() != hospitals_of(8).describe()
