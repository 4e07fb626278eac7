"""How far every client's update points down the slope of every record."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attacks.auxiliary import Records
from attacks.membership.scores import Models

PRIOR = 4
"""A record's deviation counts as if so many more clients had shown the mean one."""
CROWD = 4
"""Fewer candidates of one class are compared with those of all classes."""


class Standardised:
    """Sums over rounds of one client's steps along the slopes of n records, by how other clients' steps differ there.

    Of a round ``d_t = s_t − mean_j s_jt`` is added up, over the root of the round's mean variance g_t; j are the others
    and the variance is theirs. The sum is divided by the record's own deviation, the root of the mean over rounds of
    its variance over g_t.
    """

    def __init__(self) -> None:
        self._apart: Tensor | float = 0.0
        self._spread: Tensor | float = 0.0
        self._freedom = 0
        self.rounds = 0

    def add(self, own: Tensor, others: Tensor) -> None:
        """The steps ``own`` [n] and ``others`` [j, n], j ≥ 2, of one round; float64."""
        variance = others.var(0)
        mean = variance.nanmean().clamp_min(1e-300)
        self._apart = self._apart + (own - others.mean(0)) / mean.sqrt()
        self._spread = self._spread + variance / mean
        self._freedom += len(others) - 1
        self.rounds += 1

    def scores(self, targets: Tensor) -> Tensor:
        """Scores [n] of records of the classes ``targets``, int64 [n], each from the mean of its class."""
        share = torch.as_tensor(self._spread) / max(self.rounds, 1)
        deviation = ((share * self._freedom + PRIOR) / (self._freedom + PRIOR)).sqrt()
        return centred(torch.as_tensor(self._apart) / deviation, targets)


def centred(scores: Tensor, targets: Tensor) -> Tensor:
    """``scores`` [n] less the mean of their class; of a class with fewer than ``CROWD``, less the mean of all."""
    known = torch.where(scores.isfinite(), scores, torch.nan)
    means = torch.full_like(scores, float(known.nanmean()))
    for label in sorted(set(targets.tolist())):
        rows = targets == label
        if int(rows.sum()) >= CROWD:
            means[rows] = known[rows].nanmean()
    return scores - means


def steps(models: Models, parameters: Tensor, asked: Records, updates: Tensor) -> tuple[Tensor, Tensor]:
    """How far updates [k, size], at length 1, go down the slopes of n records: [k, n], and the slopes' lengths [n].

    A step is ⟨−∇ℓ(w; x), Δ/‖Δ‖⟩ at w = ``parameters`` [size]; by the slope's length it is the cosine. All float64.
    """
    unit, cosines, lengths = unit_rows(updates), [], []
    for gradients, sizes in unit_gradients(models, parameters, asked):
        cosines.append(-(unit @ gradients.T).double())
        lengths.append(sizes.double())
    slopes = torch.cat(lengths)
    return torch.cat(cosines, 1) * slopes, slopes


def unit_gradients(models: Models, parameters: Tensor, asked: Records) -> Iterator[tuple[Tensor, Tensor]]:
    """Gradients of length 1 [chunk, size] and the lengths [chunk] that they had, chunk by chunk, in order."""
    for gradients in models.gradients(parameters, asked):
        lengths = gradients.norm(dim=1).clamp_min(1e-30)
        yield gradients / lengths[:, None], lengths


def unit_rows(rows: Tensor) -> Tensor:
    """``rows`` [k, size] at length 1; zeros stay zeros."""
    found: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return found
