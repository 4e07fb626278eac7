"""Whether a client, or anybody, holds a record: the matched filter's likelihood ratio over clients and rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.attack import Needs
from attacks.auxiliary import Auxiliary
from attacks.membership.game import Guess, MembershipAttack
from attacks.membership.matched_filter import filtered
from attacks.membership.scores import Models, losses
from attacks.membership.update_attacks import ANOTHER, UNTRAINED
from attacks.metrics.distinguishing import Scores
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.release import Observer
from privfl.randomness import torch_stream
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count


@dataclass(frozen=True)
class MatchedFilter(MembershipAttack):
    """Is there a multiple of x's own gradient in the updates, beyond what records like x explain?

    The likelihood ratio of :mod:`attacks.membership.matched_filter`, added up over rounds, for one client or, with
    ``client=None``, averaged over all of them: is x anybody's? It knows the step that the settings promise and the
    bound at which DP-SGD clips; how much of the step is left is fitted to the candidates, without their answers. It is
    ours, made from textbook detection theory; no paper has just this one. Nulls: chance, another client's updates for a
    named client, and the loss at an untrained network for anybody.

    Args:
        client: whose records are asked about; ``None`` for anybody's.
        rounds: how many rounds are read, the last ones; ``None`` all.
        references: public records that explain an update, at most.
        width: of the sketches of gradients.
        seed: of the sketches.
    """

    name: ClassVar[str] = "matched-filter"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, candidates=True, truth=("members",))
    client: int | None = None
    rounds: int | None = None
    references: int = 500
    width: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds is not None:
            check_count(f"{self.name}'s rounds", self.rounds)
        check_count(f"{self.name}'s references", self.references, 2)
        check_count(f"{self.name}'s width", self.width, 2)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Guess:
        """Scores of the candidates.

        Raises:
            ConfigError: only sums were seen, no round had three clients, or the client was in none of them.
        """
        asked, public = auxiliary.need_candidates(), auxiliary.need_public()
        known = public[torch.arange(min(self.references, len(public)))]
        generator = torch_stream(self.seed, "matched-filter")
        found = filtered(seen, asked, known, rounds=self.rounds, width=self.width, generator=generator)
        if self.client is None:
            models = Models(seen.factory)
            fresh = models.logits(flatten(seen.factory(1)), asked.inputs)
            return Guess(ordered(found.held()), {UNTRAINED: ordered(-losses(fresh, asked.targets))}, asked.targets)
        if self.client not in found.clients:
            raise ConfigError(f"client {self.client} sent no 'update' together with two others; ask about another")
        rival = next(client for client in found.clients if client != self.client)
        own, other = (ordered(found.rows([client]).held()) for client in (self.client, rival))
        return Guess(own, {ANOTHER: other}, asked.targets)


def ordered(scores: Tensor) -> Scores:
    """A score that overflowed says nothing: it counts as the lowest."""
    return torch.nan_to_num(scores, nan=-torch.inf).numpy()
