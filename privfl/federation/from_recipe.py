"""The task that a recipe describes: from the catalog, from a file, or from a function of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privfl.data.own_file import Arrays
from privfl.errors import ConfigError
from privfl.federation.losses import loaded_loss
from privfl.federation.recipe import Recipe
from privfl.federation.task import Task, call_for_task, load
from privfl.references import imported


def task_of(recipe: Recipe, seed: int) -> Task:
    """The task that ``recipe`` gives in a run with ``seed``.

    Raises:
        ConfigError: a part cannot be imported, or the data came from Python and have no name.
        DataError: the data are not there, or not what they should be.
    """
    if recipe.task is not None:
        return call_for_task(imported(recipe.task, "task"), seed).made_by(replace(recipe, data=None))
    if recipe.arrays is not None:
        return _from_file(recipe, recipe.arrays, seed)
    if recipe.dataset is None:
        raise ConfigError(
            f"the data of this run ({dict(recipe.data or {}).get('name')}) were handed over in Python; name a "
            'function that returns its task, task = "module:function" (for privfl run: --set task=…)'
        )
    return load(
        recipe.dataset.name,
        **_parts(recipe),
        local_tests=recipe.local_tests,
        **{"seed": seed, **recipe.dataset.options},
    )


def _from_file(recipe: Recipe, arrays: Arrays, seed: int) -> Task:
    task = Task.from_dataset(arrays.dataset(seed), **_parts(recipe), seed=seed)
    if recipe.local_tests is not None:
        task = task.with_local_tests(recipe.local_tests, seed)
    return task.made_by(replace(recipe, data=None))


def _parts(recipe: Recipe) -> dict[str, Any]:
    """What is made of a dataset: its partition, noise on its labels, and the model and loss for it."""
    model, loss = recipe.model, recipe.loss
    own = model is not None and ":" in model.name
    return {
        "partition": recipe.partition,
        "model": None if model is None else model.load("model") if own else model.name,
        "model_options": None if model is None or own else dict(model.options),
        "label_noise": recipe.label_noise,
        "loss": None if loss is None else loaded_loss(loss),
        "metrics": tuple(metric.load("metrics") for metric in recipe.metrics),
    }
