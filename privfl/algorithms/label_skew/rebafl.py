"""ReBaFL: re-balanced local heads for label-skewed clients that drop out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from privfl.algorithms.base import Round, Tensors, descend
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.label_skew.balanced_softmax import (
    balanced_cross_entropy,
    balanced_loss,
    label_counts,
    smoothed_prior,
)
from privfl.algorithms.label_skew.prototypes import (
    Memory,
    Missing,
    aggregated,
    augment,
    augmented_prior,
    class_features,
    expected_augmented_terms,
    overridden,
    split_total,
    withhold,
)
from privfl.errors import ConfigError
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.privacy.loss import Loss, coupled, of_features
from privfl.validation import check_count, check_number

Source = Literal["paper", "code", "global_only"]


@dataclass(frozen=True)
class ReBaFL(FedAvg):
    """ReBaFL (Xu et al., arXiv 2303.06314): FedAvg with a relaxed balanced soft-max and feature augmentation.

    A client minimises, over mini-batches, equation (16):
    ``mean_j CE(z_j + log p̂_i, y_j) + μ·mean_k CE(head(h̃_k) + log p̃, b_k)`` with the smoothed label prior
    ``p̂_i = (1 − ε)·n_i,c / n_i + ε/C`` and features ``h̃ = P[b] + λ·(h − P[a])`` moved from their class a to the class b
    that their place in the batch names. The second term trains the head alone. It is off in round 0, and while no
    prototype is known. A client with one class moves its features towards the prototypes of the others, as §4.1 of the
    paper argues; the released code leaves such clients out. Clients send their update, and sums and counts of their
    features by class, from which the server forms the prototypes P of the next round.

    ε = 1, μ = 0 is FedAvg; ε = 0, μ = 0 is BSM-FedAvg; μ = 0 alone is the paper's "R-BSM" and sends no prototypes;
    ε = 1 alone is its "F-Aug", plain cross-entropy in both terms.

    Differs from the paper: sums and counts travel instead of means and counts, so that their sum over the cohort is all
    the server needs, and classes below ``n_min`` are withheld. The label histogram is taken anew in every round. The
    paper's code trains with momentum 0.5, which the text does not mention; it is one of the training settings here.

    Under DP-SGD use ``per_sample=True`` and ``proto_source="global_only"``, a finite ``feature_norm`` and
    ``NoisyTotal`` mechanisms for ``label_prior`` (bound 1) and ``prototypes`` (bound √2); each is charged in every
    round. A total without a mechanism makes the claim ∞.

    Args:
        epsilon: ε in [0, 1], the share of the uniform prior.
        mu: μ ≥ 0, weight of the augmented loss.
        lam: λ ≥ 0, scale of the translated residual; the paper always has 1.
        aug_missing: what becomes of a feature without a prototype to go to: see
            :func:`privfl.algorithms.label_skew.prototypes.augment`. ``"keep"`` is the released code.
        proto_source: ``"paper"``: the received prototypes, overridden by the client's own for its own classes, computed
            with the received extractor, equation (18). ``"global_only"``: the received ones alone. ``"code"``: as
            ``"global_only"``, and clients with a single class neither augment nor send a prototype, as released.
        proto_memory: ``"none"``: the prototype of a class that nobody sent vanishes, ``"last"``: it stays.
        n_min: classes with fewer samples send zero sum and zero count, so that no feature of a few people is sent.
        feature_norm: L2 norm to which features are clipped before they are summed; ``inf`` leaves them as they are.
        per_sample: every term of the loss depends on its own sample alone: targets are averaged over instead of
            assigned by place, and p̃ is uniform. No client is then told to stop by its own number of classes.
    """

    name: ClassVar[str] = "rebafl"
    statistics: ClassVar[tuple[str, ...]] = ("label_prior", "prototypes")
    needs_classes: ClassVar[bool] = True
    epsilon: float = 0.01
    mu: float = 0.1
    lam: float = 1.0
    aug_missing: Missing = "keep"
    proto_source: Source = "paper"
    proto_memory: Memory = "none"
    n_min: int = 5
    feature_norm: float = math.inf
    per_sample: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rebafl's epsilon", self.epsilon, 0, 1)
        check_number("rebafl's mu", self.mu, 0)
        check_number("rebafl's lam", self.lam, 0)
        check_count("rebafl's n_min", self.n_min)
        if not self.feature_norm > 0:
            raise ConfigError(f"rebafl's feature_norm is {self.feature_norm!r}; give a positive number, or inf")
        labels = self.epsilon < 1 or self.skips_single_classes
        taken = (("label_prior", labels), ("prototypes", self.augments))
        # A total that is not taken must cost nothing.
        object.__setattr__(self, "statistics", tuple(name for name, needed in taken if needed))

    def dpsgd_refusal(self) -> str:
        if self.epsilon == 0:
            return "rebafl with epsilon = 0 masks classes by a client's own labels; use epsilon > 0, such as 0.01"
        if self.mu > 0 and not self.per_sample:
            return "rebafl's augmented loss couples the samples of a batch; set per_sample = true, or mu = 0"
        if self.mu > 0 and self.proto_source == "paper":
            return (
                "rebafl with proto_source = 'paper' lets every sample move every augmented feature; set proto_source "
                "= 'global_only'"
            )
        return ""

    @property
    def augments(self) -> bool:
        """Whether there is an augmented loss, and with it prototypes."""
        return self.mu > 0

    @property
    def skips_single_classes(self) -> bool:
        """Whether a client stops augmenting because of its own number of classes."""
        return self.augments and self.proto_source == "code" and not self.per_sample

    def fields(self) -> tuple[Field, ...]:
        if not self.augments:
            return (Field("update"),)
        classes, width = self.context.classes, self.context.feature_dim
        return (
            Field("update"),
            Field("prototype_sums", shape=(classes, width), weighted=False),
            Field("prototype_counts", shape=(classes,), weighted=False),
        )

    def start(self, parameters: Tensor) -> Tensors:
        server = super().start(parameters)
        if not self.augments:
            return server
        classes, width = self.context.classes, self.context.feature_dim
        known = torch.zeros(classes, dtype=torch.bool, device=parameters.device)
        return {**server, "prototypes": parameters.new_zeros(classes, width), "known": known}

    def broadcast(self, server: Tensors) -> Tensors:
        names = ("parameters", "prototypes", "known") if self.augments else ("parameters",)
        return {name: server[name] for name in names}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        zeros = received["parameters"].new_zeros
        local["log_prior"] = zeros(self.context.classes)
        if self.augments:
            local["prototypes"], local["known"] = received["prototypes"], received["known"]
            local["weight"] = zeros(())
            local["sums"], local["counts"] = torch.zeros_like(received["prototypes"]), zeros(self.context.classes)
        return local

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """The smoothed label prior (2), and which prototypes serve in this round, and whether they do (10)."""
        if "label_prior" in self.statistics:
            statistic = partial(label_counts, classes=self.context.classes)
            counts = client.total(statistic, local["parameters"], everything, name="label_prior")
            local["log_prior"] = smoothed_prior(counts, self.epsilon).log().to(local["log_prior"].dtype)
        if not self.augments:
            return
        on = received["known"].any()
        if self.skips_single_classes:
            on = on & ((counts > 0).sum() > 1)
        local["weight"] = self.mu * on.to(local["weight"].dtype)
        if self.proto_source == "paper":
            total = client.total(partial(class_features, classes=self.context.classes), local["parameters"], everything)
            local["prototypes"], local["known"] = overridden(
                received["prototypes"], received["known"], *split_total(total)
            )

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        loss: Loss = balanced_loss
        names: tuple[str, ...] = ("log_prior",)
        if self.augments:
            loss = self.separable_loss if self.per_sample else self.loss
            names = ("log_prior", "prototypes", "known", "weight")
        given = {name: local[name] for name in names}
        descend(local, client.gradient(loss, local["parameters"], batch, given), training)

    def conclude(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """Sums of features and counts by class, with the trained extractor (11)."""
        if not self.augments:
            return
        statistic = partial(class_features, classes=self.context.classes, feature_norm=self.feature_norm)
        total = client.total(statistic, local["parameters"], everything, name="prototypes")
        sums, counts = withhold(*split_total(total, self.feature_norm), self.n_min)
        if self.proto_source == "code":
            several = (counts > 0).sum() > 1
            sums, counts = torch.where(several, sums, 0), torch.where(several, counts, 0)
        local["sums"], local["counts"] = sums, counts

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        upload = super().finish(local, received, training)
        if self.augments:
            upload["prototype_sums"], upload["prototype_counts"] = local["sums"], local["counts"]
        return upload

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        after = super().aggregate(server, total, round, training)
        if not self.augments:
            return after
        prototypes, known = aggregated(
            server["prototypes"],
            server["known"],
            total["prototype_sums"],
            total["prototype_counts"],
            n_min=self.n_min,
            memory=self.proto_memory,
        )
        return {**after, "prototypes": prototypes, "known": known}

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        return {"known_prototypes": float(server["known"].sum())} if self.augments else {}

    @of_features
    @coupled
    def loss(
        self,
        network: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        *,
        present: Tensor,
        log_prior: Tensor,
        prototypes: Tensor,
        known: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Equation (16) as one term per row [B], whose mean over the rows that are ``present`` is the objective."""
        features: Tensor = network.features(inputs)  # type: ignore[operator]
        augmented = augment(features, targets, prototypes, known, present, scale=self.lam, missing=self.aug_missing)
        prior = augmented_prior(augmented, self.context.classes, self.epsilon)
        own, moved = network.head(features), network.head(augmented.features)  # type: ignore[operator]
        terms = balanced_cross_entropy(moved, augmented.labels, prior.log())
        used = augmented.used.sum().clamp_min(1).to(features.dtype)
        share = present.sum() / used  # the mean runs over the rows that are used
        extra = torch.where(augmented.used, terms, 0) * share
        return balanced_cross_entropy(own, targets, log_prior) + weight * extra

    @of_features
    def separable_loss(
        self,
        network: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        log_prior: Tensor,
        prototypes: Tensor,
        known: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """The per-sample form of :meth:`loss` [B]; for DP-SGD."""
        features: Tensor = network.features(inputs)  # type: ignore[operator]
        extra = expected_augmented_terms(
            network.head,  # type: ignore[arg-type]
            features,
            targets,
            prototypes,
            known,
            scale=self.lam,
            missing=self.aug_missing,
        )
        return balanced_cross_entropy(network.head(features), targets, log_prior) + weight * extra  # type: ignore[operator]
