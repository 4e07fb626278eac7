"""A task that is loaded again from its recipe is the same task, wherever it came from."""

from dataclasses import replace

import numpy as np
import pytest

import privfl as pf
from privfl.data.own_file import Arrays
from privfl.errors import ConfigError, PrivflError
from privfl.federation.from_recipe import task_of
from privfl.federation.recipe import Recipe
from tests.own_parts import Small, focal


def same(task, recipe, seed):
    again = task_of(recipe, seed)
    assert again.describe() == task.describe()
    assert again.recipe == task.recipe


def test_a_dataset_of_the_catalog_with_all_that_is_made_of_it():
    task = pf.load(
        "digits",
        partition=pf.Dirichlet(clients=5, alpha=0.5),
        local_tests=pf.LocalTests(),
        model=Small,
        loss=focal,
        seed=3,
    )
    same(task, task.recipe, 3)
    assert task_of(task.recipe, 9).describe() == task.describe()  # the recipe holds its own seed


def test_a_file_deals_its_rows_by_the_seed_of_the_run(tmp_path):
    numbers = np.random.default_rng(0)
    file = tmp_path / "data.npz"
    np.savez(file, inputs=numbers.normal(size=(60, 4)).astype(np.float32), targets=np.arange(60) % 3)
    recipe = Recipe(arrays=Arrays(file=str(file)), partition=pf.IID(clients=3), local_tests=pf.LocalTests())
    task = task_of(recipe, 1)
    same(task, recipe, 1)
    assert task_of(recipe, 2).describe() != task.describe()
    file.unlink()
    with pytest.raises(PrivflError, match=r"data\.npz"):
        task_of(recipe, 1)


def test_data_from_python_have_no_recipe():
    task = pf.Task.from_arrays(np.eye(9, 4, dtype=np.float32), np.arange(9) % 2, partition=pf.IID(clients=3))
    assert task.recipe is None
    with pytest.raises(ConfigError, match=r"the data of this run \(mine\) were handed over in Python; name a function"):
        task_of(replace(Recipe(), data={"name": "mine"}), 0)
