"""Membership against everybody's updates: alignment that is calibrated by the clients who do not hold the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.attack import Needs
from attacks.auxiliary import Records
from attacks.membership.cosines import Standardised, steps
from attacks.membership.scores import Models
from attacks.membership.update_attacks import FederatedMembership
from attacks.metrics.distinguishing import Scores
from attacks.observations.messages import require_full_update
from privfl.errors import ConfigError
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class FedMIA(FederatedMembership):
    """By how much client i's updates go further down the slope of x than other clients' do, over all rounds.

    Zhu, Li, Gong, Xu and Fan, "FedMIA: An Effective Membership Inference Attack Exploiting 'All for One' Principle in
    Federated Learning" (arXiv 2402.06289): the updates of clients who do not hold x are samples of what a non-member
    shows, in the same round and for this very record. Where gradient alignment ranks records by how typical they are
    too, this compares every record with itself. The paper takes the gradients' cosine, or the loss, and multiplies the
    one-sided probabilities of the rounds by each record's deviation in a round. Here (``Standardised``) steps are
    added, so that rounds in which x has a large gradient count for more; the deviation comes from all rounds; and what
    the client's classes explain is taken out by the mean over the candidates of the class. Members and others must be
    asked about in the same classes.
    """

    name: ClassVar[str] = "fedmia"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))
    company: ClassVar[int] = 3

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        if client is None:
            raise ConfigError("fedmia compares one client with the others; give its number as client")
        found = Standardised()
        for one, before, update in self.messages(seen, client):
            received = one.broadcast["parameters"]
            others = {
                member: require_full_update(upload["update"], received)
                for member, upload in one.uploads.items()
                if member not in (client, self.client)
            }
            if len(others) < 2:
                continue
            made, _ = steps(models, before, asked, torch.stack([update, *others.values()]))
            found.add(made[0], made[1:])
        if not found.rounds:
            raise ConfigError(f"client {client} never met two others in a round; use gradient-alignment instead")
        return torch.nan_to_num(found.scores(asked.targets), nan=-torch.inf).numpy()
