"""How far every client's update points down the slope of every record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.auxiliary import Records
from attacks.membership.scores import Models

OWN_DEVIATION = 10
"""With so many others the deviation is each record's own; with fewer it is one for all records."""


@dataclass(frozen=True)
class RoundCosines:
    """One round: ``found`` [k, n], float64, is cos(−∇ℓ(w; x), Δ) of the updates of ``clients`` with n records."""

    clients: tuple[int, ...]
    found: Tensor

    def standardised(self, client: int, without: int | None = None) -> Tensor:
        """``(c − mean_j c_j)/std_j c_j`` [n] of ``client``, j all others but ``without``."""
        others = [row for row, member in enumerate(self.clients) if member not in (client, without)]
        own, rest = self.found[self.clients.index(client)], self.found[others]
        spread = rest.std(0) if len(others) >= OWN_DEVIATION else rest.var(0).mean().sqrt()
        return (own - rest.mean(0)) / spread.clamp_min(1e-12)


def alignments(models: Models, parameters: Tensor, asked: Records, updates: Tensor) -> Tensor:
    """cos(−∇ℓ(w; x), Δ) [k, n], float64, of ``updates`` [k, size] with the gradients at ``parameters`` [size]."""
    unit = unit_rows(updates)
    parts = [-(unit @ gradients.T).double() for gradients, _ in unit_gradients(models, parameters, asked)]
    return torch.cat(parts, 1)


def unit_gradients(models: Models, parameters: Tensor, asked: Records) -> Iterator[tuple[Tensor, Tensor]]:
    """Gradients of length 1 [chunk, size] and the lengths [chunk] that they had, chunk by chunk, in order."""
    for gradients in models.gradients(parameters, asked):
        lengths = gradients.norm(dim=1).clamp_min(1e-30)
        yield gradients / lengths[:, None], lengths


def unit_rows(rows: Tensor) -> Tensor:
    """``rows`` [k, size] at length 1; zeros stay zeros."""
    found: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return found
