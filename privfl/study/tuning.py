"""How a study tunes one setting: which values are tried, for how many rounds, and who goes on.

    [study.tuning]
    parameter = "training.learning_rate"  # any setting that decides neither data, schedule nor privacy
    values = [0.01, 0.1, 1.0]             # or low = 0.01 and high = 1.0, from which as many as trials are drawn
    trials = 8
    method = "successive-halving"         # half of the values after each rung; or "random": all to the end

The budget is declared: ``trials`` values with ``seeds`` seeds each, for every method at every level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privfl.errors import ConfigError
from privfl.study.axes import Point, merged, nested, text_of
from privfl.validation import Settings, check_count, check_number

FIRST_SEED = 1_000_000
"""The first of the seeds that trials have unless others are named: studies count theirs from 0."""
MOST_TRIALS = 1000
Value = int | float | str
BELONGS_TO = {
    "data": ("task", "arrays", "dataset", "partition", "label_noise", "local_tests", "data", "metrics"),
    "the schedule": ("rounds", "seed", "evaluate_every", "record"),
    "how it is computed": ("device", "engine", "precision", "workers", "checkpoint_seconds"),
    "what is spent": ("privacy", "cohort", "availability", "max_upload_norm"),
}
"""Settings that are not tuned, by what they decide."""
COUNTED = ("accuracy", "test_accuracy", "local_accuracy")
"""Metrics that are shares of the validation rows that the released model gets right: one row changes the count behind
them by one at most. A row that trains may change a client's own model, which noise need not cover, by any number."""


@dataclass(frozen=True)
class Rung:
    """One stage of tuning: so many values, trained for so many rounds."""

    values: int
    rounds: int


