"""Reduces an experiment that breaks a claim, step by step, as long as the same kind of violation stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from audits.fuzz.exact import Verdict, check
from audits.fuzz.experiment import Data, Experiment

PLAIN = Experiment()
MOST_TRIALS = 200


def shrink(experiment: Experiment, kind: str, verdict_of: Callable[[Experiment], Verdict] = check) -> Experiment:
    """The smallest experiment found that still shows a violation of ``kind``.

    ``verdict_of`` judges an experiment; it is asked ``MOST_TRIALS`` times at most.
    """
    trials, progress = 0, True
    while progress:
        progress = False
        for smaller in _smaller(experiment):
            if trials >= MOST_TRIALS:
                return experiment
            trials += 1
            if any(found.kind == kind for found in verdict_of(smaller).violations):
                experiment, progress = smaller, True
                break
    return experiment


def _smaller(experiment: Experiment) -> Iterator[Experiment]:
    """Experiments that are a step simpler, the largest steps first."""
    data = experiment.data
    for name in (
        "resume",
        "dpsgd",
        "size",
        "loss",
        "model",
        "training",
        "availability",
        "cohort",
        "engine",
        "algorithm",
    ):
        if getattr(experiment, name) != getattr(PLAIN, name):
            yield experiment.but(**{name: getattr(PLAIN, name)})
    for name in ("update", "statistics"):
        links = getattr(experiment, name)
        for place in range(len(links)):
            yield experiment.but(**{name: (*links[:place], *links[place + 1 :])})
    if experiment.rounds > 1:
        yield experiment.but(rounds=1)
        yield experiment.but(rounds=experiment.rounds - 1)
    for place in range(len(data.rows)):
        if place != data.client and len(data.rows) > 1:
            client = data.client - (place < data.client)
            yield experiment.but(data=replace(data, rows=_without(data.rows, place), client=client))
    for place, size in enumerate(data.rows):
        if size > (2 if place == data.client else 1):
            rows = (*data.rows[:place], size - 1, *data.rows[place + 1 :])
            yield experiment.but(data=replace(data, rows=rows))
    for name in ("common", "extra", "seed"):
        if getattr(data, name) != getattr(Data(), name):
            yield experiment.but(data=replace(data, **{name: getattr(Data(), name)}))
    for number in ("seed", "noise_key"):
        if getattr(experiment, number) != getattr(PLAIN, number):
            yield experiment.but(**{number: getattr(PLAIN, number)})
    yield from _rounder(experiment)


def _rounder(experiment: Experiment) -> Iterator[Experiment]:
    """The same with fewer settings, or plainer ones."""
    for name in ("training", "algorithm", "dpsgd"):
        part = getattr(experiment, name)
        for key in part or ():
            if key not in ("name", "noise_multiplier", "weighting"):
                yield experiment.but(**{name: {other: part[other] for other in part if other != key}})
    if experiment.dpsgd is not None and experiment.dpsgd.get("noise_multiplier") not in (None, 1.0):
        yield experiment.but(dpsgd={**experiment.dpsgd, "noise_multiplier": 1.0})


def _without(rows: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*rows[:place], *rows[place + 1 :])
