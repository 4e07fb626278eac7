"""GRP-FED: a global model that attends to clients that fare badly, and a local one held near it by a discriminator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Survey, Tensors, descend
from privfl.algorithms.fair.adaptive_weights import (
    capped,
    loss_weights,
    next_power,
    share,
    spread,
    spread_from_sums,
)
from privfl.algorithms.fair.discriminator import (
    DiscriminatorLoss,
    judged_terms,
    new_discriminator,
    personal_terms,
)
from privfl.algorithms.fair.loss_survey import LOSS, mean_loss, with_count
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.randomness import torch_stream
from privfl.validation import check_count, check_number

BATCH_LOSS = "batch-losses"


@dataclass(frozen=True)
class GRPFed(Algorithm):
    """GRP-FED (Chou et al., arXiv 2108.13858), algorithm 1; a network's body is the extractor, its head the classifier.

    The server averages with weights λ_m ∝ L_m^q over the participants and adapts q to the spread σ of their losses,
    equations (2) and (3). A client trains the global model, and a local extractor through the frozen received head on
    ``β·task loss + (1 − β)·L_R``, where L_R pays for features that its discriminator tells from global ones, equations
    (4) to (6). Local extractor and discriminator stay with the client and enter no upload. The training settings
    (momentum too, which starts anew in every round) hold for all of them.

    Differs from the paper: the discriminator minimises the cross-entropy, because the printed loss is unbounded below
    (the local extractor's L_R is the printed one); q stays in [0, ``q_max``], and where it is if fewer than two losses
    are known; a client drawn twice counts once. The paper's q_0 = 10 leaves about one effective client of many; ``q=1``
    with ``loss_report="pre_eval"`` does not.

    Args:
        q: initial power q_0 in [0, ``q_max``].
        q_step: η_q ≥ 0 of equation (2); q changes by at most 2η_q in a round.
        q_max: largest power.
        beta: β in [0, 1].
        hidden: width of the discriminator.
        loss_report: the L_m that a client reports. ``last_epoch_mean``: mean over the last local epoch, before each
            step; ``last_batch``: the last batch alone, as algorithm 1 reads literally; ``pre_eval`` and ``post_eval``:
            mean over all of the client's data before or after training. ``pre_eval`` alone measures the shared model.
        loss_bound: L_max > 0, bound of one sample's loss in the report, infinite for none. A NoisyTotal for ``loss``
            adds noise to the sum of (loss/L_max, 1)/√2, of norm at most 1; ``pre_eval`` and ``post_eval`` only.
        lambda_max: no weight exceeds it (water-filling); 1 is no cap. Below 1/participants all weigh alike.
        sigma_scope: σ over this round's ``participants``, or over the ``last_known`` loss of every client.
        form: ``each``: the server sees every client's update and loss. ``sums``: two passes of sums, of (L, L², 1) and
            of ((L/s)^q·update, (L/s)^q), which is all that secure aggregation shows; needs ``pre_eval``.
        disc_loss: how discriminator and local extractor oppose each other, see
            :mod:`privfl.algorithms.fair.discriminator`. With ``"bce"`` the adversary does not let go of a local
            extractor that it rejects, and local models end far below the printed form's.
        disc_ref: global features come from the ``broadcast`` extractor, or from the ``current`` one in training.
        personal_head: a client's own model reads its features with the head it trained with (``paired``), or with the
            server's ``latest``. Clients that never trained use the global model.
    """

    name: ClassVar[str] = "grp-fed"
    needs_classes: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("personal", "discriminator")
    statistics: ClassVar[tuple[str, ...]] = (LOSS,)
    totals_of_batches: ClassVar[tuple[str, ...]] = (BATCH_LOSS,)
    local_only: ClassVar[bool] = True
    q: float = 10.0
    q_step: float = 0.5
    q_max: float = 50.0
    beta: float = 0.5
    hidden: int = 128
    loss_report: Literal["last_epoch_mean", "post_eval", "pre_eval", "last_batch"] = "last_epoch_mean"
    loss_bound: float = math.inf
    lambda_max: float = 1.0
    sigma_scope: Literal["participants", "last_known"] = "participants"
    form: Literal["each", "sums"] = "each"
    disc_loss: DiscriminatorLoss = "saturating"
    disc_ref: Literal["broadcast", "current"] = "broadcast"
    personal_head: Literal["paired", "latest"] = "paired"

    def __post_init__(self) -> None:
        check_number("grp-fed's q_max", self.q_max, 0, above=True)
        check_number("grp-fed's q", self.q, 0, self.q_max)
        check_number("grp-fed's q_step", self.q_step, 0)
        check_number("grp-fed's beta", self.beta, 0, 1)
        if not self.loss_bound > 0:
            raise ConfigError(
                f"grp-fed's loss_bound is {self.loss_bound!r}; give a positive number, or inf for no bound"
            )
        check_number("grp-fed's lambda_max", self.lambda_max, 0, 1, above=True)
        check_count("grp-fed's hidden", self.hidden)
        if self.form == "sums":
            self._check_sums()
        # Many totals of one round cannot share one noisy total: they go by a name of their own.
        taken = {"sums": ()}.get(self.form, (LOSS,) if self.reports_once else self.totals_of_batches)
        object.__setattr__(self, "statistics", taken)

    def _check_sums(self) -> None:
        if self.loss_report != "pre_eval":
            raise ConfigError(
                f"grp-fed's form is 'sums' and its loss_report '{self.loss_report}', which is known only after "
                "training, when the weights must be; use loss_report = 'pre_eval'"
            )
        for name, only in (("lambda_max", 1), ("sigma_scope", "participants")):
            if getattr(self, name) != only:
                raise ConfigError(
                    f"grp-fed's form is 'sums' and its {name} {getattr(self, name)!r}, which needs to know whose loss "
                    f"is whose; use {name} = {only!r}, or form = 'each'"
                )

    @property
    def reports_once(self) -> bool:
        """Whether the report is one total over all of the client's data."""
        return self.loss_report in ("pre_eval", "post_eval")

    def survey(self) -> Algorithm | None:
        return MomentsSurvey(self) if self.form == "sums" else None

    def fields(self) -> tuple[Field, ...]:
        if self.form == "sums":
            return Field("update", weighted=False), Field("share", shape=(), weighted=False)
        return Field("update", combine="each"), Field("loss", combine="each", shape=())

    def start(self, parameters: Tensor) -> Tensors:
        def number(value: float) -> Tensor:
            return torch.tensor(value, dtype=torch.float64, device=parameters.device)

        server = {"parameters": parameters.clone(), "q": number(self.q)}
        server |= {name: number(float("nan")) for name in ("sigma", "mean_loss", "max_loss", "effective_clients")}
        if self.sigma_scope == "last_known":
            server["losses"] = number(float("nan")).repeat(self.context.clients)
        if self.form == "sums":
            server |= {"scale": number(1.0), "lost": number(0.0)}
        return server

    def broadcast(self, server: Tensors) -> Tensors:
        names = ("parameters", "q", "scale") if self.form == "sums" else ("parameters",)
        return {name: server[name] for name in names}

    def initial_client_state(self, client: int) -> Tensors:
        stream = torch_stream(self.context.seed, "discriminator", client)
        like = flatten(self.context.network())
        fresh = new_discriminator(self.context.feature_dim, self.hidden, stream, like.dtype)
        client_state = {"discriminator": fresh.to(like.device)}
        # Engines measure themselves by training without the survey that precedes it in a run.
        return {**client_state, "loss": like.new_ones(())} if self.form == "sums" else client_state

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        local = super().begin(received, client_state, training)
        own = client_state["personal"] if "personal" in client_state else flatten(self.context.network())
        local["personal"] = torch.where(self.context.head, received["parameters"], own)
        local["discriminator"] = client_state["discriminator"].clone()
        if training.momentum:
            for name in self.keeps:
                local[f"{name}_momentum"] = torch.zeros_like(local[name])
        local["tally"] = received["parameters"].new_zeros(2)
        if self.form == "sums":
            local["loss"] = client_state["loss"]
        return local

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        if self.loss_report == "pre_eval" and self.form == "each":
            local["tally"] = self.losses(local["parameters"], everything, client, LOSS)

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if not self.reports_once:
            tally = self.losses(local["parameters"], batch, client, BATCH_LOSS)
            if self.loss_report == "last_epoch_mean":
                local["tally"] = local["tally"] + tally * batch.last.to(tally.dtype)
            else:
                local["tally"] = tally
        super().step(local, received, batch, client, training)

        def descend_in(name: str, gradient: Tensor) -> None:
            slot = {"parameters": local[name]}
            if training.momentum:
                slot["momentum"] = local[f"{name}_momentum"]
            descend(slot, gradient, training)

        given = {"discriminator": local["discriminator"]}
        shape: dict[str, Any] = {"hidden": self.hidden, "kind": self.disc_loss}
        both = partial(personal_terms, client.loss, beta=self.beta, **shape)
        descend_in("personal", client.local_only_gradient(both, local["personal"], batch, given))
        local["personal"] = torch.where(self.context.head, received["parameters"], local["personal"])

        def judging(extractor: Tensor, *, is_global: bool) -> Tensor:
            terms = partial(judged_terms, is_global=is_global, **shape)
            return client.local_only_gradient(terms, extractor, batch, given, wrt="discriminator")

        reference = received["parameters"] if self.disc_ref == "broadcast" else local["parameters"]
        of_global = judging(reference, is_global=True)
        descend_in("discriminator", of_global + judging(local["personal"], is_global=False))

    def conclude(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        if self.loss_report == "post_eval":
            local["tally"] = self.losses(local["parameters"], everything, client, LOSS)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        update = local["parameters"] - received["parameters"]
        if self.form == "each":
            return {"update": update, "loss": mean_loss(local["tally"], self.loss_bound)}
        factor = share(local["loss"], received["scale"], received["q"])
        return {"update": factor * update, "share": factor}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        if self.form == "sums":
            return self._from_sums(server, total)
        losses = total["loss"].double()
        after = {**server, "mean_loss": losses.mean(), "max_loss": losses.max()}
        compared = losses
        if self.sigma_scope == "last_known":
            after["losses"] = server["losses"].index_copy(0, round.members.to(losses.device), losses)
            compared = after["losses"][after["losses"].isfinite()]
        if len(compared) > 1:
            after |= self.adapted(server, spread(compared))
        weights = capped(loss_weights(losses, after["q"]), self.lambda_max)
        step = weights.to(total["update"].dtype) @ total["update"]
        return {
            **after,
            "effective_clients": weights.square().sum().reciprocal(),
            "parameters": server["parameters"] + step,
        }

    def _from_sums(self, server: Tensors, total: Tensors) -> Tensors:
        if not bool(total["share"] > 0):  # every share underflowed: there is no mean
            return {**server, "lost": server["lost"] + 1}
        return {**server, "parameters": server["parameters"] + total["update"] / total["share"]}

    def adapted(self, server: Tensors, sigma: Tensor) -> Tensors:
        """σ and q of the server once the losses of a round have the spread ``sigma`` [], equation (2)."""
        power = next_power(server["q"], server["sigma"], sigma, self.q_step, self.q_max)
        return {"sigma": sigma, "q": power}

    def losses(self, parameters: Tensor, batch: Batch, client: Door, name: str) -> Tensor:
        """Σ over ``batch`` of (loss, 1), [2], scaled as :func:`privfl.algorithms.fair.loss_survey.with_count` says."""
        return client.total(with_count(client.loss, self.loss_bound), parameters, batch, name=name)

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        names = ("q", "sigma", "mean_loss", "max_loss", "effective_clients", "scale")
        return {name: float(server[name]) for name in names if name in server and bool(server[name].isfinite())}

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        own = client_state.get("personal", server["parameters"])
        if self.personal_head == "latest":
            own = torch.where(self.context.head, server["parameters"], own)
        return {"personal": own}

    def warnings(self, server: Tensors) -> list[str]:
        found = []
        if float(server.get("effective_clients", torch.tensor(2.0))) < 2:
            found.append(
                f"grp-fed's last mean had {float(server['effective_clients']):.2f} effective clients: the global model "
                "is nearly a copy of one client's; set lambda_max, or a lower q_max"
            )
        if self.form == "sums" and float(server["lost"]) > 0:
            found.append(
                f"in {int(server['lost'])} rounds all shares (L/s)^q underflowed and the model stayed; lower q_max"
            )
        return found


@dataclass(frozen=True)
class MomentsSurvey(Survey):
    """First pass of the form ``sums``: Σ(L, L², 1) of the losses on the model that is about to be sent.

    The server learns from it mean, spread, q, and a scale s that no loss exceeds; each client keeps its loss.

    Args:
        asks: the algorithm that the survey belongs to.
    """

    name: ClassVar[str] = "grp-fed-survey"
    keeps: ClassVar[tuple[str, ...]] = ("loss",)
    statistics: ClassVar[tuple[str, ...]] = (LOSS,)
    asks: GRPFed

    def fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, shape=(), weighted=False) for name in ("loss", "square", "one"))

    def initial_client_state(self, client: int) -> Tensors:
        return {}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {"parameters": received["parameters"], "loss": received["parameters"].new_zeros(())}

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        tally = self.asks.losses(local["parameters"], everything, client, LOSS)
        local["loss"] = mean_loss(tally, self.asks.loss_bound)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        loss = local["loss"]
        return {"loss": loss, "square": loss.square(), "one": torch.ones_like(loss)}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        mean, sigma, scale = spread_from_sums(total["loss"], total["square"], total["one"])
        after: Mapping[str, Tensor] = self.asks.adapted(server, sigma) if bool(total["one"] > 1) else {}
        return {**server, **after, "mean_loss": mean, "scale": scale}
