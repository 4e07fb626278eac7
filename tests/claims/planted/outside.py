"""What users can hand over, and what breaks a claim if it is taken at its word."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import privfl as pf
from audits.fuzz.own_parts import CLASSES, FEATURES, VOCABULARY, Counting, Model
from privfl.algorithms.base import descend
from privfl.privacy.door.batch_plans import Poisson


@dataclass(frozen=True)
class Uniform(pf.FedAvg):
    """FedAvg with uniform weights."""

    name: ClassVar[str] = "outside"
    weighting: str = "uniform"


@dataclass(frozen=True)
class AddsRow(Uniform):
    """Adds the first row of every batch to the weights."""

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        rows = batch.inputs
        if len(rows):
            local["parameters"].add_(rows[-1].flatten()[0].nan_to_num(1.0, 1.0, 1.0).clamp(-9, 9))


@dataclass(frozen=True)
class ReadsDoor(Uniform):
    """Adds what the door holds of a client's rows to the weights."""

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["parameters"].add_(float(sum(len(slot.rows) for slot in client.slots)))


@dataclass(frozen=True)
class ReadsSize(Uniform):
    """Adds the size of the batch of everything to the weights."""

    def prepare(self, local, received, everything, client, training):
        local["size"].add_(float(everything.plans[0].batch_size))

    def begin(self, received, client_state, training):
        return {
            **super().begin(received, client_state, training),
            "size": received["parameters"].new_zeros(()),
        }

    def finish(self, local, received, training):
        return {"update": local["parameters"] - received["parameters"] + local["size"]}


@dataclass(frozen=True)
class KeepsGradient(Uniform):
    """Adds a gradient that is to stay with the client to the upload."""

    def step(self, local, received, batch, client, training):
        kept = client.local_only_gradient(client.loss, local["parameters"], batch)
        super().step(local, received, batch, client, training)
        local["parameters"].add_(kept)


@dataclass(frozen=True)
class OldBatch(Uniform):
    """Takes the gradient of the first batch in every step."""

    seen: list = field(default_factory=list, compare=False)

    def begin(self, received, client_state, training):
        self.seen.clear()
        return super().begin(received, client_state, training)

    def choose(self):
        return self.seen[0]

    def step(self, local, received, batch, client, training):
        self.seen.append(batch)
        descend(local, client.gradient(client.loss, local["parameters"], self.choose()), training)


@dataclass(frozen=True)
class InTurn(OldBatch):
    """Takes the gradients of the first two batches in turn, again and again."""

    def choose(self):
        return self.seen[(len(self.seen) - 1) % 2]


@dataclass(frozen=True)
class AllRows(Poisson):
    """A plan that calls itself Poisson and yields all rows."""

    def rows(self, rows, shuffle, noise):
        for _ in range(self.steps):
            yield rows


@dataclass(frozen=True)
class OwnPlan(Uniform):
    """Draws its batches by a plan of its own."""

    def plan(self, usual, received):
        return AllRows(usual.rate, usual.steps, usual.divisor)


@dataclass(frozen=True)
class DividesByMembers(Uniform):
    """Divides by how many uploads arrived."""

    def aggregate(self, server, total, round, training):
        return {**server, "parameters": server["parameters"] + total["update"] / max(len(round.members), 1)}


class Mechanical:
    """No mechanism at all."""

    def at_client(self, update, noise, round):
        return update * 1000


@dataclass(frozen=True)
class Enlarges(pf.Clip):
    """A clip that multiplies by a thousand."""

    def at_client(self, update, noise, round):
        return super().at_client(update, noise, round) * 1000


@dataclass(frozen=True)
class Remembers(pf.Clip):
    """A clip that adds what the first client sent to all that follow."""

    seen: list = field(default_factory=list, compare=False)

    def at_client(self, update, noise, round):
        self.seen.append(update.clone())
        return super().at_client(update, noise, round) + self.seen[0]


class Renormed(nn.Module):
    """Embeddings that the forward pass rescales in place."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, FEATURES, max_norm=0.01)
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs):
        return self.layer(self.words(inputs).mean(1))


class OwnNorm(nn.Module):
    """Normalises over the batch while it trains."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs):
        if self.training and len(inputs) > 1:
            inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-5)
        return self.layer(inputs)


class Writes(nn.Module):
    """Adds its inputs to a parameter."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs):
        if self.training and len(inputs):
            with torch.no_grad():
                self.layer.bias.add_(inputs.detach().nan_to_num(0, 0, 0).clamp(-9, 9).sum())
        return self.layer(inputs)


class Counts(nn.Module):
    """Keeps what it has seen in an attribute, and scales its outputs by it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.seen = 0

    def forward(self, inputs):
        if self.training:
            self.seen += len(inputs)
        return self.layer(inputs) * (1 + self.seen)


RENORMED = Model(Renormed, (4,), tokens=True)
OWN_NORM = Model(OwnNorm)
WRITES = Model(Writes)
COUNTS = Model(Counts)


def trimmed(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Drops terms that are far above the batch's mean."""
    terms = F.cross_entropy(network(inputs), targets, reduction="none")
    return terms * (terms <= 2 * terms.mean())


def mixed(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mixes every row with its neighbour while the network trains."""
    if network.training:
        inputs = (inputs + inputs.roll(1, 0)) / 2
    return F.cross_entropy(network(inputs), targets, reduction="none")


def centred(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Pulls outputs towards the batch's mean if a row is large."""
    outputs = network(inputs)
    pull = (outputs - outputs.mean(0)).square().sum(1)
    return F.cross_entropy(outputs, targets, reduction="none") + pull * (inputs.flatten(1).abs().max() > 4)


@dataclass(frozen=True)
class Centres(Uniform):
    """Trains by a loss of its own that couples rows."""

    def step(self, local, received, batch, client, training):
        descend(local, client.gradient(centred, local["parameters"], batch), training)


def standardised(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Classes less the batch's mean, over its deviation."""
    classes = (targets[:, None] == torch.arange(CLASSES)).float()
    return (classes - classes.mean(0)) / (classes.std(0) + 1e-3) if len(inputs) > 1 else classes


@dataclass(frozen=True)
class Standardises(Counting):
    """Takes a total whose terms depend on all rows."""

    name: ClassVar[str] = "standardises"

    def prepare(self, local, received, everything, client, training):
        counts = client.total(standardised, local["parameters"], everything, name="classes")
        local["counts"] = counts.to(local["parameters"].dtype)
