"""Whether a user took part at all, asked with a handful of the user's records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary
from attacks.membership.result import MembershipResult, membership_result
from attacks.membership.scores import true_log_probability
from attacks.membership.shadow_models import ShadowTraining, train_shadows
from attacks.metrics.distinguishing import Scores, as_mask
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.schema import plain
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class UserGuess:
    """Scores of the users [U], and what the null gave them."""

    scores: Scores
    nulls: dict[str, Scores]


@dataclass(frozen=True)
class UserInference(Attack):
    """Did this user's data train the model? The records asked with need not be those that it trained on.

    Kandpal, Pillutla, Oprea, Kairouz, Choquette-Choo and Xu, "User Inference Attacks on Large Language Models" (EMNLP
    2024): a user's score is the mean over its records of log p_θ(x) − log p_ref(x), where p_θ is the released model's
    probability of the true class and p_ref that of a reference model without the user; here p_ref is the mean over
    ``shadows`` that trained on public records, best ones that are federations as the victim is. What single records
    hide in their scatter shows in a mean over many. Null: a reference in the victim's place, or with a single one an
    untrained network.

    The candidates are the users' records, ``auxiliary.users`` int64 [n] says whose each is, 0 to U − 1. The judge needs
    ``truth["users"]`` bool [U].

    Args:
        shadows: the reference models.
        round: which released model is attacked, −1 the last.
    """

    name: ClassVar[str] = "user-inference"
    needs: ClassVar[Needs] = Needs(("released",), public=True, candidates=True, truth=("users",))
    shadows: ShadowTraining = field(default_factory=lambda: ShadowTraining(count=4))
    round: int = -1

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> UserGuess:
        """A score for every user.

        Raises:
            ConfigError: it is not said whose the candidates are.
        """
        asked, users = auxiliary.need_candidates(), auxiliary.users
        if users is None or len(users) != len(asked):
            raise ConfigError(f"{self.name} asks about users; say whose each candidate is by Auxiliary(users=…)")
        shadows = train_shadows(seen, auxiliary.need_public(), self.shadows)
        others = true_log_probability(shadows.logits(asked.inputs), asked.targets)

        def scores(parameters: Tensor, references: Tensor) -> Scores:
            own = true_log_probability(shadows.models.logits(parameters, asked.inputs), asked.targets)
            return means(torch.nan_to_num(own - mean_of_models(references), nan=-1e30), users).numpy()

        found = scores(seen[self.round].released, others)
        if len(others) > 1:
            return UserGuess(found, {"a reference in the victim's place": scores(shadows.parameters[0], others[1:])})
        return UserGuess(found, {"untrained network": scores(flatten(seen.factory(1)), others)})

    def judge(self, guess: UserGuess, auxiliary: Auxiliary, seconds: float) -> MembershipResult:
        """AUC and TPR at small FPR over users."""
        inside = as_mask("truth['users']", auxiliary.answer("users").numpy(), "user")
        settings = plain(self)
        found = membership_result(
            self.name, guess.scores, inside, null_scores=guess.nulls, seconds=seconds, settings=settings
        )
        return replace(found, unit="user")


def mean_of_models(logs: Tensor) -> Tensor:
    """The logarithm [n] of the mean probability over models, from ``logs`` [N, n] of each."""
    return torch.logsumexp(logs, 0) - math.log(len(logs))


def means(values: Tensor, users: Tensor) -> Tensor:
    """The mean of ``values`` [n] over the records of each user, [U]; ``users`` int64 [n] counts from 0.

    Raises:
        ConfigError: a user below the largest number has no record.
    """
    counts = torch.bincount(users)
    if not bool(counts.all()):
        raise ConfigError(f"user {int((counts == 0).nonzero()[0])} has no record; number the users from 0 on")
    found: Tensor = torch.zeros(len(counts), dtype=values.dtype).index_add_(0, users, values) / counts
    return found
