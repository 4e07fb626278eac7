"""The tracing attack on a run: who of the candidates was in the class means that a client sent?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.attack import Attack
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.result import MembershipResult, membership_result
from attacks.prototypes.messages import PrototypeMessage, message_of
from attacks.prototypes.tracing import PublicReference, expected_auc
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.simulation.transcript import Transcript


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
    no prototype scores 0. The null runs the same attack against a prototype of equally many public samples, in which
    no candidate is. The judge needs ``truth["members"]``, bool, of the candidates; members should be those of the
    attacked client (or of the secure sum's clients) alone.

    Args:
        client: whose prototypes are attacked; ``None`` for those of a secure sum.
        round: which round, −1 for the last.
    """

    name: ClassVar[str] = "prototype-tracing"
    observer: ClassVar[Observer] = "server"
    client: int | None = None
    round: int = -1

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> TracingGuess:
        """Scores against the client's prototypes, and against public ones.

        Raises:
            ConfigError: no prototypes were seen, or a class that is attacked has fewer than 4 public samples.
        """
        message = message_of(seen, self.client, self.round)
        return trace_message(message, auxiliary.need_public(), auxiliary.need_candidates())

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
                "effective_dimension": {str(label): value for label, value in guess.dimensions.items()},
                "gaussian_auc": {str(label): value for label, value in guess.expected.items()},
            },
        )


def trace_message(message: PrototypeMessage, public: Records, candidates: Records) -> TracingGuess:
    """The attack on one message; every second public sample of a class serves the reference, the others the null.

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
        scores[rows] = _standardised(reference, features, message.prototypes[label])
        null[rows] = _standardised(reference, features, others[:count].mean(0))
        dimensions[label] = reference.effective_dimension(others)
        expected[label] = expected_auc(dimensions[label], count)
    return TracingGuess(scores, candidates.targets, null, dimensions, expected)


def _standardised(reference: PublicReference, features: Tensor, prototype: Tensor) -> Tensor:
    spread = float(reference.scores(prototype[None], prototype))
    return reference.scores(features, prototype) / math.sqrt(max(spread, 1e-300))
