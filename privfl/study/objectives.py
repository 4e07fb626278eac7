"""Whether the methods of a study pursue one objective: the mean over examples, or the mean over clients."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from privfl.experiment import Experiment
from privfl.federation.cohorts import SizeWeightedCohort
from privfl.study.members import Resolved

Weights = Literal["size", "uniform"]


def weights_of(experiment: Experiment) -> Weights | None:
    """How ``experiment`` weighs its clients; ``None`` where that is the method's own affair and no setting.

    Clients that are drawn in proportion to their sizes count by size, though their updates are averaged alike.
    """
    algorithm = experiment.algorithm
    if not algorithm.counts_by:
        return None
    chosen = algorithm.weighs
    return "uniform" if chosen == "uniform" and not isinstance(experiment.cohort, SizeWeightedCohort) else "size"


def different_weights(resolved: Sequence[Resolved]) -> str:
    """A sentence that names who counts clients by size and who alike, if they meet in a level; else empty.

    Runs that are impossible are left out.
    """
    levels: dict[str, dict[Weights, dict[str, None]]] = {}
    for one in resolved:
        weights = None if one.problem or one.experiment is None else weights_of(one.experiment)
        if weights is not None:
            levels.setdefault(one.point.level, {}).setdefault(weights, {})[one.point.method] = None
    by_size, alike = (_names(level[which] for level in levels.values() if len(level) == 2) for which in _BOTH)
    if not by_size:
        return ""
    return (
        f"the methods pursue two objectives: clients count by size in {by_size}, and alike in {alike}; set the "
        "study's weighting to one value to compare them"
    )


def warn_of_different_weights(resolved: Sequence[Resolved]) -> None:
    """Log the sentence, if there is one."""
    if sentence := different_weights(resolved):
        logging.getLogger(__name__).warning(sentence)


_BOTH: tuple[Weights, Weights] = ("size", "uniform")


def _names(methods: Iterable[Iterable[str]]) -> str:
    return ", ".join(dict.fromkeys(name for some in methods for name in some))
