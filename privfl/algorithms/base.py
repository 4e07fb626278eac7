"""The contract of an algorithm: one frozen dataclass whose fields are its hyper-parameters.

An algorithm says what the server keeps (:meth:`Algorithm.start`, :meth:`Algorithm.aggregate`), what clients receive
(:meth:`Algorithm.broadcast`), what a client keeps privately between rounds (:attr:`Algorithm.keeps`), how a client
trains (:meth:`Algorithm.begin`, :meth:`Algorithm.prepare`, :meth:`Algorithm.step`, :meth:`Algorithm.conclude`,
:meth:`Algorithm.personalise`, :meth:`Algorithm.finish`) and what it uploads (:meth:`Algorithm.fields`). Where the
weights of a round depend on answers of its cohort, a first phase (:meth:`Algorithm.survey`) collects these.

``begin``, ``prepare``, ``step``, ``conclude``, ``personalise`` and ``finish`` are written in ordinary PyTorch for *one*
client on dictionaries of tensors. They touch data only through the door that is handed to them, do not branch on values
of tensors, and may change the tensors of ``local`` in place, so that an engine can run them one by one, side by side,
or stacked over the cohort.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.federation.context import RunContext
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import Epochs, LocalTraining, Plan
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import Settings

Weighting = Literal["size", "uniform"]
"""How clients count in a mean: by the number of their examples, or alike."""

Tensors = dict[str, Tensor]
"""Named tensors: server state, a broadcast, a client's local state, an upload."""


@dataclass(frozen=True)
class Round:
    """What the server knows when it aggregates.

    Where noise is added to sums, or hides clients, all of it is public: ``members`` are those who were asked. Where the
    claim for clients is amplified by a secret draw of the cohort, ``cohort`` is the expected number, and ``members``
    and ``weights`` are empty. Divide by ``weight``.

    Args:
        weight: Σ of the aggregation weights of the uploads that arrived; under client-level noise the public number of
            clients that a cohort has (in expectation).
        cohort: clients that were asked to train.
        clients: clients of the whole federation.
        samples: number of samples of the whole federation, exact or estimated; ``None`` if nobody asked for sizes.
        number: which round this is, from 0.
        members: the clients whose uploads arrived, int64 [m], ascending.
        weights: their weights, float64 [m].
        generator: the server's own random stream of this round, from the experiment's public seed.
    """

    weight: float
    cohort: float
    clients: int
    samples: float | None = None
    number: int = 0
    members: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    weights: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    generator: torch.Generator = field(default_factory=torch.Generator)


