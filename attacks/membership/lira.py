"""LiRA, the likelihood-ratio attack (Carlini, Chien, Nasr, Song, Terzis, Tramèr, S&P 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr
from torch import Tensor

from attacks.attack import Choice, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.game import Guess, MembershipAttack
from attacks.membership.scores import logit_confidence
from attacks.membership.shadow_models import Shadows, ShadowTraining, join, train_shadows
from attacks.metrics.distinguishing import Scores
from privfl.errors import ConfigError, unknown
from privfl.simulation.transcript import Transcript

FEWEST_FOR_OWN_VARIANCE = 64
"""With fewer shadows the variances of all records are taken as one, as the paper does."""
SMALLEST_VARIANCE = 1e-12
Variance = Literal["auto", "per-record", "global"]
QUERIES = ("identity", "flip", "left", "right", "up", "down")
"""Augmentations that a record may be asked with; shifts are by one pixel and repeat the border."""


@dataclass(frozen=True)
class LiRA(MembershipAttack):
    """Is the victim's confidence in a record more likely under shadows that trained on it, or under those that did not?

    φ = log(p_y/(1−p_y)) is nearly normal over shadows. ``online``: Λ = log N(φ; μ_in, σ_in²) − log N(φ; μ_out, σ_out²)
    with shadows on shares of the candidates and the public records. ``offline``: one-sided, Φ((φ−μ_out)/σ_out) with
    shadows on public records alone, given as −log(1 − Φ), which has the same order and does not saturate.

    Differences from the paper: several queries of a record count as independent (a diagonal covariance), as in the
    authors' code; offline several queries are combined as Fisher combines p-values, where that code takes a two-sided
    density. Means are means, where that code takes medians.

    The null is the same attack on a shadow in the victim's place: it knows the candidates' data but not the victim.

    Args:
        mode: online or offline.
        shadows: how many there are and how they are trained.
        variance: of each record, of all together, or the latter with fewer than 64 shadows.
        queries: augmentations that each record is asked with; "flip" and shifts need images.
        round: which released model is attacked, −1 the last.
    """

    name: ClassVar[str] = "lira"
    needs: ClassVar[Needs] = Needs(("released",), public=True, candidates=True, truth=("members",))
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("mode", "online", "LiRA, online", "Carlini et al., S&P 2022"),
        Choice("mode", "offline", "LiRA, offline", "Carlini et al., S&P 2022"),
    )
    mode: Literal["online", "offline"] = "online"
    shadows: ShadowTraining = field(default_factory=ShadowTraining)
    variance: Variance = "auto"
    queries: tuple[str, ...] = ("identity",)
    round: int = -1

    def __post_init__(self) -> None:
        if self.shadows.count < 4:
            raise ConfigError(f"LiRA has {self.shadows.count} shadows; give at least 4, two of each kind")
        for query in self.queries:
            if query not in QUERIES:
                raise unknown("query", query, QUERIES)
        if not self.queries:
            raise ConfigError("LiRA asks nothing; give at least the query 'identity'")

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Guess:
        asked = auxiliary.need_candidates()
        online = self.mode == "online"
        pool = join(asked, auxiliary.public) if online else auxiliary.need_public()
        return self.compare(seen, asked, train_shadows(seen, pool, self.shadows), candidates_inside=online)

    def compare(self, seen: Transcript, asked: Records, shadows: Shadows, *, candidates_inside: bool) -> Guess:
        """The guess by ``shadows`` that are there, for instance shared with other attacks.

        ``candidates_inside`` says that their pool begins with the candidates ``asked``; else it holds none of them.
        """
        inside = np.zeros((len(shadows.parameters), len(asked)), dtype=bool)
        if candidates_inside:
            inside = shadows.inside[:, : len(asked)].numpy()
        own, others = confidences(seen[self.round].released, shadows, asked, self.queries)
        wide = self.variance == "per-record" or (self.variance == "auto" and len(others) >= FEWEST_FOR_OWN_VARIANCE)
        score = lira_online if self.mode == "online" else lira_offline
        blind = score(others[0], others[1:], inside[1:], own_variance=wide)
        return Guess(
            score(own, others, inside, own_variance=wide), {"a shadow in the victim's place": blind}, asked.targets
        )


def confidences(
    parameters: Tensor, shadows: Shadows, asked: Records, queries: tuple[str, ...] = ("identity",)
) -> tuple[Scores, Scores]:
    """φ [n, Q] of the model ``parameters`` and φ [N, n, Q] of all shadows, at every query of every record."""
    own, others = [], []
    for query in queries:
        inputs = augmented(asked.inputs, query)
        own.append(logit_confidence(shadows.models.logits(parameters, inputs), asked.targets))
        others.append(logit_confidence(shadows.logits(inputs), asked.targets))
    return torch.stack(own, -1).numpy(), torch.stack(others, -1).numpy()


def lira_online(own: Scores, others: Scores, inside: NDArray[np.bool_], *, own_variance: bool) -> Scores:
    """Λ [n], summed over queries, from φ ``own`` [n, Q] and ``others`` [N, n, Q].

    ``inside`` bool [N, n] says which shadow trained on which record; every record needs two of either kind for an own
    variance and one otherwise.

    Raises:
        ConfigError: a record has too few shadows of one kind.
    """
    with_it = _normal(others, inside, own_variance)
    without = _normal(others, ~inside, own_variance)
    return np.asarray((_log_density(own, *with_it) - _log_density(own, *without)).sum(1))


def lira_offline(own: Scores, others: Scores, inside: NDArray[np.bool_], *, own_variance: bool) -> Scores:
    """−log(1 − Φ((φ − μ_out)/σ_out)) [n], summed over queries, from φ ``own`` [n, Q] and ``others`` [N, n, Q]."""
    mean, variance = _normal(others, ~inside, own_variance)
    return np.asarray(-log_ndtr(-(own - mean) / np.sqrt(variance)).sum(1))


def augmented(inputs: Tensor, query: str) -> Tensor:
    """``inputs`` [n, C, H, W] as the augmentation ``query`` shows them.

    Raises:
        ConfigError: another query than "identity" for inputs that are no images.
    """
    if query == "identity":
        return inputs
    if inputs.dim() != 4:
        raise ConfigError(f"the query '{query}' needs images [n, C, H, W], not {tuple(inputs.shape)}; use 'identity'")
    if query == "flip":
        return inputs.flip(3)
    dimension, step = {"left": (3, -1), "right": (3, 1), "up": (2, -1), "down": (2, 1)}[query]
    size = inputs.shape[dimension]
    places = (torch.arange(size) - step).clamp(0, size - 1)
    return inputs.index_select(dimension, places)


def _normal(others: Scores, chosen: NDArray[np.bool_], own_variance: bool) -> tuple[Scores, Scores]:
    """Means [n, Q] and variances [n, Q] or [1, Q] of the ``chosen`` shadows' confidences of every record."""
    counts = chosen.sum(0)
    if counts.min() < (2 if own_variance else 1) or counts.max() < 2:
        raise ConfigError(
            f"a record is in {int(counts.min())} of the shadows that its distribution is estimated from; train more"
        )
    weights = chosen[..., None].astype(np.float64)
    mean = (weights * others).sum(0) / counts[:, None]
    squares = (weights * (others - mean) ** 2).sum(0)
    if own_variance:
        return mean, np.maximum(squares / (counts[:, None] - 1), SMALLEST_VARIANCE)
    pooled = squares.sum(0, keepdims=True) / max(1, int((counts - 1).sum()))
    return mean, np.maximum(pooled, SMALLEST_VARIANCE)


def _log_density(values: Scores, mean: Scores, variance: Scores) -> Scores:
    return np.asarray(-0.5 * ((values - mean) ** 2 / variance + np.log(2 * np.pi * variance)))
