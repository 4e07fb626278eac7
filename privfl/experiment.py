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

Everything that can be wrong is found before any work starts, in one sentence that names key, value and mend.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tomli_w
from pydantic import ConfigDict, TypeAdapter, ValidationError

from privfl.algorithms import ALGORITHMS, Algorithm
from privfl.data.catalog import info
from privfl.data.catalog import options as dataset_options
from privfl.data.label_noise import LABEL_NOISE, LabelNoise
from privfl.data.local_tests import LocalTests
from privfl.data.partitions import PARTITIONS, Partition
from privfl.errors import ConfigError, unknown
from privfl.federation.availability import AVAILABILITY, Always, Availability
from privfl.federation.cohorts import COHORTS, Cohort, Everyone
from privfl.federation.task import Task, load
from privfl.privacy.accounting.release import Observer
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.registry import update_mechanisms
from privfl.privacy.settings import Budget, Privacy
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.simulation.callbacks import Callback
from privfl.simulation.result import Run
from privfl.simulation.settings import Execution, Schedule
from privfl.simulation.simulation import simulate

S = TypeVar("S", Schedule, Execution)

_RUN_SETTINGS = (Schedule, Execution)
"""Whose fields stand at the top of a file, before its sections."""
_SECTIONS = (
    "dataset",
    "partition",
    "label_noise",
    "local_tests",
    "model",
    "algorithm",
    "training",
    "privacy",
    "cohort",
    "availability",
)


@dataclass(frozen=True)
class Experiment:
    """One run, from its data to its privacy; build it with :meth:`from_toml` or :meth:`from_dict`."""

    dataset: str
    dataset_options: dict[str, Any]
    partition: Partition | None
    label_noise: LabelNoise | None
    local_tests: LocalTests | None
    model: str | None
    model_options: dict[str, Any]
    algorithm: Algorithm
    training: LocalTraining
    privacy: Privacy
    cohort: Cohort
    availability: Availability
    schedule: Schedule
    execution: Execution
    record: bool | tuple[Observer, ...]

    @classmethod
    def from_toml(cls, path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
        """Read ``path`` and apply ``overrides`` such as ``training.epochs=2`` (values in TOML's notation, or text).

        Raises:
            ConfigError: the file is missing or not TOML, or a setting is unknown or impossible.
        """
        path = Path(path)
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of an experiment file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not a TOML file: {error}") from error
        for assignment in overrides:
            override(settings, assignment)
        return cls.from_dict(settings)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Experiment:
        """Validate ``settings``; what is left out takes its default.

        Raises:
            ConfigError: a setting is unknown or impossible.
        """
        plain = [item.name for kind in _RUN_SETTINGS for item in fields(kind)]
        for key in settings:
            if key not in plain and key not in _SECTIONS and key != "record":
                raise unknown("key", key, [*plain, "record", *_SECTIONS])
        dataset, options = _named_options(settings, "dataset", "digits")
        valid = dataset_options(info(dataset).name)
        for key in options:
            if key not in valid:
                raise unknown("key", f"dataset.{key}", [f"dataset.{name}" for name in ("name", *valid)])
        model, model_options = _named_options(settings, "model", None)
        training = _component(LocalTraining, _section(settings, "training"), "training")
        held = _component(LocalTests, _section(settings, "local_tests"), "local_tests")
        return cls(
            dataset=dataset,
            dataset_options=options,
            partition=_from_registry(PARTITIONS, settings, "partition", None),
            label_noise=_from_registry(LABEL_NOISE, settings, "label_noise", None),
            local_tests=held if "local_tests" in settings else None,
            model=model,
            model_options=model_options,
            algorithm=_from_registry(ALGORITHMS, settings, "algorithm", ALGORITHMS["fedavg"]()),
            training=training,
            privacy=_privacy(_section(settings, "privacy")),
            cohort=_from_registry(COHORTS, settings, "cohort", Everyone()),
            availability=_from_registry(AVAILABILITY, settings, "availability", Always()),
            schedule=_run_settings(Schedule, settings),
            execution=_run_settings(Execution, settings),
            record=_value(bool | tuple[Observer, ...], settings.get("record", False), "record"),
        )

    def to_dict(self) -> dict[str, Any]:
        """All settings as resolved, defaults included; :meth:`from_dict` gives the same experiment back."""
        sections: dict[str, Any] = {**vars(self.schedule), **vars(self.execution), "record": self.record}
        sections["dataset"] = {"name": self.dataset, **self.dataset_options}
        if self.model is not None:
            sections["model"] = {"name": self.model, **self.model_options}
        registries: dict[str, Mapping[str, type[Any]]] = {
            "partition": PARTITIONS,
            "label_noise": LABEL_NOISE,
            "algorithm": ALGORITHMS,
            "cohort": COHORTS,
            "availability": AVAILABILITY,
        }
        for name, registry in registries.items():
            if getattr(self, name) is not None:
                sections[name] = _as_section(getattr(self, name), registry)
        sections["training"] = _fields(self.training)
        if self.local_tests is not None:
            sections["local_tests"] = _fields(self.local_tests)
        privacy = _fields(self.privacy)
        if self.privacy.training is not None:
            privacy["training"] = _fields(self.privacy.training)
        if self.privacy.size is not None:
            privacy["size"] = _as_section(self.privacy.size, SIZE_MECHANISMS)
        if self.privacy.budget is not None:
            privacy["budget"] = _fields(self.privacy.budget)
        privacy["update"] = [_as_section(mechanism, update_mechanisms()) for mechanism in self.privacy.update]
        privacy["statistics"] = [_fields(total) for total in self.privacy.statistics]
        sections["privacy"] = privacy
        plain: dict[str, Any] = _plain_data(sections)
        return plain

    def to_toml(self) -> str:
        """The experiment as the text of a TOML file."""
        return tomli_w.dumps(self.to_dict())

    def task(self) -> Task:
        """The task: data, partition, model."""
        return load(
            self.dataset,
            partition=self.partition,
            model=self.model,
            model_options=self.model_options,
            label_noise=self.label_noise,
            local_tests=self.local_tests,
            seed=self.schedule.seed,
            **self.dataset_options,
        )

    def run(self, out: Path | str | None = None, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> Run:
        """Run it; see :func:`privfl.simulation.simulation.simulate`."""
        return self.run_on(self.task(), out, resume=resume, callbacks=callbacks, settings=self.to_dict())

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


def _run_settings(kind: type[S], settings: Mapping[str, Any]) -> S:
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], settings[name], name) for name in hints if name in settings})


