"""The contract of an algorithm: one frozen dataclass whose fields are its hyper-parameters.

An algorithm says what the server keeps (:meth:`Algorithm.start`, :meth:`Algorithm.aggregate`), what clients receive
(:meth:`Algorithm.broadcast`), what a client keeps privately between rounds (:attr:`Algorithm.keeps`), how a client
trains (:meth:`Algorithm.begin`, :meth:`Algorithm.step`, :meth:`Algorithm.finish`) and what it uploads
(:meth:`Algorithm.fields`).

``begin``, ``step`` and ``finish`` are written in ordinary PyTorch for *one* client on dictionaries of tensors. They
touch data only through the door that is handed to them, do not branch on values of tensors, and may change the tensors
of ``local`` in place, so that an engine can run them one by one, side by side, or stacked over the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.privacy.channel import Field
from privfl.privacy.door import Batch, Door
from privfl.privacy.plans import LocalTraining, Plan

Tensors = dict[str, Tensor]
"""Named tensors: server state, a broadcast, a client's local state, an upload."""


@dataclass(frozen=True)
class Round:
    """What the server knows when it aggregates.

    Args:
        weight: Σ of the aggregation weights of the uploads that arrived; under client-level noise the public number of
            clients that a cohort has (in expectation).
        cohort: clients that were asked to train.
        clients: clients of the whole federation.
        samples: number of samples of the whole federation, exact or estimated; ``None`` if nobody asked for sizes.
    """

    weight: float
    cohort: int
    clients: int
    samples: float | None = None


@dataclass(frozen=True)
class Algorithm:
    """Base of all algorithms, with plain local SGD as the default training.

    Class attributes an algorithm may set:
        name: how configuration files call it.
        keeps: tensors of ``local`` that a client keeps between rounds; none for most algorithms.
        pools_data: training sees all clients' data as one (the centralised reference).
        ensemble: there is no server model; evaluation averages the soft-max outputs of the clients' own models.
    """

    name: ClassVar[str]
    keeps: ClassVar[tuple[str, ...]] = ()
    pools_data: ClassVar[bool] = False
    ensemble: ClassVar[bool] = False

    def fields(self) -> tuple[Field, ...]:
        """What one client uploads in one round."""
        return (Field("update"),)

    def weights(self) -> Literal["uniform", "size"]:
        """Whether uploads are summed as they are, or times the client's (reported) number of samples."""
        return "uniform"

    def dpsgd_refusal(self) -> str:
        """Why DP-SGD cannot protect this algorithm's training, with the mend; empty if it can."""
        return ""

    def asks_sizes(self) -> bool:
        """Whether the server needs the clients' sizes before it can train."""
        return self.weights() == "size"

    def start(self, parameters: Tensor) -> Tensors:
        """The server's state before round 0, from the initial model ``parameters`` [size]."""
        return {"parameters": parameters.clone()}

    def sized(self, server: Tensors, samples: float, contacted: float) -> Tensors:
        """The server's state once it knows about ``samples`` samples, of which a fraction ``contacted`` is asked."""
        return server

    def warnings(self, server: Tensors) -> list[str]:
        """What the user should know about the state that a run ended in, one sentence each."""
        return []

    def broadcast(self, server: Tensors) -> Tensors:
        """What every client of the cohort receives."""
        return {"parameters": server["parameters"]}

    def plan(self, usual: Plan, received: Tensors) -> Plan:
        """How the client draws its batches in this round; ``usual`` is what the training settings say."""
        return usual

    def begin(self, received: Tensors, kept: Tensors, training: LocalTraining) -> Tensors:
        """The client's local state before its first step; the engine copies ``parameters`` before it is trained."""
        local = {"parameters": received["parameters"]}
        if training.momentum:
            local["momentum"] = torch.zeros_like(received["parameters"])
        return local

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        """One local step: a gradient through the door, the data-independent terms, one SGD update.

        Under DP-SGD a batch gives exactly one gradient: two on one batch share the draw that amplifies, and would cost
        more than two draws (ε = 0.82 instead of 0.25 at rate 0.01, noise multiplier 1, δ = 1e-5).
        """
        gradient = client.gradient(client.loss, local["parameters"], batch)
        self.correct(gradient, local, received)
        descend(local, gradient, training)

    def correct(self, gradient: Tensor, local: Tensors, received: Tensors) -> None:
        """Add the data-independent part of the gradient in place; it comes after clipping and noise."""

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        """The upload: one tensor for each field, unweighted."""
        return {"update": local["parameters"] - received["parameters"]}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        """The server's next state from the weighted sums ``total`` of the uploads."""
        return {**server, "parameters": server["parameters"] + total["update"] / round.weight}


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
