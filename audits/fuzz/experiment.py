"""What an experiment is: plain values only, so that a small file holds it and one command runs it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Unit

Named = dict[str, Any]
"""A part by its ``name`` (of a registry, or ``module:attribute``) with its settings."""


@dataclass(frozen=True)
class Data:
    """The data of the two worlds.

    Args:
        rows: how many rows each client holds in the world that holds more.
        client: who is protected: its last row, or all that it sends, is what the worlds differ in.
        common: kind of the rows that both worlds hold; see :mod:`audits.fuzz.worlds`.
        extra: kind of the row that one of them holds.
        seed: of all values.
    """

    rows: tuple[int, ...] = (3, 3, 3)
    client: int = 0
    common: str = "ordinary"
    extra: str = "ordinary"
    seed: int = 0


@dataclass(frozen=True)
class Resume:
    """An interruption after ``after`` rounds, with or without a checkpoint, and what is ``changed`` before going on.

    ``changed`` is empty, ``"row"`` (the last row of the client), ``"noise"`` (twice the noise multiplier of DP-SGD),
    ``"lost key"`` or ``"forgotten key"`` (the run goes on without the fixed key that it began with).
    """

    after: int = 1
    checkpoint: bool = True
    changed: str = ""


@dataclass(frozen=True)
class Experiment:
    """One run that makes claims, and the data to hold them to.

    Args:
        unit: the row of the statement that is tried first.
        model, loss: names out of :mod:`audits.fuzz.own_parts`, or ``module:attribute``.
        algorithm, training, dpsgd, update, statistics, size, cohort, availability: parts with their settings.
        engine: ``loop`` or ``vectorised``.
        rounds, seed, noise_key: of the run.
        resume: ``None`` runs through.
    """

    unit: Unit = "sample"
    model: str = "linear"
    loss: str = "cross-entropy"
    data: Data = field(default_factory=Data)
    algorithm: Named = field(default_factory=lambda: {"name": "fedavg", "weighting": "uniform"})
    training: Named = field(default_factory=dict)
    dpsgd: Named | None = None
    update: tuple[Named, ...] = ()
    statistics: tuple[Named, ...] = ()
    size: Named | None = None
    cohort: Named = field(default_factory=lambda: {"name": "everyone"})
    availability: Named = field(default_factory=lambda: {"name": "always"})
    engine: str = "loop"
    rounds: int = 1
    seed: int = 0
    noise_key: int = 1
    resume: Resume | None = None

    def to_json(self) -> str:
        """The experiment as JSON text."""
        return json.dumps(asdict(self), indent=1)

    def but(self, **values: Any) -> Experiment:
        """This experiment with other ``values`` for some of its fields."""
        return replace(self, **values)

    @classmethod
    def from_json(cls, text: str) -> Experiment:
        """The experiment that :meth:`to_json` wrote.

        Raises:
            ConfigError: it is none.
        """
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"this is no experiment of the claim fuzzer ({error}); give a file that it wrote"
            ) from error

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Experiment:
        """The experiment of plain values."""
        values = {one.name: found[one.name] for one in fields(cls) if one.name in found}
        if "data" in values:
            values["data"] = Data(**{**values["data"], "rows": tuple(values["data"]["rows"])})
        if values.get("resume") is not None:
            values["resume"] = Resume(**values["resume"])
        for name in ("update", "statistics"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)
