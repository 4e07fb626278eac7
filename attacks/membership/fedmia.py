"""Membership against everybody's updates: alignment that is calibrated by the clients who do not hold the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.attack import Needs
from attacks.auxiliary import Records
from attacks.membership.cosines import RoundCosines, alignments
from attacks.membership.scores import Models
from attacks.membership.update_attacks import FederatedMembership
from attacks.metrics.distinguishing import Scores
from attacks.observations.messages import require_full_update
from privfl.errors import ConfigError
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class FedMIA(FederatedMembership):
    """Score Σ_t (c_t − mean_j c_j,t)/std_j c_j,t of the cosines c = cos(−∇ℓ(w_t; x), Δ_t), j the other clients.

    Zhu, Li, Gong, Xu and Fan, "FedMIA: An Effective Membership Inference Attack Exploiting 'All for One' Principle in
    Federated Learning" (arXiv 2402.06289), with the gradients' cosine as its measure: the updates of clients who do not
    hold x are samples of what a non-member's cosine is, in the same round and for this very record. Where gradient
    alignment ranks records by how typical they are too, this compares every record with itself. The paper multiplies
    the one-sided probabilities of the rounds; here the standardised cosines are added, which keeps the order of what
    lies far out. The deviation is each record's own if at least ten others took part, else one for all records.
    """

    name: ClassVar[str] = "fedmia"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))
    company: ClassVar[int] = 3

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        if client is None:
            raise ConfigError("fedmia compares one client with the others; give its number as client")
        total, used = torch.zeros(len(asked), dtype=torch.float64), 0
        for one, before, update in self.messages(seen, client):
            received = one.broadcast["parameters"]
            others = {
                member: require_full_update(upload["update"], received)
                for member, upload in one.uploads.items()
                if member not in (client, self.client)
            }
            if len(others) < 2:
                continue
            used += 1
            found = alignments(models, before, asked, torch.stack([update, *others.values()]))
            total += RoundCosines((client, *others), found).standardised(client)
        if not used:
            raise ConfigError(f"client {client} never met two others in a round; use gradient-alignment instead")
        return torch.nan_to_num(total, nan=-torch.inf).numpy()
