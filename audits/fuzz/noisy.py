"""The check with noise: what a distinguisher certifies of two worlds, trained many times with fresh noise.

The score of a run is how far its messages lie along the difference of the worlds. Half of the runs fix the direction
and the threshold, and only the other half counts, so the bound holds whatever was found on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from audits.bounds.scores import epsilon_from_scores
from audits.fuzz.exact import cells
from audits.fuzz.experiment import Experiment
from audits.fuzz.tape import Array, Tape
from audits.fuzz.worlds import World, train
from privfl.privacy.accounting.release import Observer, Unit

SCREENING = 24
"""Runs of each world that are looked at first."""
WORLDS: tuple[World, World] = ("with", "without")


@dataclass(frozen=True)
class Measured:
    """What was certified of one cell against what it claims."""

    cell: str
    claimed: float
    certified: float

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, with the confidence of the campaign."""
        return self.certified > self.claimed


def measure(experiment: Experiment, *, trials: int, false_alarm: float) -> tuple[Measured, ...]:
    """Certify a lower bound on ε for every finite cell, with ``trials`` runs of each world.

    A few runs of each world are looked at first, with a confidence that one true claim in fifty fails; only what fails
    there is measured, with runs of its own. The few runs see gross breaks alone: worlds that are told apart in every
    one of them raise a doubt about claims below ε = 1.55, and about no others.

    A statement is about the cohorts that were drawn: ε = 0 where nobody was asked. Runs that are measured draw their
    own, so what they are held against is the largest claim that any of them makes.

    Args:
        experiment: what is trained.
        trials: runs of each world that count.
        false_alarm: the probability, for all cells together, that a true claim is refuted.
    """
    first = train(experiment, "with", Tape(), price=True)
    if first.run is None or not (finite := cells(first)):
        return ()
    claims = {cell: first.run.statement.cell(*cell).epsilon for cell in finite}
    delta = first.run.statement.delta
    certified = dict.fromkeys(finite, 0.0)
    for unit in dict.fromkeys(unit for unit, _ in finite):
        one, mine = replace(experiment, unit=unit), [cell for cell in finite if cell[0] == unit]
        for stage, (runs, confidence) in enumerate(((SCREENING, 0.98), (trials, 1 - false_alarm / len(finite)))):
            drawn = (one.cohort["name"], one.availability["name"]) != ("everyone", "always")
            views = _views(one, mine, runs, stage, claims if stage == 1 and drawn else None)
            bounds = {cell: _certify(views[cell[1]], runs, delta, confidence) for cell in mine}
            suspects = [cell for cell in mine if bounds[cell] > claims[cell]]
            if stage == 0 and not suspects:
                break
            if stage == 1:
                certified.update(bounds)
    return tuple(Measured("/".join(cell), claims[cell], certified[cell]) for cell in finite)


def _certify(views: Mapping[World, Sequence[Array | None]], trials: int, delta: float, confidence: float) -> float:
    """A lower bound on ε from ``views`` [2·trials] of each world; 0 if a run is refused."""
    scores = _scores(views, trials)
    if scores is None:
        return 0.0
    inside, outside, threshold = scores
    return epsilon_from_scores(inside, outside, delta=delta, confidence=confidence, threshold=threshold).epsilon


def _scores(views: Mapping[World, Sequence[Array | None]], trials: int) -> tuple[Array, Array, float] | None:
    """Scores of ``trials`` runs of both worlds, and a threshold; ``None`` if a run is refused.

    As many other runs give the direction in which these are projected (the difference of their means, in deviations)
    and the threshold, halfway between the means.
    """
    shapes = {None if one is None else one.shape for each in views.values() for one in each}
    if None in shapes:
        return None
    if len(shapes) > 1:  # who sees what is a message already
        lengths = [_lengths(views[world]) for world in WORLDS]
        middle = float(lengths[0][:trials].mean() + lengths[1][:trials].mean()) / 2
        sign = 1.0 if lengths[0][:trials].mean() >= middle else -1.0
        return sign * lengths[0][trials:], sign * lengths[1][trials:], sign * middle
    inside, outside = (np.stack([one for one in views[world] if one is not None]) for world in WORLDS)
    with np.errstate(all="ignore"):
        spread = inside[:trials].std(0) + outside[:trials].std(0) + 1e-30
        direction = np.nan_to_num((inside[:trials].mean(0) - outside[:trials].mean(0)) / spread**2)
        direction /= np.linalg.norm(direction) or 1.0
        scores = [np.nan_to_num(part @ direction) for part in (inside, outside)]
    middle = float(scores[0][:trials].mean() + scores[1][:trials].mean()) / 2
    return scores[0][trials:], scores[1][trials:], middle


def _lengths(views: Sequence[Array | None]) -> Array:
    return np.array([0.0 if one is None else float(one.size) for one in views])


def _views(
    experiment: Experiment,
    measured: Sequence[tuple[Unit, Observer]],
    trials: int,
    stage: int,
    claims: dict[tuple[Unit, Observer], float] | None,
) -> dict[Observer, dict[World, list[Array | None]]]:
    """All that observers see of 2·``trials`` runs of each world, with noise that no other stage has.

    ``claims`` are raised to what the runs themselves claim of the cells that are ``measured``.
    """
    observers = [observer for _, observer in measured]
    found: dict[Observer, dict[World, list[Array | None]]] = {one: {world: [] for world in WORLDS} for one in observers}
    for world in WORLDS:
        for key in range(2 * trials):
            fresh = replace(
                experiment, noise_key=(((experiment.noise_key << 20) + key) << 2) + 2 * stage + (world == "with")
            )
            tape = Tape()
            run = train(fresh, world, tape, price=claims is not None and world == "with").run
            if claims is not None and world == "with" and run is not None:
                for cell in measured:
                    claims[cell] = max(claims[cell], run.statement.cell(*cell).epsilon)
            for observer in observers:
                found[observer][world].append(None if run is None else _view(tape, observer))
    return found


def _view(tape: Tape, observer: Observer) -> Array:
    """All that ``observer`` saw of one run."""
    seen = sorted((seen for seen in tape.seen if observer in seen.observers), key=lambda seen: seen.where)
    return np.concatenate([np.zeros(0), *(np.nan_to_num(value.reshape(-1)) for one in seen for value in one.values)])


def quiet(experiment: Experiment) -> Experiment:
    """``experiment`` with so much noise that few runs can refute its claim if it is false."""

    def louder(link: dict[str, object]) -> dict[str, object]:
        if "noise_multiplier" not in link:
            return link
        return {**link, "noise_multiplier": 8.0}

    experiment = experiment.but(
        update=tuple(
            {**link, "count_noise": 40.0} if link["name"] == "adaptive-clip" else louder(link)
            for link in experiment.update
        ),
        statistics=tuple(louder(one) for one in experiment.statistics),
        resume=None,
        rounds=min(experiment.rounds, 2),
    )
    if experiment.dpsgd is not None:
        experiment = experiment.but(dpsgd=louder(experiment.dpsgd))
    return experiment
