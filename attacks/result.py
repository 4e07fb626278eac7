"""What an attack achieved, always beside what can be had without the run: its nulls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attacks.metrics.measure import Measure
from privfl.errors import ConfigError
from privfl.plain_text import as_written, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOWER_IS_BETTER = frozenset({"mse", "fmse", "percept_rand", "l1_error", "relative_error", "total_variation"})
"""Measures by which an attack is the better the smaller they are."""


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The measures of an attack and of its nulls, and what it cost.

    Args:
        attack: name of the attack.
        primary: the measure that decides.
        metrics: measures of the attack by name.
        nulls: by name of the null, measures of what needs no message of the victims; at least one null, and every null
            has the primary measure.
        seconds: wall time of the whole attack.
        units: how many scores, images, … it produced, each a ``unit``.
        settings: of the attack, as plain data.

    Raises:
        ConfigError: there is no null, or the primary measure is missing: such a result would mean nothing.
    """

    attack: str
    primary: str
    metrics: Mapping[str, Measure]
    nulls: Mapping[str, Mapping[str, Measure]]
    seconds: float
    units: int
    unit: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.nulls:
            raise ConfigError(f"the result of '{self.attack}' has no null; measure what a guess without the run gives")
        for name, measures in {"the attack": self.metrics, **self.nulls}.items():
            if self.primary not in measures:
                raise ConfigError(f"'{self.attack}' is decided by {self.primary}, which '{name}' lacks; measure it too")
        if self.units < 1:
            raise ConfigError(f"'{self.attack}' produced {self.units} times a {self.unit}; attack at least one")

    @property
    def advantage(self) -> dict[str, Measure]:
        """By measure, how much better the attack is than its best null; negative if a null is better.

        The interval goes from the attack's worst end against the null's best to the reverse: conservative.
        """
        found = {}
        for name, own in self.metrics.items():
            sign = -1 if name in LOWER_IS_BETTER else 1
            rivals = [measures[name] for measures in self.nulls.values() if name in measures]
            if rivals:
                best = max(rivals, key=lambda rival: sign * rival.value)
                ends = (own.low - best.high, own.high - best.low)
                low, high = ends if sign > 0 else (-ends[1], -ends[0])
                found[name] = Measure(sign * (own.value - best.value), low, high)
        return found

    @property
    def seconds_per_unit(self) -> float:
        """Cost of one score or image."""
        return self.seconds / self.units

    def __str__(self) -> str:
        names = list(self.metrics)
        rows = [["", *names], [self.attack, *(str(self.metrics[name]) for name in names)]]
        for null, measures in self.nulls.items():
            rows.append([f"null: {null}", *(str(measures[name]) if name in measures else "" for name in names)])
        better = self.advantage
        rows.append(["advantage", *(str(better[name]) if name in better else "" for name in names)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(names) + 1)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return printable("\n".join([*lines, f"{self.seconds_per_unit:.2g} s per {self.unit}"]))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return {
            "attack": self.attack,
            "settings": dict(self.settings),
            "primary": self.primary,
            "metrics": _plain(self.metrics),
            "nulls": {name: _plain(measures) for name, measures in self.nulls.items()},
            "advantage": _plain(self.advantage),
            "seconds": self.seconds,
            "units": self.units,
            "unit": self.unit,
            "seconds_per_unit": self.seconds_per_unit,
        }

    def figure(self) -> Figure:
        """The primary measure of the attack and of its nulls, with intervals."""
        from matplotlib.figure import Figure

        rows = {self.attack: self.metrics, **self.nulls}
        figure = Figure(figsize=(5, 0.6 + 0.4 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for place, measures in enumerate(rows.values()):
            measure = measures[self.primary]
            axes.barh(place, measure.value, color="#1f77b4" if place == 0 else "#bbbbbb")
            if measure.low == measure.low:
                axes.plot([measure.low, measure.high], [place, place], color="black", linewidth=1)
        axes.set_yticks(range(len(rows)), [name if place == 0 else f"null: {name}" for place, name in enumerate(rows)])
        axes.invert_yaxis()
        axes.set_xlabel(self.primary.replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
        as_written(figure)
        return figure


def _plain(measures: Mapping[str, Measure]) -> dict[str, Any]:
    return {name: measure.to_json() for name, measure in measures.items()}
