"""Membership by a client that poisons: it trains on the candidates under wrong labels, and reads released models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.attack import Needs, Power
from attacks.auxiliary import Auxiliary
from attacks.membership.game import Guess, MembershipAttack
from attacks.membership.rmia import RMIA
from attacks.membership.scores import Models, logit_confidence, losses
from attacks.membership.shadow_models import ShadowTraining
from attacks.membership.update_attacks import UNTRAINED
from privfl.algorithms.base import Algorithm
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.flat_network import flatten
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count


@dataclass(frozen=True)
class PoisonedMembership(MembershipAttack):
    """Who is still classified rightly although one client trains on it under a wrong label?

    Tramèr, Shokri, San Joaquin, Le, Jagielski, Hong and Carlini, "Truth Serum: Poisoning Machine Learning Models to
    Reveal Their Secrets" (CCS 2022): mislabelled copies make a record an outlier, whose own membership then shows. Here
    the attacker is one more client of the run, holds ``copies`` of every candidate with the next class for its label,
    and reads the last released model by RMIA with reference models of public records, as the paper reads it by LiRA.
    Without ``shadows`` the score is the logit confidence of the true label, averaged over the ``rounds`` released
    last. Nulls: chance, and that of RMIA or the loss at an untrained network.

    Args:
        copies: of every candidate.
        rounds: released models that are read without shadows, the last ones.
        shadows: the reference models; ``None`` for none.
    """

    name: ClassVar[str] = "poisoned-membership"
    power: ClassVar[Power] = "poisoning"
    needs: ClassVar[Needs] = Needs(("released",), public=True, candidates=True, truth=("members",))
    copies: int = 1
    rounds: int = 5
    shadows: ShadowTraining | None = field(default_factory=lambda: ShadowTraining(count=4))

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s copies", self.copies)
        check_count(f"{self.name}'s rounds", self.rounds)

    def staged(self, task: Task, algorithm: Algorithm, auxiliary: Auxiliary) -> tuple[Task, Algorithm]:
        """The same run with one more client, which holds the candidates mislabelled."""
        asked = auxiliary.need_candidates()
        wrong = (asked.targets + 1) % task.classes
        inputs = asked.inputs.repeat(self.copies, *(1 for _ in asked.inputs.shape[1:]))
        first = len(task.targets)
        added = np.arange(first, first + len(inputs))
        parts = [task.clients[client].numpy() for client in range(len(task.clients))]
        whole = torch.as_tensor(task.inputs[torch.arange(first)])
        poisoned = replace(
            task,
            inputs=torch.cat([whole, inputs.to(whole)]),
            targets=torch.cat([task.targets, wrong.repeat(self.copies).to(task.targets)]),
            clients=ClientIndex.of([*parts, added]),
            local_tests=None,
            local_validations=None,
            report=None,
        )
        return poisoned, algorithm

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Guess:
        if self.shadows is not None:
            return RMIA(shadows=self.shadows).guess(seen, auxiliary)
        asked, models = auxiliary.need_candidates(), Models(seen.factory)
        total: Tensor = torch.zeros(len(asked), dtype=torch.float64)
        for one in seen[-self.rounds :]:
            total += logit_confidence(models.logits(one.released, asked.inputs), asked.targets)
        fresh = models.logits(flatten(seen.factory(1)), asked.inputs)
        scores = torch.nan_to_num(total, nan=-torch.inf).numpy()
        return Guess(scores, {UNTRAINED: (-losses(fresh, asked.targets)).numpy()}, asked.targets)
