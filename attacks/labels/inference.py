"""Which labels the clients hold, and how many of each: the attacks on label distributions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from attacks.attack import Attack, Choice, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.labels.calibration_batches import Dummy, DummyBatches, PureBatches
from attacks.labels.llg import calibrate, llg, row_sums
from attacks.metrics.counts import exact_match, l1_error, multiset_accuracy
from attacks.metrics.measure import Measure, mean_of
from attacks.observations.head_gradients import ClassGradients, HeadGradient, class_gradients, predictions
from attacks.observations.label_counts import counts_by_regression, integer_counts
from attacks.observations.messages import HeadObservation, head_observations
from attacks.observations.update_labels import label_shares, shares_by_regression
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.simulation.transcript import Transcript
from privfl.validation import check_choice, check_count

Method = Literal["regression", "bias"]
Variant = Literal["plain", "dummy", "auxiliary"]


@dataclass(frozen=True)
class LabelGuess:
    """Believed label shares [C] by client, the exact sizes that were sent, and what the nulls believe of everybody."""

    shares: Mapping[int, Tensor]
    sizes: Mapping[int, float]
    nulls: Mapping[str, Tensor]


@dataclass(frozen=True)
class LabelInference(Attack):
    """What attacks on label distributions share: who is judged, by which measures, against which nulls.

    Measures over the clients that took part: ``multiset_accuracy`` (the share of labels found, 1 − total variation),
    ``total_variation``, ``present_recall`` (of the k classes that a client holds, how many are among the k with the
    largest believed shares), and where exact sizes were sent ``exact_match`` and ``l1_error`` of the rounded counts.
    Nulls: the label shares of the public data, and equal shares. The judge needs ``truth["counts"]`` [clients, C].

    Args:
        rounds: how many rounds are read, from the first; a client's beliefs are averaged.
    """

    observer: ClassVar[Observer] = "server"
    rounds: int = 1

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s rounds", self.rounds)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> LabelGuess:
        public, classes = auxiliary.need_public(), seen.facts.classes
        knowledge = PublicKnowledge(public, classes)
        found: dict[int, list[Tensor]] = defaultdict(list)
        sizes: dict[int, float] = {}
        for number in range(min(self.rounds, len(seen))):
            for observation in head_observations(seen, number):
                shares = self.shares(observation, knowledge)
                for member in observation.members:
                    found[member].append(shares)
                if observation.examples is not None and len(observation.members) == 1:
                    sizes[observation.members[0]] = observation.examples
        if not found:
            raise ConfigError(f"nobody sent anything in the first {self.rounds} rounds; read more of them")
        return LabelGuess(
            {client: torch.stack(beliefs).mean(0) for client, beliefs in sorted(found.items())},
            sizes,
            null_shares(public, classes),
        )

    def shares(self, observation: HeadObservation, knowledge: PublicKnowledge) -> Tensor:
        """The believed label shares [C], float64, behind one message."""
        raise ConfigError(f"{type(self).__name__} is no attack by itself; use 'label-counts' or 'llg'")

    def judge(self, guess: LabelGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        return judge_shares(self, guess, auxiliary, seconds)


@dataclass(frozen=True)
class LabelCounts(LabelInference):
    """The labels of every client from the gradient of the head: the identity n_c = B(p̄_c − ∂L/∂b_c) and its kin.

    Works on one full-batch step, on FedSampling's sums, and on updates of many local steps, whose mean gradient is
    −Δ/(ηK) with K corrected for momentum. Against a secure sum it finds the cohort's label shares, which it then
    believes of every member. Differs from the published forms in its default, which regresses the whole head on the
    mean gradients of public examples of each class.

    Args:
        method: ``"regression"``, or ``"bias"``: the identity with the mean predictions of the public data, before and
            after local training.
    """

    name: ClassVar[str] = "label-counts"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("counts",))
    method: Method = "regression"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("label-counts' method", self.method, get_args(Method))

    def shares(self, observation: HeadObservation, knowledge: PublicKnowledge) -> Tensor:
        head = observation.gradient
        models = [observation.before]
        if observation.after is not observation.before:
            models.append(observation.after)
        if self.method == "regression":
            bias = head.bias is not None
            ends = [knowledge.gradients(model, bias, keep=model is models[0]) for model in models]
            return shares_by_regression(head, ends[0], ends[-1])
        if head.bias is None:
            raise ConfigError("the head has no bias, which method = 'bias' reads; use method = 'regression'")
        if observation.steps is None:
            raise ConfigError(
                "method = 'bias' must know the number of local steps, which depends on sizes that were not sent; use "
                "method = 'regression', or attack a run with training.steps"
            )
        means = [predictions(model, knowledge.public.inputs).mean(0) for model in models]
        gradient = head.bias
        if observation.summed:
            auxiliary = knowledge.gradients(models[0], True, keep=True)
            chosen = float(counts_by_regression(head.vector(), auxiliary, signed=True).sum())
            gradient = gradient / max(chosen, 1.0)
        return label_shares(gradient, means[0], means[-1])


@dataclass(frozen=True)
class LLG(LabelInference):
    """Label leakage from gradients (Wainakh et al., PoPETs 2022): LLG, LLG* and LLG+ on the row sums of the head.

    Args:
        variant: ``"plain"`` (LLG), ``"dummy"`` (LLG*: impact and offsets from dummy inputs) or ``"auxiliary"`` (LLG+:
            from public examples).
        dummy: LLG*'s inputs: ``zeros``, ``ones``, or ``random``, uniform in [0, 1].
        labels: how many labels are looked for where exact sizes were not sent.
        repeats: batches for every class of the calibration; constant dummies need one.
        seed: decides what these hold.
    """

    name: ClassVar[str] = "llg"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("counts",))
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice("variant", "plain", "LLG", "Wainakh et al., PoPETs 2022"),
        Choice("variant", "dummy", "LLG*", "Wainakh et al., PoPETs 2022"),
        Choice("variant", "auxiliary", "LLG+", "Wainakh et al., PoPETs 2022"),
    )
    variant: Variant = "auxiliary"
    dummy: Dummy = "ones"
    labels: int = 100
    repeats: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("llg's variant", self.variant, get_args(Variant))
        check_choice("llg's dummy", self.dummy, get_args(Dummy))
        check_count("llg's labels", self.labels)
        check_count("llg's repeats", self.repeats)

    def shares(self, observation: HeadObservation, knowledge: PublicKnowledge) -> Tensor:
        head: HeadGradient = observation.gradient
        wanted = self.labels if observation.examples is None else round(observation.examples)
        if observation.summed:
            raise ConfigError("llg reads mean gradients, and fedsampling sends sums; use 'label-counts'")
        calibration = None
        public, classes = knowledge.public, knowledge.classes
        if self.variant == "dummy":
            made_up = DummyBatches(self.dummy, (wanted, *public.inputs.shape[1:]), self.seed)
            repeats = self.repeats if self.dummy == "random" else 1
            calibration = calibrate(observation.before, made_up, classes, repeats=repeats)
        elif self.variant == "auxiliary":
            pure = PureBatches(public, wanted, self.seed)
            calibration = calibrate(observation.before, pure, classes, repeats=self.repeats)
        counts = llg(row_sums(head.weight), wanted, calibration)
        return counts.double() / counts.sum()


@dataclass(frozen=True)
class DisclosedCounts(Attack):
    """The label counts that ReBaFL's clients upload with their prototypes: no inference, they are disclosed.

    Classes of fewer than ``n_min`` examples are sent as 0, so what is lost is small classes only. Under a secure sum
    the counts of the cohort are divided among its members. Judged as :class:`LabelInference`.
    """

    name: ClassVar[str] = "disclosed-counts"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("prototype_counts",), public=True, truth=("counts",))

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> LabelGuess:
        classes = seen.facts.classes
        found: dict[int, Tensor] = {}
        for one in seen:
            exchange = one.training
            if exchange.uploads is None:
                sent = {member: exchange.total.get("prototype_counts") for member in exchange.members}
            else:
                sent = {client: upload.get("prototype_counts") for client, upload in exchange.uploads.items()}
            for client, counts in sent.items():
                if counts is None:
                    raise ConfigError(f"{seen.facts.algorithm['name']} sends no label counts; use 'label-counts'")
                held = counts.double().clamp_min(0)
                if held.sum() > 0:
                    found.setdefault(client, held / held.sum())
        if not found:
            raise ConfigError("no client sent a label count; all classes may be below n_min, or no round was recorded")
        return LabelGuess(dict(sorted(found.items())), {}, null_shares(auxiliary.need_public(), classes))

    def judge(self, guess: LabelGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        return judge_shares(self, guess, auxiliary, seconds)


class PublicKnowledge:
    """The class gradients of ``public`` at the models of one attack; those of the latest model are kept."""

    def __init__(self, public: Records, classes: int) -> None:
        self.public, self.classes = public, classes
        self._latest: tuple[nn.Module, ClassGradients] | None = None

    def gradients(self, model: nn.Module, bias: bool, *, keep: bool) -> ClassGradients:
        """The class gradients at ``model``, which no one may change while they are kept."""
        if self._latest is not None and self._latest[0] is model:
            return self._latest[1]
        found = class_gradients(model, self.public.inputs, self.public.targets, self.classes, bias=bias)
        if keep:
            self._latest = (model, found)
        return found


def null_shares(public: Records, classes: int) -> dict[str, Tensor]:
    """What is believed of every client without a message: the shares of the public data, and equal shares; [C]."""
    held = torch.bincount(public.targets, minlength=classes).double()
    return {"public labels": held / held.sum(), "equal shares": torch.full((classes,), 1 / classes).double()}


def judge_shares(attack: Attack, guess: LabelGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
    """The result of believed shares; rows of ``truth["counts"]`` are clients."""
    counts = auxiliary.answer("counts").double()
    clients = list(guess.shares)
    if max(clients) >= len(counts):
        raise ConfigError(f"the truth has counts of {len(counts)} clients, and client {max(clients)} sent something")
    held = counts[clients]
    true = held / held.sum(1, keepdim=True)
    believed = torch.stack([guess.shares[client] for client in clients])
    metrics = _share_measures(believed, true)
    if all(client in guess.sizes for client in clients):
        whole = [integer_counts(guess.shares[c] * guess.sizes[c], round(guess.sizes[c])) for c in clients]
        metrics |= _count_measures(torch.stack(whole), held)
    nulls = {}
    for name, belief in guess.nulls.items():
        everybody = belief.expand(len(clients), -1)
        nulls[name] = _share_measures(everybody, true)
        if "exact_match" in metrics:
            totals = held.sum(1).round().long().tolist()
            nulls[name] |= _count_measures(torch.stack([integer_counts(belief * n, n) for n in totals]), held)
    return AttackResult(
        attack=attack.name,
        primary="multiset_accuracy",
        metrics=metrics,
        nulls=nulls,
        seconds=seconds,
        units=len(clients),
        unit="client",
        settings=vars(attack) | {},
    )


def _share_measures(believed: Tensor, true: Tensor) -> dict[str, Measure]:
    return {
        "multiset_accuracy": multiset_accuracy(believed.numpy(), true.numpy()),
        "total_variation": mean_of(((believed - true).abs().sum(1) / 2).numpy(), least=0, most=1),
        "present_recall": mean_of([_recall(*rows) for rows in zip(believed, true, strict=True)], least=0, most=1),
    }


def _recall(believed: Tensor, true: Tensor) -> float:
    """Of the k classes that are present, the share among the k with the largest believed shares; ties count in part."""
    present = true > 0
    count = int(present.sum())
    least = believed.sort(descending=True).values[count - 1]
    sure, tied = believed > least, believed == least
    room = (count - sure.sum()) / tied.sum()
    return float(((sure & present).sum() + room * (tied & present).sum()) / count)


def _count_measures(counts: Tensor, true: Tensor) -> dict[str, Measure]:
    return {
        "exact_match": exact_match(counts.numpy(), true.numpy()),
        "l1_error": l1_error(counts.numpy(), true.numpy()),
    }