@dataclass(frozen=True)
class Algorithm(Settings):
    """Base of all algorithms, with plain local SGD as the default training.

    Class attributes an algorithm may set:
        name: how configuration files call it.
        keeps: tensors of ``local`` that a client keeps between rounds; none for most algorithms.
        statistics: names of the totals that influence an upload, taken once each in every round.
        totals_of_batches: those of them that are taken of every batch instead, for which no noise is accounted.
        local_only: it takes gradients that stay with the client (:meth:`Door.local_only_gradient`).
        uses_rounds: what it does depends on :attr:`RunContext.rounds`, so that a run cannot go on for more of them.
        pools_data: training sees all clients' data as one (the centralised reference).
        ensemble: there is no server model; evaluation averages the soft-max outputs of the clients' own models.
        needs_classes: it works with the class of each row, so it is for classification only.
        counts_by: the field that says how clients count; empty if that is no setting of the algorithm.
        usual_weighting: how they count where neither that field nor the experiment says it.
    """

    name: ClassVar[str]
    keeps: ClassVar[tuple[str, ...]] = ()
    statistics: ClassVar[tuple[str, ...]] = ()
    totals_of_batches: ClassVar[tuple[str, ...]] = ()
    local_only: ClassVar[bool] = False
    uses_rounds: ClassVar[bool] = False
    pools_data: ClassVar[bool] = False
    ensemble: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    counts_by: ClassVar[str] = ""
    usual_weighting: ClassVar[Weighting] = "size"

    @property
    def weighs(self) -> str:
        """How clients count: what the algorithm's own field says, else :attr:`usual_weighting`."""
        own: str | None = getattr(self, self.counts_by) if self.counts_by else None
        return own or self.usual_weighting

    def following(self, weighting: Weighting | None) -> Self:
        """This algorithm in an experiment whose clients count by ``weighting``; ``None`` leaves it to the algorithm.

        Algorithms without such a setting are about the weights, or have one way only, and stay as they are.

        Raises:
            ConfigError: the algorithm was given another ``weighting`` of its own.
        """
        if not self.counts_by:
            return self
        own = getattr(self, self.counts_by)
        if own is not None and weighting is not None and own != weighting:
            raise ConfigError(
                f"weighting is '{weighting}' for the experiment and {self.counts_by} is '{own}' for {self.name}: leave "
                "one of them out"
            )
        followed = copy.copy(self)
        object.__setattr__(followed, self.counts_by, own or weighting or self.usual_weighting)
        return followed

    def bind(self, context: RunContext) -> Self:
        """This algorithm as part of a run, whose public facts :attr:`context` then tells."""
        bound = copy.copy(self)
        object.__setattr__(bound, "_context", context)
        return bound

    @property
    def context(self) -> RunContext:
        """Public facts of the run.

        Raises:
            ConfigError: the algorithm is not part of a run yet; :meth:`bind` makes it one.
        """
        context: RunContext | None = getattr(self, "_context", None)
        if context is None:
            raise ConfigError(f"{self.name} needs to know its run; call algorithm.bind(context) first")
        return context

    def survey(self) -> Algorithm | None:
        """A first phase of every round, on the same cohort, whose answers decide how the round goes on."""
        return None

    def fields(self) -> tuple[Field, ...]:
        """What one client uploads in one round."""
        return (Field("update"),)

    def weights(self) -> Literal["uniform", "size", "server"]:
        """How uploads are summed: as they are, times the client's (reported) size, or as the server decides."""
        return "uniform"

    def server_weights(self, server: Tensors, clients: Tensor) -> Tensor:
        """The weights, float64 [m], that the server gives the uploads of ``clients``, int64 [m], in this round."""
        return torch.ones(len(clients), dtype=torch.float64)

    def dpsgd_refusal(self) -> str:
        """Why DP-SGD cannot protect this algorithm's training, with the mend; empty if it can."""
        return ""

    def asks_sizes(self) -> bool:
        """Whether the server needs to know how many samples there are before it can train."""
        return False

    def start(self, parameters: Tensor) -> Tensors:
        """The server's state before round 0, from the initial model ``parameters`` [size]."""
        return {"parameters": parameters.clone()}

    def with_size_estimate(self, server: Tensors, samples: float, contacted: float) -> Tensors:
        """The server's state once it knows about ``samples`` samples, of which a fraction ``contacted`` is asked."""
        return server

    def begin_round(self, server: Tensors, number: int) -> Tensors:
        """The server's state at the beginning of round ``number``, for what changes with the clock."""
        return server

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        """What a metrics line says of the server's state."""
        return {}

    def eval_parameters(self, server: Tensors) -> Tensor:
        """The parameters [size] that are tested."""
        return server["parameters"]

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        """A client's own models by name, the first of them the one it would use; none for most algorithms."""
        return {}

    def warnings(self, server: Tensors) -> list[str]:
        """What the user should know about the state that a run ended in, one sentence each."""
        return []

    def broadcast(self, server: Tensors) -> Tensors:
        """What every client of the cohort receives."""
        return {"parameters": server["parameters"]}

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        """How the client draws its batches in this round; ``usual`` is what the training settings say."""
        return usual

    def random_numbers(self) -> tuple[int, int]:
        """How many uniform and how many normal numbers a step asks for."""
        return 0, 0

    def initial_client_state(self, client: int) -> Tensors:
        """What ``client`` keeps before its first round."""
        return {}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        """The client's local state before its first step; the engine copies ``parameters`` before it is trained."""
        local = {"parameters": received["parameters"]}
        if training.momentum:
            local["momentum"] = torch.zeros_like(received["parameters"])
        return local

    def prepare(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """What happens before the first step, on all of the client's rows as one batch."""

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        """One local step: a gradient through the door, the data-independent terms, one SGD update.

        Under DP-SGD a batch gives exactly one gradient: two on one batch share the draw that amplifies, and would cost
        more than two draws (ε = 0.82 instead of 0.25 at rate 0.01, noise multiplier 1, δ = 1e-5).
        """
        gradient = client.gradient(client.loss, local["parameters"], batch)
        self.add_data_independent_gradient(gradient, local, received)
        descend(local, gradient, training)

    def add_data_independent_gradient(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        """Add the data-independent part of the gradient in place; it comes after clipping and noise."""

    def conclude(
        self, local: Tensors, received: Tensors, everything: Batch, client: Door, training: LocalTraining
    ) -> None:
        """What happens after the last step, on all of the client's rows as one batch."""

    def personal_plan(self, training: LocalTraining) -> Epochs | None:
        """The batches that :meth:`personalise` gets after all else; ``None`` for most algorithms."""
        return None

    def personalise(
        self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining
    ) -> None:
        """One step of the client's own model, by gradients that stay with it (:meth:`Door.local_only_gradient`)."""

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        """The upload: one tensor for each field, unweighted."""
        return {"update": local["parameters"] - received["parameters"]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        """The server's next state from the weighted sums ``total`` of the uploads."""
        if round.weight == 0:  # only clients without weight answered
            return server
        return {**server, "parameters": server["parameters"] + total["update"] / round.weight}


@dataclass(frozen=True)
class Survey(Algorithm):
    """A phase without local steps: clients look at their data and answer.

    They look in :meth:`Algorithm.prepare` and answer in :meth:`Algorithm.finish`. It shares the server's state
    and what clients keep with the algorithm that asks for it.
    """

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        return Epochs(1, 0)


def check_contract(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose declarations are of the wrong kind.

    Raises:
        ConfigError: with what is declared, and how it should be.
    """
    who, fields = type(algorithm).__name__, algorithm.fields()
    if not isinstance(getattr(algorithm, "name", None), str):
        raise ConfigError(f"{who} has no name; write name: ClassVar[str] = '{who.lower()}' into the class")
    for what in ("keeps", "statistics"):
        names = getattr(algorithm, what)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{who}'s {what} is {names!r}; give a tuple of names, such as ('control',)")
    if replaced := [name for name in vars(algorithm) if inspect.isfunction(getattr(type(algorithm), name, None))]:
        raise ConfigError(f"this {who} has another {replaced[0]} than its class; write a class of its own that has it")
    if not isinstance(fields, tuple) or not all(type(field) is Field for field in fields):
        raise ConfigError(f"{who}'s fields() returned {fields!r}; give a tuple of fields, such as (Field('update'),)")


def overrides(algorithm: Algorithm, method: str) -> bool:
    """Whether ``algorithm`` has a ``method`` of its own, so that an engine must call it."""
    return getattr(type(algorithm), method) is not getattr(Algorithm, method)


def descends_plainly(algorithm: Algorithm, training: LocalTraining) -> bool:
    """Whether a step is one gradient of the task's own loss and one SGD update without any other term."""
    own = overrides(algorithm, "step") or overrides(algorithm, "add_data_independent_gradient")
    return not (own or training.momentum or training.weight_decay)


def server_step(server: Tensors, gradient: Tensor, training: LocalTraining) -> Tensors:
    """The server's state after one SGD step of its own, for algorithms whose round is one gradient step."""
    after = {**server, "parameters": server["parameters"].clone()}
    if training.momentum:
        after["momentum"] = server["momentum"].clone() if "momentum" in server else torch.zeros_like(gradient)
    descend(after, gradient, training)
    return after


def descend(local: Tensors, gradient: Tensor, training: LocalTraining) -> None:
    """One SGD step in place: weight decay, then momentum, then the step; the same as ``torch.optim.SGD``."""
    if training.weight_decay:
        gradient.add_(local["parameters"], alpha=training.weight_decay)
    if training.momentum:
        gradient = local["momentum"].mul_(training.momentum).add_(gradient)
    local["parameters"].add_(gradient, alpha=-training.learning_rate)
