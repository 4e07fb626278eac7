"""Members have small losses: the loss threshold and the gap attack (Yeom et al., CSF 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attacks.attack import Choice, Needs
from attacks.auxiliary import Auxiliary
from attacks.membership.game import Guess, MembershipAttack
from attacks.membership.scores import Models, correct, losses
from privfl.models.flat_network import flatten
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class LossThreshold(MembershipAttack):
    """Score −ℓ(θ, x, y) at a released model θ; every threshold is swept.

    With ``statistic = "correct"`` it is the gap attack: a member is who is classified correctly, and its advantage is
    the training accuracy minus the test accuracy. The null is the same score at an untrained network.

    Args:
        statistic: what is thresholded.
        round: which released model, −1 the last.
    """

    name: ClassVar[str] = "loss-threshold"
    needs: ClassVar[Needs] = Needs(("released",), candidates=True, truth=("members",))
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("statistic", "loss", "loss threshold", "Yeom et al., CSF 2018"),
        Choice("statistic", "correct", "gap attack", "Yeom et al., CSF 2018"),
    )
    statistic: Literal["loss", "correct"] = "loss"
    round: int = -1

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Guess:
        asked = auxiliary.need_candidates()
        models = Models(seen.factory)
        fresh = flatten(seen.factory(1))
        scores = []
        for parameters in (seen[self.round].released, fresh):
            logits = models.logits(parameters, asked.inputs)
            found = correct(logits, asked.targets) if self.statistic == "correct" else -losses(logits, asked.targets)
            scores.append(torch.nan_to_num(found, nan=-torch.inf).numpy())
        return Guess(scores[0], {"untrained network": scores[1]}, asked.targets)
