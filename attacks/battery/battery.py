"""Everything that applies to a run, in the order of what the attacker can do: it watches, it is active, it poisons.

    print(attacks.best("runs/fedavg"))

What watches reads the recorded transcript. What does more needs a run that the attacker had a hand in: the run is
repeated with the same settings and noise, in memory, as :meth:`attacks.attack.Attack.staged` has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from attacks.attack import Attack, Power
from attacks.battery.deadline import OutOfTime, time_limit
from attacks.battery.lineup import lineup
from attacks.battery.stage import Stage
from attacks.images.pixels import Pixels
from attacks.judge import Judge
from attacks.metrics.measure import Measure
from attacks.result import AttackResult
from privfl.errors import ConfigError, PrivflError
from privfl.simulation.result import Run
from privfl.simulation.transcript import Transcript
from privfl.study.tables import plain
from privfl.validation import check_number, checked

POWERS: tuple[Power, ...] = get_args(Power)
HEAD = ("attacker", "best attack", "measure", "reached", "advantage", "ceiling", "needed")


@dataclass(frozen=True)
class Attempt:
    """One attack on a run: its ``result``, or the ``reason`` why there is none.

    ``ceiling`` is the largest advantage that the statement's (ε, δ) for one example before this observer allows, where
    the measure has one.
    """

    label: str
    kind: type[Attack]
    result: AttackResult | None
    reason: str
    ceiling: float | None
    seconds: float

    @property
    def advantage(self) -> Measure | None:
        """Of the primary measure; ``None`` without a result."""
        return None if self.result is None else self.result.advantage[self.result.primary]

    @property
    def needed(self) -> str:
        """What the attacker must have."""
        needs, view = self.kind.needs, f"the {self.kind.observer}'s view"
        has = [word for word, wanted in (("public records", needs.public), ("candidates", needs.candidates)) if wanted]
        return ", ".join([view if self.kind.power == "passive" else f"{view} of a run it had a hand in", *has])

    def row(self) -> tuple[str, ...]:
        """Its cells under :data:`HEAD`; an advantage is told from none if its interval lies above 0."""
        own = self.advantage
        if self.result is None or own is None:
            raise ConfigError(f"{self.label} has no result: {self.reason}")
        measure, ceiling = self.result.primary, "–" if self.ceiling is None else f"{self.ceiling:.3g}"
        told = str(own) if own.low > 0 else f"{own}: not told from none"
        reached = str(self.result.metrics[measure])
        return self.kind.power, self.label, measure.replace("_", " "), reached, told, ceiling, self.needed

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return {
            "label": self.label,
            "attacker": self.kind.power,
            "needed": self.needed,
            "ceiling": self.ceiling,
            "seconds": self.seconds,
            "reason": self.reason or None,
            "result": None if self.result is None else self.result.to_json(),
        }


@dataclass(frozen=True)
class Battery:
    """All attempts on a run, in the order in which they were made."""

    attempts: tuple[Attempt, ...]

    @property
    def best(self) -> list[Attempt]:
        """For each thing an attacker can do and each measure the attempt with the largest advantage."""
        found: dict[tuple[int, str], tuple[float, Attempt]] = {}
        for one in self.attempts:
            own = one.advantage
            if one.result is None or own is None:
                continue
            key = POWERS.index(one.kind.power), one.result.primary
            if key not in found or own.value > found[key][0]:
                found[key] = own.value, one
        return [found[key][1] for key in sorted(found)]

    def __str__(self) -> str:
        table = plain(HEAD, [one.row() for one in self.best])
        refused = [f"{one.label}: {one.reason}" for one in self.attempts if one.result is None]
        return "\n".join([table, *(["", "Without a result:", *refused] if refused else [])])

    def to_json(self) -> dict[str, Any]:
        """All attempts, and the labels of the best ones."""
        return {"attempts": [one.to_json() for one in self.attempts], "best": [one.label for one in self.best]}


@checked
def best(
    run: Run | Path | str,
    *,
    seed: int = 0,
    public_share: float = 0.5,
    candidates: int = 2000,
    task: str | None = None,
    budget: float = 60.0,
    pixels: Pixels | None = None,
) -> Battery:
    """Attack a recorded ``run`` with everything that applies.

    Args:
        run: its directory, or what ``simulate`` returned for one.
        seed, public_share, candidates: see :class:`attacks.judge.Judge`.
        task: ``module:function`` that returns the task, for a run on data that were handed over in Python.
        budget: seconds after which an attack is given up.
        pixels: how inputs come from images, for images of one's own.

    Raises:
        ConfigError: the run has no directory, or was not recorded.
    """
    folder = run.path if isinstance(run, Run) else Path(run)
    if folder is None:
        raise ConfigError("the run was kept in memory, so its data cannot be had again; run it with out=…")
    judge = Judge.of(folder, seed, public_share, candidates, task, pixels)
    return Battery(tuple(attempts(folder, judge, budget=budget, task=task)))


def attempts(folder: Path, judge: Judge, *, budget: float = 60.0, task: str | None = None) -> Iterator[Attempt]:
    """The attempts on the run in ``folder``, one by one as they end; see :func:`best`.

    Raises:
        ConfigError: the budget is not positive, or the run was not recorded.
    """
    check_number("the budget in seconds", budget, 0, above=True)
    stage = Stage.of(folder, judge.task, task)
    for entry in lineup(recorded(folder), judge):
        began = time.perf_counter()
        result, reason = None, ""
        try:
            with time_limit(budget):
                attack = entry.build()
                auxiliary = judge.auxiliary(attack, attack.needs)
                result = attack.run(stage.seen(attack, auxiliary), auxiliary)
        except PrivflError as error:
            reason = str(error)
        except OutOfTime:
            result, reason = None, f"not done within {budget:g} s; give a larger budget"
        ceiling = None if result is None else stage.ceiling(entry.kind, result)
        yield Attempt(entry.label, entry.kind, result, reason, ceiling, time.perf_counter() - began)


def recorded(folder: Path) -> Transcript:
    """What was recorded of a run: the server's view if there is one, else the public's."""
    try:
        return Transcript.load(folder, "server")
    except ConfigError:
        return Transcript.load(folder, "public")
