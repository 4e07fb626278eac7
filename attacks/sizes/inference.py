"""How many examples every client holds, from FedSampling's updates or from answers about the size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary
from attacks.labels.inference import PublicKnowledge
from attacks.metrics.measure import Measure, mean_of, proportion
from attacks.observations.head_gradients import predictions
from attacks.observations.label_counts import counts_by_regression, total_variance
from attacks.observations.messages import head_observations
from attacks.result import AttackResult
from attacks.sizes.from_responses import most_likely, posterior
from attacks.sizes.from_updates import size_from_chosen
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.schema import choose
from privfl.simulation.transcript import PublicFacts, Transcript
from privfl.validation import check_choice, check_count

Method = Literal["regression", "absent-class"]


@dataclass(frozen=True)
class SizeGuess:
    """Believed sizes by client, and the mean size that the answers give away."""

    sizes: Mapping[int, float]
    everybody: float


@dataclass(frozen=True)
class SizeFromUpdates(Attack):
    """The size of every FedSampling client: its update is a sum of gradients over a public constant.

    Each round tells the number m of chosen examples; n is Σ m / Σ p over the rounds, p the broadcast sampling rate,
    rounds weighed by how well they tell m. A secure sum tells the cohort's total only. Judged by the mean
    ``relative_error`` ``|n̂ − n|/n``, by ``exact_match`` and by ``auc_twice``: how often of two clients of which one
    holds at least twice as much the larger is recognised. The nulls believe that everybody holds the mean:
    K/(p·clients), which the rate gives away, and the true one, which a sum tells. The judge needs
    ``truth["sizes"]`` [clients].

    Args:
        method: ``"regression"`` on the class gradients of public data, or ``"absent-class"``: K·max_c(∂b_c/p̄_c), which
            is exact where a client lacks a class and too low elsewhere.
        rounds: how many rounds are read, from the first.
    """

    name: ClassVar[str] = "size-from-updates"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("sizes",))
    method: Method = "regression"
    rounds: int = 10

    def __post_init__(self) -> None:
        check_choice("size-from-updates' method", self.method, get_args(Method))
        check_count("size-from-updates' rounds", self.rounds)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> SizeGuess:
        facts, public = seen.facts, auxiliary.need_public()
        if facts.algorithm["name"] != "fedsampling":
            raise ConfigError(f"{facts.algorithm['name']} divides by private counts; sizes show in fedsampling's sums")
        chosen: dict[int, list[float]] = defaultdict(list)
        rates: dict[int, list[float]] = defaultdict(list)
        spread: dict[int, list[float]] = defaultdict(list)
        total = 0.0
        for number in range(min(self.rounds, len(seen))):
            rate = float(seen[number].broadcast["rate"])
            total += facts.algorithm["samples_per_round"] / rate / min(self.rounds, len(seen))
            knowledge, variance = PublicKnowledge(public, facts.classes), 0.0
            for observation in head_observations(seen, number):
                head = observation.gradient
                if self.method == "regression":
                    expected = knowledge.gradients(observation.before, head.bias is not None, keep=True)
                    variance = variance or total_variance(expected)
                    found = float(counts_by_regression(head.vector(), expected, signed=True).sum())
                else:
                    if head.bias is None:
                        raise ConfigError("the head has no bias, which 'absent-class' reads; use method = 'regression'")
                    means = predictions(observation.before, public.inputs).mean(0)
                    found = max(0.0, float((head.bias / means).max()))
                for member in observation.members:
                    chosen[member].append(found / len(observation.members))
                    rates[member].append(rate)
                    spread[member].append(variance)
        sizes = {client: size_from_chosen(chosen[client], rates[client], spread[client]) for client in sorted(chosen)}
        return SizeGuess(sizes, total / facts.clients)

    def judge(self, guess: SizeGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        return judge_sizes(self, guess, auxiliary, seconds)


@dataclass(frozen=True)
class SizeFromResponses(Attack):
    """The size of every client from its randomised answers: the likeliest size after all independent ones.

    A transcript holds fresh answers only: a single one with ``refresh = "once"``; else they add up. A secure sum of
    updates does not help where answers are sent by each. Measures, truth and nulls as :class:`SizeFromUpdates`, the
    estimated mean being that of the first answers.

    Args:
        rounds: how many rounds are read, from the first.
    """

    name: ClassVar[str] = "size-from-responses"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("sizes",), truth=("sizes",))
    needs_classes: ClassVar[bool] = False
    rounds: int = 1000

    def __post_init__(self) -> None:
        check_count("size-from-responses' rounds", self.rounds)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> SizeGuess:
        mechanism = mechanism_of(seen.facts)
        answers: dict[int, list[float]] = defaultdict(list)
        for number in range(min(self.rounds, len(seen))):
            for client, answer in seen[number].sizes.items():
                answers[client].append(answer)
        if not answers:
            raise ConfigError("no client answered about its size; attack an algorithm that asks, such as fedsampling")
        total = mechanism.estimate(np.array([sent[0] for sent in answers.values()])).value
        sizes = {
            client: float(most_likely(posterior(sent, mechanism), mechanism))
            for client, sent in sorted(answers.items())
        }
        return SizeGuess(sizes, total / len(answers))

    def judge(self, guess: SizeGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        return judge_sizes(self, guess, auxiliary, seconds)


def mechanism_of(facts: PublicFacts) -> SizeMechanism:
    """The size mechanism that the facts describe.

    Raises:
        ConfigError: sizes were not randomised.
    """
    told = facts.privacy.get("size")
    if told is None:
        raise ConfigError("sizes were not randomised; what was sent is in the transcript's .sizes")
    mechanism: SizeMechanism = choose(SIZE_MECHANISMS, told, "privacy.size", SizeMechanism)
    return mechanism


def judge_sizes(attack: Attack, guess: SizeGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
    """The result of believed sizes; ``truth["sizes"]`` holds the true ones of all clients."""
    true = auxiliary.answer("sizes").double().numpy()
    clients = list(guess.sizes)
    if not clients or max(clients) >= len(true):
        raise ConfigError(f"the truth has the sizes of {len(true)} clients, and the attack found those of {clients}")
    believed = np.array([guess.sizes[client] for client in clients])
    everybody = np.full(len(clients), guess.everybody)
    return AttackResult(
        attack=attack.name,
        primary="relative_error",
        metrics=_measures(believed, true[clients]),
        nulls={
            "estimated mean size": _measures(everybody, true[clients]),
            "true mean size": _measures(np.full(len(clients), true.mean()), true[clients]),
        },
        seconds=seconds,
        units=len(clients),
        unit="client",
        settings=vars(attack) | {},
    )


def _measures(believed: np.ndarray, true: np.ndarray) -> dict[str, Measure]:
    found = {
        "relative_error": mean_of(np.abs(believed - true) / true, least=0),
        "exact_match": proportion(int((np.round(believed) == true).sum()), len(true)),
    }
    larger, smaller = np.nonzero(true[:, None] >= 2 * true[None, :])
    if len(larger):
        won = np.sign(believed[larger] - believed[smaller])
        found["auc_twice"] = Measure(float((won.mean() + 1) / 2))
    return found
