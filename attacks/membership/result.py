"""The result of a membership attack: scores, rates, and the ROC on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attacks.metrics.distinguishing import FALSE_POSITIVE_RATES, Scores, as_mask, auc, membership_measures, roc
from attacks.metrics.measure import Measure, mean_of
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.plain_text import as_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHANCE = "chance"


@dataclass(frozen=True, kw_only=True)
class MembershipResult(AttackResult):
    """Scores of all candidates (larger: member), who of them is a member, and the scores that the nulls gave them.

    Nulls are ``chance``, with its exact rates, and every set of scores that needs no message of the victims: for
    instance the same attack against a model that was trained on public data only. Such a null finds more than chance
    where members and non-members differ by anything but membership, and then the attack's advantage is over that.
    """

    scores: Scores
    members: NDArray[np.bool_]
    null_scores: Mapping[str, Scores]
    class_auc: Mapping[int, Measure]

    def to_json(self) -> dict[str, Any]:
        """The measures, the classes' AUCs and the numbers of members and others."""
        found = super().to_json()
        found["members"], found["others"] = int(self.members.sum()), int((~self.members).sum())
        found["class_auc"] = {str(label): measure.to_json() for label, measure in self.class_auc.items()}
        return found

    def figure(self) -> Figure:
        """The ROC of the attack and of its nulls, both axes logarithmic, down to one false positive."""
        return roc_figure({self.attack: self.scores, **{f"null: {k}": v for k, v in self.null_scores.items()}}, self)


def membership_result(
    attack: str,
    scores: ArrayLike,
    members: ArrayLike,
    *,
    null_scores: Mapping[str, ArrayLike] | None = None,
    labels: ArrayLike | None = None,
    seconds: float,
    settings: Mapping[str, Any] | None = None,
    rates: tuple[float, ...] = FALSE_POSITIVE_RATES,
) -> MembershipResult:
    """Judge ``scores`` [n] by who is a member, ``members`` bool [n].

    With ``labels`` [n] the AUC of every class is taken apart and their mean is the measure ``class_auc``: what is left
    if an attack only recognises the classes that members have.

    Raises:
        ConfigError: the lengths differ, everybody or nobody is a member, ``members`` holds more than True and False (or
            1 and 0), or a score is NaN.
    """
    found, inside = np.asarray(scores, dtype=np.float64), as_mask("members", members, "candidate")
    others = {name: np.asarray(values, dtype=np.float64) for name, values in (null_scores or {}).items()}
    for name, values in {attack: found, **others}.items():
        if values.shape != inside.shape:
            raise ConfigError(f"'{name}' has scores {values.shape} for {inside.shape} candidates; give one score each")
    measures = membership_measures(found[inside], found[~inside], rates)
    chance = {"auc": 0.5, "balanced_accuracy": 0.5, "advantage": 0.0}
    chance |= {f"tpr_at_fpr_{rate:g}": rate for rate in rates if f"tpr_at_fpr_{rate:g}" in measures}
    nulls = {CHANCE: {name: Measure(value, value, value) for name, value in chance.items()}}
    nulls |= {name: membership_measures(values[inside], values[~inside], rates) for name, values in others.items()}
    by_class: dict[int, Measure] = {}
    if labels is not None:
        classes = np.asarray(labels)
        for label in np.unique(classes).tolist():
            within = classes == label
            if inside[within].any() and not inside[within].all():
                by_class[label] = auc(found[within & inside], found[within & ~inside])
        if by_class:
            measures["class_auc"] = mean_of([measure.value for measure in by_class.values()], least=0, most=1)
            nulls[CHANCE]["class_auc"] = Measure(0.5, 0.5, 0.5)
    return MembershipResult(
        attack=attack,
        primary="auc",
        metrics=measures,
        nulls=nulls,
        seconds=seconds,
        units=len(found),
        unit="membership score",
        settings=dict(settings or {}),
        scores=found,
        members=inside,
        null_scores=others,
        class_auc=by_class,
    )


def roc_figure(scores: Mapping[str, Scores], like: MembershipResult) -> Figure:
    """ROC curves of several ``scores`` of the candidates of ``like``, on logarithmic axes, over the diagonal of chance.

    Curves that need no run (their name begins with ``null``) are grey.
    """
    from matplotlib.figure import Figure

    inside = like.members
    least = 1 / max(1, int((~inside).sum()))
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([least / 2, 1], [least / 2, 1], color="black", linestyle=":", linewidth=1, label="chance")
    for name, values in scores.items():
        fpr, tpr = roc(values[inside], values[~inside])
        grey = {"color": "#999999", "linestyle": "--"} if name.startswith("null") else {}
        shown = np.maximum(fpr, least / 2)
        axes.step(shown, np.maximum(tpr, least / 2), where="post", linewidth=1.4, label=name, **grey)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least / 2, 1)
    axes.set_ylim(least / 2, 1)
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    as_written(figure)
    return figure