@dataclass(frozen=True)
class Tuning(Settings):
    """A setting of the runs that validation data choose, for each method at each level.

    Validation rows are taken out of the trials' training data, each by a hash of its own content, so that a row more
    or less changes nothing for others. No row that any run of the study is tested on is in a trial at all.

    Args:
        parameter: the setting, as a dotted key of the experiment.
        values: to be tried, each once; with fewer ``trials`` than values, as many as these are drawn.
        low, high: ends of the range to draw from, where there are no ``values``.
        scale: ``log`` draws uniformly between the logarithms of the ends, ``linear`` between the ends.
        trials: how many values are tried; by default all.
        method: ``random`` trains every value to the end; ``successive-halving`` trains all for a part of the rounds and
            goes on with the best 1/``factor``, for ``factor`` times the rounds.
        factor: by which rungs of successive halving grow and shrink, ≥ 2.
        seeds: of the trials, how many or which; none is a seed of the study. Values are judged by their mean.
        validation: share of the rows, in (0, 1).
        seed: decides which values are drawn, and which rows are for validation.
        metric: which one chooses; by default the study's.
        choice_epsilon: ε of every pick of a value for one validation row, ≥ 1e-4: picks are then made by noisy counts
            of rows that the released model gets right. ``None`` picks the best outright, and claims nothing.
    """

    parameter: str
    values: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None
    scale: Literal["log", "linear"] = "log"
    trials: int | None = None
    method: Literal["random", "successive-halving"] = "random"
    factor: int = 2
    seeds: int | tuple[int, ...] = 1
    validation: float = 0.2
    seed: int = 0
    metric: str | None = None
    choice_epsilon: float | None = None

    def __post_init__(self) -> None:
        first = self.parameter.partition(".")[0]
        for what, names in BELONGS_TO.items():
            if first in names:
                raise ConfigError(
                    f"study.tuning.parameter is '{self.parameter}', which decides {what}; tune a setting of training, "
                    "algorithm or model, or make it an axis"
                )
        self._check_values()
        check_count("study.tuning.factor", self.factor, 2)
        check_number("study.tuning.validation", self.validation, 0, 1, above=True, below=True)
        if self.choice_epsilon is not None:
            check_number("study.tuning.choice_epsilon", self.choice_epsilon, 1e-4)
        if isinstance(self.seeds, int):
            check_count("study.tuning.seeds", self.seeds)
        elif not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"study.tuning.seeds is {self.seeds}; give how many, or a list of different ones")
        if self.trials is not None:
            check_count("study.tuning.trials", self.trials, 2)
            if self.trials > MOST_TRIALS:
                raise ConfigError(f"study.tuning.trials is {self.trials}; give at most {MOST_TRIALS}")

    def _check_values(self) -> None:
        ends = (self.low, self.high)
        if self.values:
            if ends != (None, None):
                raise ConfigError("study.tuning has values and low or high; give a list of values, or both ends")
            if len(set(self.values)) < max(2, len(self.values)):
                raise ConfigError(f"study.tuning.values is {list(self.values)}; give two different ones or more")
            if self.trials is not None and self.trials > len(self.values):
                raise ConfigError(
                    f"study.tuning.trials is {self.trials} and there are {len(self.values)} values; leave trials out, "
                    "or give more values"
                )
            return
        if self.low is None or self.high is None or self.trials is None:
            raise ConfigError("study.tuning has nothing to try; give values, or low, high and trials")
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(f"study.tuning goes from {self.low:g} to {self.high:g}; give low < high, both finite")
        if self.scale == "log" and self.low <= 0:
            raise ConfigError(f'study.tuning.low is {self.low:g} on a log scale; give low > 0, or scale = "linear"')

    @property
    def trial_seeds(self) -> tuple[int, ...]:
        """The seeds of the trials."""
        return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def candidates(self) -> tuple[Value, ...]:
        """The values that are tried, the same for every method and level."""
        from privfl.randomness import numpy_stream

        draws = numpy_stream(self.seed, "tuning")
        if self.values:
            if self.trials in (None, len(self.values)):
                return self.values
            places = sorted(draws.permutation(len(self.values))[: self.trials].tolist())
            return tuple(self.values[place] for place in places)
        assert self.low is not None
        assert self.high is not None
        shares = draws.random(self.trials).tolist()
        if self.scale == "linear":
            return tuple(self.low + (self.high - self.low) * share for share in shares)
        return tuple(self.low * (self.high / self.low) ** share for share in shares)

    def rungs(self, rounds: int) -> list[Rung]:
        """The stages for runs of so many rounds; the last one trains its values to the end.

        >>> Tuning("training.learning_rate", (1.0, 2.0, 3.0, 4.0), method="successive-halving").rungs(30)
        [Rung(values=4, rounds=15), Rung(values=2, rounds=30)]
        """
        number = len(self.candidates)
        if self.method == "random":
            return [Rung(number, rounds)]
        sizes = [number]
        while sizes[-1] // self.factor >= 2:
            sizes.append(sizes[-1] // self.factor)
        lengths = [math.ceil(rounds / self.factor**back) for back in reversed(range(len(sizes)))]
        return [Rung(size, length) for size, length in zip(sizes, lengths, strict=True)]

    def picks(self, rounds: int) -> int:
        """How many values are picked in all: those that go on to the next rung, and the winner."""
        return sum(rung.values for rung in self.rungs(rounds)[1:]) + 1

    def with_value(self, settings: Mapping[str, Any], value: Value) -> dict[str, Any]:
        """``settings`` with ``value`` for the parameter."""
        return merged(settings, nested(self.parameter, value))

    def label(self, value: Value) -> str:
        """``learning_rate = 0.1``."""
        return f"{self.parameter.rpartition('.')[2]} = {text_of(value)}"

    def trial(self, point: Point, value: Value, rounds: int, seed: int) -> Point:
        """The trial of ``value`` for the runs of which ``point`` is one."""
        settings = {**self.with_value(point.settings, value), "rounds": rounds, "seed": seed}
        settings["evaluate_every"] = rounds  # a trial is judged by its end
        level = f"{point.level}, {self.label(value)}, {rounds} rounds"
        return Point(point.method, level, seed, settings)

    def check(self, seeds: Sequence[int], axes: Sequence[str], metric: str) -> None:
        """See that the study leaves the parameter, its trials' seeds and a fitting metric to tuning.

        Args:
            seeds: of the study.
            axes: the keys that its axes set.
            metric: by which it ranks.

        Raises:
            ConfigError: it does not.
        """
        if common := sorted(set(seeds) & set(self.trial_seeds)):
            raise ConfigError(f"study.tuning.seeds and study.seeds share {common[0]}; give tuning seeds of its own")
        if self.parameter in axes:
            raise ConfigError(f"study.tuning.parameter is '{self.parameter}', which an axis sets too; drop one of them")
        chosen = self.metric or metric
        if chosen.startswith(("epsilon", "attack", "audit", "bytes", "seconds")):
            raise ConfigError(f"study.tuning chooses by '{chosen}'; set its metric to one of validation rows: accuracy")
        if self.choice_epsilon is not None and chosen not in COUNTED:
            raise ConfigError(
                f"study.tuning.choice_epsilon is {self.choice_epsilon:g} and the metric '{chosen}'; noisy picks count "
                f"rows that the released model gets right, so choose by one of {', '.join(COUNTED)}, or leave "
                "choice_epsilon out"
            )

    def counted(self, metrics: Mapping[str, float], metric: str) -> float:
        """The share of validation rows in a trial's ``metrics`` that noisy picks count, NaN where it has none."""
        names = (metric,) if metric != "accuracy" else ("local_accuracy", "test_accuracy")
        return next((metrics[name] for name in names if name in metrics), math.nan)
