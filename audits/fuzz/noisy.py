"""The check with noise: what a distinguisher certifies of two worlds, trained many times with fresh noise.

The score of a run is how far its messages lie along the difference of the worlds. Half of the runs fix the direction
and the threshold, and only the other half counts, so the bound holds whatever was found on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from audits.bounds.scores import epsilon_from_scores
from audits.fuzz.exact import cells
from audits.fuzz.experiment import Experiment
from audits.fuzz.tape import Array, Tape
from audits.fuzz.worlds import World, train
from privfl.privacy.accounting.release import Observer


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

    ``false_alarm`` is the probability, for all cells together, that a true claim is refuted.
    """
    first = train(experiment, "with", Tape(), price=True)
    if first.run is None or not (finite := cells(first)):
        return ()
    measured = []
    for unit, observer in finite:
        claimed = first.run.statement.cell(unit, observer).epsilon
        one = replace(experiment, unit=unit)
        scores = _scores(one, observer, trials)
        if scores is None:
            measured.append(Measured(f"{unit}/{observer}", claimed, 0.0))
            continue
        inside, outside, threshold = scores
        bound = epsilon_from_scores(
            inside,
            outside,
            delta=first.run.statement.delta,
            confidence=1 - false_alarm / len(finite),
            threshold=threshold,
        )
        measured.append(Measured(f"{unit}/{observer}", claimed, bound.epsilon))
    return tuple(measured)


def _scores(experiment: Experiment, observer: Observer, trials: int) -> tuple[Array, Array, float] | None:
    """Scores of ``trials`` runs of both worlds, and a threshold; ``None`` if a run is refused.

    As many other runs give the direction in which these are projected (the difference of their means, in deviations)
    and the threshold, halfway between the means.
    """
    views = {
        world: [_view(experiment, world, observer, key) for key in range(2 * trials)] for world in ("with", "without")
    }
    shapes = {None if one is None else one.shape for each in views.values() for one in each}
    if None in shapes:
        return None
    if len(shapes) > 1:  # who sees what is a message already
        lengths = [_lengths(views[world]) for world in ("with", "without")]
        middle = float(lengths[0][:trials].mean() + lengths[1][:trials].mean()) / 2
        sign = 1.0 if lengths[0][:trials].mean() >= middle else -1.0
        return sign * lengths[0][trials:], sign * lengths[1][trials:], sign * middle
    inside, outside = (np.stack([one for one in views[world] if one is not None]) for world in ("with", "without"))
    with np.errstate(all="ignore"):
        spread = inside[:trials].std(0) + outside[:trials].std(0) + 1e-30
        direction = np.nan_to_num((inside[:trials].mean(0) - outside[:trials].mean(0)) / spread**2)
        direction /= np.linalg.norm(direction) or 1.0
        scores = [np.nan_to_num(part @ direction) for part in (inside, outside)]
    middle = float(scores[0][:trials].mean() + scores[1][:trials].mean()) / 2
    return scores[0][trials:], scores[1][trials:], middle


def _lengths(views: list[Array | None]) -> Array:
    return np.array([0.0 if one is None else float(one.size) for one in views])


def _view(experiment: Experiment, world: World, observer: Observer, key: int) -> Array | None:
    """All that ``observer`` sees of one run with fresh noise; ``None`` if the run is refused."""
    fresh = replace(experiment, noise_key=_key(experiment, world, key))
    tape = Tape()
    if train(fresh, world, tape).run is None:
        return None
    seen = sorted((seen for seen in tape.seen if observer in seen.observers), key=lambda seen: seen.where)
    parts = [np.nan_to_num(value.reshape(-1)) for one in seen for value in one.values]
    return np.concatenate([np.zeros(0), *parts])


def _key(experiment: Experiment, world: World, key: int) -> int:
    return (experiment.noise_key << 20) + 2 * key + (world == "with")


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
