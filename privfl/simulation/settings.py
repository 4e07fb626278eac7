"""The settings of a run: its parts, a schedule, which changes the numbers, and an execution, which changes time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import tomli_w

from privfl.algorithms import ALGORITHMS, Algorithm
from privfl.algorithms.base import Weighting
from privfl.engine.choice import EngineName
from privfl.errors import ConfigError
from privfl.federation.availability import AVAILABILITY, Always, Availability
from privfl.federation.cohorts import COHORTS, Cohort, Everyone
from privfl.federation.recipe import REGISTRIES, Recipe
from privfl.federation.task import Task
from privfl.privacy.accounting.release import Observer
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.precision import Precision
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.privacy.mechanisms.registry import update_mechanisms
from privfl.privacy.settings import Privacy
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.schema import BESIDE, Named, Registries, plain
from privfl.validation import Settings, check_count, check_number

MOST_WORKERS = 1024


@dataclass(frozen=True)
class Schedule(Settings):
    """How long a run trains, when it is tested and which uploads it takes: part of the experiment.

    Args:
        rounds: number of rounds, ≥ 1.
        seed: root of all experiment randomness; never of privacy noise.
        evaluate_every: rounds between evaluations on the held-out data, ≥ 1; the last round is always evaluated.
        max_upload_norm: an upload with a field that is longer (L2 norm, > 0) is dropped, counted and reported, as one
            that is not finite; ``inf`` takes every finite one. The default lies far above what training sends on inputs
            of ordinary size. Where noise is sized for an upload its own bound counts, and this one does not.
    """

    rounds: int = 50
    seed: int = 0
    evaluate_every: int = 1
    max_upload_norm: float = 1e12

    def __post_init__(self) -> None:
        for name in ("rounds", "evaluate_every"):
            check_count(name, getattr(self, name))
        if not self.max_upload_norm > 0:
            raise ConfigError(f"max_upload_norm is {self.max_upload_norm!r}: give a positive number, or inf.")


@dataclass(frozen=True)
class Execution(Settings):
    """How a run is computed: changes its time and the rounding of its sums, never a claim.

    Args:
        device: ``auto`` (CUDA if there is one), ``cpu``, ``cuda``, …
        engine: ``loop`` trains clients one by one on every core, ``vectorised`` stacks them into one kernel, ``auto``
            measures which is faster; they agree up to the rounding of sums. ``ray`` divides the cohort among the
            workers of a Ray cluster (``pip install 'privfl[ray]'``) and gives the bits of ``loop``.
        inside: with ``ray``, how a worker trains its share: ``loop``, or ``vectorised``, which is faster for small
            models. Under DP-SGD it has the bits of the vectorised engine with as many workers on one machine; without,
            that engine may stack small models for one worker, and sums are rounded otherwise.
        precision: of gradients: ``float32``; ``tf32`` (CUDA) or ``bfloat16`` for speed.
        deterministic: the same bits in every run on one CUDA device, at the price of slower kernels; what has none that
            repeats its bits stops the run. Noise then has the same bits on every device.
        workers: clients side by side; ``None`` takes all cores. The loop gives the same bits for any number of them,
            the vectorised engine for the same number and chunk (``engine.json`` in the run directory says which). With
            ``ray``: processes of the cluster, one CPU each; ``None`` takes all CPUs that are free.
        address: ``host:port`` of the head of a Ray cluster; ``None`` starts one on this machine for the run.
        gpus: with ``ray``, the share of a CUDA GPU that each worker gets and trains on, in (0, 1]; ``None``: workers
            train on CPUs.
        checkpoint_seconds: seconds between checkpoints, ≥ 0.
    """

    device: str = "auto"
    engine: EngineName = "auto"
    inside: Literal["loop", "vectorised"] = "loop"
    precision: Precision = "float32"
    deterministic: bool = False
    workers: int | None = None
    address: str | None = None
    gpus: float | None = None
    checkpoint_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("workers", self.workers)
            if self.workers > MOST_WORKERS:
                raise ConfigError(
                    f"workers is {self.workers}: give at most {MOST_WORKERS}; each holds a model of its own."
                )
        for name, value in (("address", self.address), ("gpus", self.gpus)):
            if value is not None and self.engine != "ray":
                raise ConfigError(f"{name} is {value!r}, but engine is '{self.engine}'; set engine = 'ray'")
        if self.inside != "loop" and self.engine != "ray":
            raise ConfigError(f"inside is '{self.inside}', but engine is '{self.engine}'; set engine = '{self.inside}'")
        if self.gpus is not None and not 0 < self.gpus <= 1:
            raise ConfigError(f"gpus is {self.gpus!r}; give the share of a GPU that each worker gets, in (0, 1]")
        if self.deterministic and self.engine == "ray":
            raise ConfigError(
                "deterministic is true, but engine is 'ray', whose workers are other processes; choose 'loop' or "
                "'vectorised'"
            )
        check_number("checkpoint_seconds", self.checkpoint_seconds, 0)


def registries() -> Registries:
    """Everything that a run's file can name, by its base class."""
    return {
        **REGISTRIES,
        Algorithm: ALGORITHMS,
        Availability: AVAILABILITY,
        Cohort: COHORTS,
        Mechanism: update_mechanisms(),
        SizeMechanism: SIZE_MECHANISMS,
    }


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run, as its ``config.toml`` holds it: the fields are the keys of the file.

    Args:
        schedule, execution, recipe: their own fields stand at the top of the file.
        record: whose view of the run is kept as its transcript, for attacks: ``["server"]``, ``["public"]``, both
            (true) or nobody's.
        weighting: how clients count in a mean: ``"size"``, by the number of their examples, or ``"uniform"``, alike.
            Every algorithm that averages follows; those that are about the weights, or have one way only, keep theirs.
            Left out, they count by size, or as the algorithm's own ``weighting`` says. It ends up there.
        algorithm: how clients train, what they send and what the server makes of it; FedAvg by default.
        training: how clients train in a round.
        privacy: the mechanisms of the run; without any, every cell of the statement is ∞.
        cohort: which of the clients that can be reached take part in a round; all by default.
        availability: which clients can be reached in a round; all by default.
    """

    schedule: Schedule = field(default_factory=Schedule, metadata=BESIDE)
    execution: Execution = field(default_factory=Execution, metadata=BESIDE)
    recipe: Recipe = field(default_factory=lambda: Recipe(dataset=Named("digits")), metadata=BESIDE)
    record: bool | tuple[Observer, ...] = False
    weighting: Weighting | None = None
    algorithm: Algorithm = field(default_factory=ALGORITHMS["fedavg"])
    training: LocalTraining = field(default_factory=LocalTraining)
    privacy: Privacy = field(default_factory=Privacy)
    cohort: Cohort = field(default_factory=Everyone)
    availability: Availability = field(default_factory=Always)

    def __post_init__(self) -> None:
        if not isinstance(self.record, bool) and len(self.record) != 1:
            object.__setattr__(self, "record", bool(self.record))
        object.__setattr__(self, "algorithm", self.algorithm.following(self.weighting))
        object.__setattr__(self, "weighting", None)

    def to_dict(self) -> dict[str, Any]:
        """All settings as resolved, defaults included, as TOML can hold them."""
        settings: dict[str, Any] = _without_none(plain(self, registries()))
        return settings

    def to_toml(self) -> str:
        """The settings as the text of a TOML file."""
        return tomli_w.dumps(self.to_dict())

    def for_task(self, task: Task) -> RunConfig:
        """These settings for a run on ``task``; where it is not known how to load that, its data are hashed."""
        recipe = task.recipe or Recipe()
        if recipe.dataset is None:
            return replace(self, recipe=replace(recipe, data=task.describe()))
        options = dict(recipe.dataset.options)
        if options.get("seed") == self.schedule.seed:
            del options["seed"]
        return replace(self, recipe=replace(recipe, dataset=Named(recipe.dataset.name, options)))


def _without_none(value: Any) -> Any:
    """TOML has no null: absent settings are left out."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
