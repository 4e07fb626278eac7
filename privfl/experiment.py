"""The experiment: one validated schema for a TOML file, a Python object and command-line overrides.

The components' own dataclasses *are* the schema: a section names one of them and gives its fields, as in

    rounds = 50
    [dataset]
    name = "digits"
    [partition]
    name = "dirichlet"
    clients = 20
    alpha = 0.5
    [algorithm]
    name = "fedsampling"
    samples_per_round = 400
    [privacy.training]
    target_epsilon = 3.0
    noise_at = "server"
    [privacy.size]
    name = "laplace"
    epsilon = 3.0
    bound = 200

What is not in privfl is named ``module:Name``, for instance ``[algorithm] name = "my_algorithms:Halved"``, and imported
from where Python finds modules or from the working directory. Data of one's own come from a file, ``arrays =
"data.npz"`` (or ``[arrays]``, see :mod:`privfl.data.own_file`), or a function, ``task = "my_data:hospitals"``, in place
of ``[dataset]``. So a file can make Python run code: read a stranger's before you use it.

Everything that can be wrong is found before any work starts, in one sentence that names key, value and mend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from privfl.errors import ConfigError
from privfl.federation.from_recipe import task_of
from privfl.federation.task import Task
from privfl.schema import build, override, read_toml
from privfl.simulation.callbacks import Callback
from privfl.simulation.result import Run
from privfl.simulation.run_directory import EXTENSION, RunDirectory
from privfl.simulation.settings import RunConfig, registries
from privfl.simulation.simulation import simulate


@dataclass(frozen=True)
class Experiment(RunConfig):
    """One run, from its data to its privacy; build it with :meth:`from_toml` or :meth:`from_dict`."""

    @classmethod
    def from_toml(cls, path: Path | str, overrides: Sequence[str] = ()) -> Self:
        """Read ``path`` and apply ``overrides`` such as ``training.epochs=2`` (values in TOML's notation, or text).

        Raises:
            ConfigError: the file is missing or not TOML, or a setting is unknown or impossible.
        """
        settings = read_toml(Path(path), "an experiment file")
        for assignment in overrides:
            override(settings, assignment)
        return cls.from_dict(settings)

    @classmethod
    def of_run(cls, folder: Path | str, overrides: Sequence[str] = ()) -> Self:
        """The experiment of the run in the directory ``folder``, whoever started it.

        Raises:
            ConfigError: there is none, or it cannot be read back here; the sentence says what it needs.
            DataError: its settings were changed since it began.
        """
        path = RunDirectory(Path(folder)).path / "config.toml"
        if not path.exists():
            raise ConfigError(
                f"{folder} holds no run; give the --out folder of `privfl run` (for attacks of one with record = true)"
            )
        RunDirectory(Path(folder)).config_file()
        try:
            extension = RunDirectory(Path(folder)).read_json(EXTENSION)
            longer = [] if extension is None else [f"rounds={extension['rounds']}"]
            return cls.from_toml(path, [*longer, *overrides])
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Validate ``settings``; what is left out takes its default.

        Raises:
            ConfigError: a setting is unknown or impossible.
        """
        if isinstance(settings.get("arrays"), str):
            settings = {**settings, "arrays": {"file": settings["arrays"]}}
        if not {"task", "data", "arrays"} & settings.keys():
            settings = {**settings, "dataset": settings.get("dataset", {"name": "digits"})}
        return build(cls, settings, "", registries())

    def task(self) -> Task:
        """The task: data, partition, model, loss.

        Raises:
            ConfigError: a part cannot be imported, or data from Python are not named, or are others.
        """
        task = task_of(self.recipe, self.schedule.seed)
        if self.recipe.dataset is None:
            self._check_data(task)
        return task

    def _check_data(self, task: Task) -> None:
        recorded = self.recipe.data
        found = {} if recorded is None else task.describe()
        for name, value in (recorded or {}).items():
            if _listed(found.get(name)) != _listed(value):
                if self.recipe.arrays is not None:
                    raise ConfigError(
                        f"{self.recipe.arrays.file} is not what this run began with: {name} is {value!r} there and "
                        f"{found.get(name)!r} here; restore it, or choose another --out"
                    )
                raise ConfigError(
                    f"task '{self.recipe.task}' is not the task of this run: {name} is {value!r} there and "
                    f"{found.get(name)!r} here; hand over the same, or remove [data] from the file"
                )

    def run(self, out: Path | str | None = None, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> Run:
        """Run it; see :func:`privfl.simulation.simulation.simulate`."""
        return self.run_on(self.task(), out, resume=resume, callbacks=callbacks)

    def run_on(self, task: Task, out: Path | str | None = None, **options: Any) -> Run:
        """Run it on another task, such as one with planted rows; ``options`` go to ``simulate`` as they are."""
        return simulate(
            task,
            self.algorithm,
            **vars(self.schedule),
            training=self.training,
            privacy=self.privacy,
            cohort=self.cohort,
            availability=self.availability,
            execution=self.execution,
            out=out,
            **{"record": self.record, **options},
        )


def _listed(value: Any) -> Any:
    """``value`` with lists for tuples, as a file has them."""
    if isinstance(value, Mapping):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
