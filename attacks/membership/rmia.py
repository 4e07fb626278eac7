"""RMIA, the robust membership inference attack (Zarifzadeh, Liu, Shokri, ICML 2024)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attacks.attack import Choice, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.game import Guess, MembershipAttack
from attacks.membership.scores import true_log_probability
from attacks.membership.shadow_models import Shadows, ShadowTraining, join, train_shadows
from attacks.metrics.distinguishing import Scores, auc
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.simulation.transcript import Transcript

SMALLEST = 1e-300
LONE_A = 0.3
"""The offline a where one reference has nobody to be compared with."""


@dataclass(frozen=True)
class RMIA(MembershipAttack):
    """How many public records z does x beat, LR(x, z) = [p_θ(x)/p(x)] / [p_θ(z)/p(z)] ≥ γ?

    p_θ(x) is the probability that the victim gives to the true class, p(x) what it would be on average over models:
    ``online`` ½(p̄_in + p̄_out) over shadows that trained on x and that did not; ``offline`` from shadows that did not,
    p(x) = ½((1+a)·p̄_out + (1−a)), in the paper's notation. z always take the shadows that did not train on them, and
    the online mean where they have both. A few reference models suffice.

    The null is the same attack on a reference model in the victim's place; with a single one, on an untrained network.

    Args:
        mode: online or offline.
        shadows: the reference models.
        gamma: γ > 0; the paper uses 2, its code 1.
        offline_a: a in [0, 1]; ``None`` picks it from {0, 0.1, …, 1} by the mean AUC of attacks on each reference
            model by the others, whose members the attacker knows; with a single reference it is 0.3.
        round: which released model is attacked, −1 the last.
    """

    name: ClassVar[str] = "rmia"
    needs: ClassVar[Needs] = Needs(("released",), public=True, candidates=True, truth=("members",))
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("mode", "offline", "RMIA, offline", "Zarifzadeh, Liu and Shokri, ICML 2024"),
        Choice("mode", "online", "RMIA, online", "Zarifzadeh, Liu and Shokri, ICML 2024"),
    )
    mode: Literal["online", "offline"] = "offline"
    shadows: ShadowTraining = field(default_factory=lambda: ShadowTraining(count=4))
    gamma: float = 2.0
    offline_a: float | None = None
    round: int = -1

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ConfigError(f"RMIA's gamma is {self.gamma!r}; give a positive number")
        if self.offline_a is not None and not 0 <= self.offline_a <= 1:
            raise ConfigError(f"RMIA's offline_a is {self.offline_a!r}; give a number in [0, 1], or leave it out")

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Guess:
        asked, public = auxiliary.need_candidates(), auxiliary.need_public()
        online = self.mode == "online"
        shadows = train_shadows(seen, join(asked, public) if online else public, self.shadows)
        return self.compare(seen, asked, public, shadows, candidates_inside=online)

    def compare(
        self, seen: Transcript, asked: Records, public: Records, shadows: Shadows, *, candidates_inside: bool
    ) -> Guess:
        """The guess by ``shadows`` that are there, for instance shared with other attacks.

        ``candidates_inside`` says that their pool is ``asked`` and then ``public``; else it is ``public`` alone.
        """
        online, n = self.mode == "online", len(asked)
        both = join(asked, public)
        inside = np.zeros((len(shadows.parameters), len(both)), dtype=bool)
        inside[:, 0 if candidates_inside else n :] = shadows.inside.numpy()
        others = np.exp(true_log_probability(shadows.logits(both.inputs), both.targets).numpy())
        logits = shadows.models.logits(seen[self.round].released, both.inputs)
        own = np.exp(true_log_probability(logits, both.targets).numpy())
        a = None if online else self.offline_a
        if not online and a is None:
            a = best_offline_a(others[:, n:], inside[:, n:], self.gamma) if len(others) > 1 else LONE_A

        def scores(victim: Scores, models: Scores, trained: NDArray[np.bool_]) -> Scores:
            ratio = relative(victim, models, trained, a)
            return rmia(ratio[:n], ratio[n:], self.gamma)

        found = scores(own, others, inside)
        if len(others) > 1:
            blind = scores(others[0], others[1:], inside[1:])
            return Guess(found, {"a reference in the victim's place": blind}, asked.targets)
        fresh = shadows.models.logits(flatten(seen.factory(1)), both.inputs)
        blind = scores(np.exp(true_log_probability(fresh, both.targets).numpy()), others, inside)
        return Guess(found, {"untrained network": blind}, asked.targets)


def relative(own: Scores, others: Scores, inside: NDArray[np.bool_], a: float | None) -> Scores:
    """p_θ(x)/p(x) [n] from the victim's probabilities ``own`` [n] and those of models ``others`` [N, n].

    ``inside`` bool [N, n] says who trained on what. With ``a`` the offline estimate, else the online mean; a record
    that all models, or none, trained on takes the mean over all.
    """
    out = _mean(others, ~inside)
    average = 0.5 * ((1 + a) * out + (1 - a)) if a is not None else 0.5 * (_mean(others, inside) + out)
    return np.asarray(own / np.maximum(average, SMALLEST))


def rmia(candidates: Scores, population: Scores, gamma: float) -> Scores:
    """The share of ``population`` [m] that each of ``candidates`` [n] beats, ratio(x) ≥ γ·ratio(z), ties broken.

    A population has few records beside the candidates, so the paper's share takes few values and throws the order
    within each away. Candidates of the same share are ordered by their own ratio, and never pass the next share.
    """
    share = np.searchsorted(np.sort(population * gamma), candidates, side="right")
    order = np.unique(candidates, return_inverse=True)[1] / (len(candidates) + 1)
    return np.asarray((share + order) / len(population))


def best_offline_a(others: Scores, inside: NDArray[np.bool_], gamma: float) -> float:
    """The a of {0, 0.1, …, 1} by which the models attack each other best, on records whose owners are known."""
    found = {}
    for tenth in range(11):
        areas = []
        for victim in range(len(others)):
            rest = np.arange(len(others)) != victim
            ratio = relative(others[victim], others[rest], inside[rest], tenth / 10)
            outside = ~inside[victim]
            scores = rmia(ratio, ratio[outside], gamma)
            if inside[victim].any() and outside.any():
                areas.append(auc(scores[inside[victim]], scores[outside]).value)
        found[tenth / 10] = float(np.mean(areas)) if areas else 0.5
    return max(found, key=lambda a: found[a])


def _mean(others: Scores, chosen: NDArray[np.bool_]) -> Scores:
    counts = chosen.sum(0)
    everyone = others.mean(0)
    picked = np.where(chosen, others, 0.0).sum(0) / np.maximum(counts, 1)
    return np.asarray(np.where(counts > 0, picked, everyone))
