"""The tracing attack on a run: who of the candidates was in the class means that a client sent?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.result import MembershipResult, membership_result
from attacks.prototypes.messages import PrototypeMessage, message_of, noise_of, took_part
from attacks.prototypes.tracing import PublicReference, expected_auc
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count


@dataclass(frozen=True)
class TracingGuess:
    """Scores of the candidates [n], their classes, the null's scores [n], and by class d_eff and the AUC to expect."""

    scores: Tensor
    labels: Tensor
    null: Tensor
    dimensions: Mapping[int, float]
    expected: Mapping[int, float]


@dataclass(frozen=True)
class PrototypeTracing(Attack):
    """Scores every candidate by its whitened inner product with the prototype of its class.

    See :mod:`attacks.prototypes.tracing` for the statistic and its theory. T is divided by its standard deviation over
    non-members, √((P̂ − μ₀)ᵀΣ₀⁻¹(P̂ − μ₀)), so that the scores of different classes compare. A candidate whose class has
    no prototype scores 0. Noise whose size is public is part of the whitening. Scores of several rounds are added:
    noise on prototypes is drawn anew in each, and the samples stay. The null runs the same attack against a prototype
    of equally many public samples, in which no candidate is, the same ones in every round. The judge needs
    ``truth["members"]``, bool, of the candidates; members should be those of the attacked client (or of the secure
    sum's clients) alone.

    Args:
        client: whose prototypes are attacked; ``None`` for those of a secure sum.
        round: which round, −1 for the last.
        rounds: how many rounds are read, that one and those before it; those in which nothing was sent are left out.
    """

    name: ClassVar[str] = "prototype-tracing"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(
        ("update", "prototype_sums", "prototype_counts"), public=True, candidates=True, truth=("members",)
    )
    client: int | None = None
    round: int = -1
    rounds: int = 1

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s rounds", self.rounds)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> TracingGuess:
        """Scores against the client's prototypes, and against public ones.

        Raises:
            ConfigError: no prototypes were seen, or a class that is attacked has fewer than 4 public samples.
        """
        public, asked = auxiliary.need_public(), auxiliary.need_candidates()
        message_of(seen, self.client, self.round)  # says what is missing, if it is
        last = self.round % len(seen)
        sent = [k for k in range(max(0, last + 1 - self.rounds), last + 1) if took_part(seen[k], self.client)]
        noise = noise_of(seen.facts)
        found = [trace_message(message_of(seen, self.client, k), public, asked, noise) for k in sent]
        scores, null = (torch.stack([getattr(one, name) for one in found]).sum(0) for name in ("scores", "null"))
        return replace(found[-1], scores=scores, null=null)

    def judge(self, guess: TracingGuess, auxiliary: Auxiliary, seconds: float) -> MembershipResult:
        """AUC, TPR at small FPR, and their advantage over chance and over the public prototype."""
        return membership_result(
            self.name,
            guess.scores.numpy(),
            auxiliary.answer("members").numpy(),
            null_scores={"public prototype": guess.null.numpy()},
            labels=guess.labels.numpy(),
            seconds=seconds,
            settings={
                "client": self.client,
                "round": self.round,
                "rounds": self.rounds,
                "effective_dimension": {str(label): value for label, value in guess.dimensions.items()},
                "gaussian_auc": {str(label): value for label, value in guess.expected.items()},
            },
        )


def trace_message(
    message: PrototypeMessage, public: Records, candidates: Records, noise: tuple[float, float] = (0.0, 0.0)
) -> TracingGuess:
    """The attack on one message; every second public sample of a class serves the reference, the others the null.

    ``noise`` are the deviations of that on sums and counts.

    Raises:
        ConfigError: a class that is attacked has fewer than 4 public samples.
    """
    scores, null = torch.zeros(len(candidates), dtype=torch.float64), torch.zeros(len(candidates), dtype=torch.float64)
    dimensions, expected = {}, {}
    for label in message.classes:
        rows = (candidates.targets == label).nonzero().flatten()
        if not len(rows):
            continue
        known = message.features(public.inputs[public.targets == label])
        if len(known) < 4:
            raise ConfigError(f"class {label} has {len(known)} public samples; give at least 4 of every attacked class")
        reference, others = PublicReference.of(known[::2]), known[1::2]
        features = message.features(candidates.inputs[rows])
        count = max(1, round(float(message.counts[label])))
        against = reference.under_noise(*noise, count) if any(noise) else reference
        scores[rows] = _standardised(against, features, message.prototypes[label])
        null[rows] = _standardised(reference, features, others[:count].mean(0))
        dimensions[label] = reference.effective_dimension(others)
        expected[label] = expected_auc(dimensions[label], count)
    return TracingGuess(scores, candidates.targets, null, dimensions, expected)


def _standardised(reference: PublicReference, features: Tensor, prototype: Tensor) -> Tensor:
    spread = float(reference.scores(prototype[None], prototype))
    return reference.scores(features, prototype) / math.sqrt(max(spread, 1e-300))