def _privacy(section: Mapping[str, Any]) -> Privacy:
    known = [item.name for item in fields(Privacy)]
    for key in section:
        if key not in known:
            raise unknown("key", f"privacy.{key}", [f"privacy.{name}" for name in known])
    values = dict(section)
    for name, component in (("training", DPSGD), ("budget", Budget)):
        if name in values:
            values[name] = _component(component, _table(values[name], f"privacy.{name}"), f"privacy.{name}")
    if "size" in values:
        values["size"] = _from_registry(SIZE_MECHANISMS, values, "size", None, "privacy.")
    chain = values.get("update", [])
    if not isinstance(chain, list):
        raise ConfigError("privacy.update is not a list; write [[privacy.update]] once for each mechanism")
    values["update"] = tuple(
        _from_registry(update_mechanisms(), {"update": entry}, "update", None, "privacy.") for entry in chain
    )
    totals = values.get("statistics", [])
    if not isinstance(totals, list):
        raise ConfigError("privacy.statistics is not a list; write [[privacy.statistics]] once for each total")
    values["statistics"] = tuple(
        _component(NoisyTotal, _table(entry, "privacy.statistics"), "privacy.statistics") for entry in totals
    )
    for name, kind in (("target_delta", float), ("max_size_error", float), ("noise_key", int)):
        if name in values:
            values[name] = _value(kind, values[name], f"privacy.{name}")
    return Privacy(**values)


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _table(settings.get(name, {}), name)


def _table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is {value!r}; write a table, [{key}], with one setting a line")
    return value


def _named_options(settings: Mapping[str, Any], section: str, default: str | None) -> tuple[Any, dict[str, Any]]:
    values = dict(_section(settings, section))
    name = values.pop("name", default)
    if name is None and values:
        raise ConfigError(f"[{section}] has no name; say which one, see `privfl list {section}s`")
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"{section}.name is {name!r}; give a name in quotes, see `privfl list {section}s`")
    return name, values


def _from_registry(
    registry: Mapping[str, type[Any]], settings: Mapping[str, Any], section: str, default: Any, prefix: str = ""
) -> Any:
    if section not in settings:
        return default
    name, values = _named_options({section: _table(settings[section], prefix + section)}, section, None)
    if name is None:
        raise ConfigError(f"[{prefix}{section}] has no name; choose one of {', '.join(sorted(registry))}")
    if name not in registry:
        raise unknown(f"{prefix}{section}".replace("_", " "), name, registry)
    return _component(registry[name], values, f"{prefix}{section}")


def _component(kind: type[Any], values: Mapping[str, Any], key: str) -> Any:
    """``kind`` from its fields, each checked against its type; ``kind`` itself checks ranges."""
    known = [item.name for item in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown("key", f"{key}.{name}", [f"{key}.{item}" for item in known])
    missing = [
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING and f.name not in values
    ]
    if missing:
        raise ConfigError(f"{key} needs {missing[0]}; add a line '{missing[0]} = …' to [{key}]")
    hints = get_type_hints(kind)
    typed = {name: _value(hints[name], value, f"{key}.{name}") for name, value in values.items()}
    try:
        return kind(**typed)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _value(kind: Any, value: Any, key: str) -> Any:
    """``value`` as ``kind``: whole numbers count as float, lists as tuple, and nothing else is bent."""
    adapter = TypeAdapter(kind, config=None if is_dataclass(kind) else ConfigDict(strict=True))
    try:
        return adapter.validate_python(_tuples(value))
    except ValidationError as error:
        problem = error.errors()[0]
        wanted = str(problem["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
        raise ConfigError(f"{key} is {value!r}; it should be {wanted}") from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _fields(component: Any) -> dict[str, Any]:
    return {item.name: getattr(component, item.name) for item in fields(component)}


def _as_section(component: Any, registry: Mapping[str, type[Any]]) -> dict[str, Any]:
    name = next(name for name, kind in registry.items() if kind is type(component))
    return {"name": name, **_fields(component)}


def _plain_data(value: Any) -> Any:
    """What TOML can hold: no nulls, lists for tuples."""
    if isinstance(value, Mapping):
        return {key: _plain_data(item) for key, item in value.items() if item is not None and not is_dataclass(item)}
    if isinstance(value, list | tuple):
        return [_plain_data(item) for item in value]
    return value


def override(settings: dict[str, Any], assignment: str) -> None:
    """Apply one ``key.path=value`` to ``settings`` in place; the value is TOML, or text if it is not.

    Raises:
        ConfigError: the assignment has no ``=``, or its path leads into a value.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {assignment} is not of the form key=value, such as training.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    table: Any = settings
    for part in path:
        table = table.setdefault(part, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f"--set {key.strip()} leads into something that is not a table; check the key")
    table[last] = value
