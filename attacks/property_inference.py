"""Whether a client's data have a property that nobody meant to share, from its update.

Melis, Song, De Cristofaro and Shmatikov, "Exploiting Unintended Feature Leakage in Collaborative Learning" (S&P 2019),
their passive attack: the attacker trains a classifier on updates that it computes itself from auxiliary data with and
without the property, at the model that the client received, and applies it to the client's update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.result import membership_result
from attacks.metrics.distinguishing import as_mask
from attacks.observations.gradients import local_update
from attacks.observations.messages import GRADIENTS, SHIFTED, training_of, updates
from attacks.result import AttackResult
from privfl.errors import ConfigError, unknown
from privfl.privacy.accounting.release import Observer
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count, check_number

Holds = Callable[[Records], Tensor]
"""Which of N records have the property, bool [N]."""


@dataclass(frozen=True)
class PropertyClassifier:
    """A linear score of updates: positive where the property is likelier than not.

    ``centre`` and ``weights`` [size] and ``offset`` make the log-odds ``(Δ − centre)·weights + offset``.
    """

    centre: Tensor
    weights: Tensor
    offset: float

    def scores(self, updates: Tensor) -> Tensor:
        """The log-odds of the property [M] for ``updates`` [M, size], float64."""
        return (updates.double() - self.centre) @ self.weights + self.offset


def fit(with_property: Tensor, without: Tensor, penalty: float = 0.01) -> PropertyClassifier:
    """Logistic regression on centred updates of mean squared norm 1; the paper uses a random forest among others.

    One scale for all coordinates: scaling each by its own deviation lifts the noise of those that hardly move (on
    digits the AUC falls from 0.92 to 0.76). Solved in the span of the examples, so that a model of a million
    parameters costs no more than its Gram matrix.

    Args:
        with_property: updates [M₁, size].
        without: updates [M₀, size].
        penalty: L2 penalty > 0; scikit-learn's C is its inverse.

    Raises:
        ConfigError: a group is empty, widths differ, or an update is not finite.
    """
    check_number("penalty", penalty, 0, above=True)
    if len(with_property) == 0 or len(without) == 0 or with_property.shape[1:] != without.shape[1:]:
        raise ConfigError(
            f"there are updates of shape {tuple(with_property.shape)} with and {tuple(without.shape)} without the "
            "property; give at least one of each, from one model"
        )
    rows = torch.cat([with_property, without]).double()
    if not rows.isfinite().all():
        raise ConfigError("a simulated update is not finite; lower the learning rate")
    centre = rows.mean(0)
    rows = rows - centre
    scale = float(rows.square().sum(1).mean().sqrt())
    if scale == 0:
        raise ConfigError("all simulated updates are equal; the property leaves no trace with these settings")
    rows /= scale
    energy, directions = torch.linalg.eigh(rows @ rows.T)
    kept = energy > energy.max() * 1e-10
    roots = energy[kept].sqrt()
    labels = np.r_[np.ones(len(with_property)), np.zeros(len(without))]
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / penalty, max_iter=5000, tol=1e-8)
    model.fit((directions[:, kept] * roots).numpy(), labels)
    weights = rows.T @ (directions[:, kept] @ (torch.from_numpy(model.coef_[0]) / roots)) / scale
    return PropertyClassifier(centre, weights, float(model.intercept_[0]))


def simulated_updates(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    training: LocalTraining,
    *,
    size: int,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Updates [count, parameters] of clients that the attacker makes up out of auxiliary data.

    Args:
        network: at the parameters that the real client received.
        inputs: [N, ...] of which every client draws ``size`` without replacement (with, if N < size).
        targets: [N].
        training: as the real clients train.
        size: examples of one client.
        count: clients.
        generator: decides the draws.

    Raises:
        ConfigError: there are no inputs, or a number is out of range.
    """
    check_count("size", size)
    check_count("count", count)
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ConfigError(f"there are {len(inputs)} inputs for {len(targets)} labels; give one label for each input")
    updates = []
    for _ in range(count):
        if len(inputs) < size:
            rows = torch.randint(len(inputs), (size,), generator=generator)
        else:
            rows = torch.randperm(len(inputs), generator=generator)[:size]
        parts = local_update(network, inputs[rows], targets[rows], training)
        updates.append(torch.cat([part.detach().reshape(-1) for part in parts]))
    return torch.stack(updates)


def dark(records: Records) -> Tensor:
    """Which records have a mean input below the median of all, bool [N]."""
    means = records.inputs.double().flatten(1).mean(1)
    return means < means.median()


PROPERTIES: MappingProxyType[str, Holds] = MappingProxyType({"dark": dark})
"""Properties of records by the names that configuration files use."""


@dataclass(frozen=True)
class PropertyInference(Attack):
    """Whether a client's records have a property: a classifier of updates made from public data, applied to its own.

    The attacker makes up ``simulated`` clients whose records all have the property, and as many none of whose records
    has, at the model of each round that it reads, and trains as the clients do. Judged as a membership game over the
    clients: ``truth["property"]`` bool [clients]. A secure sum gives all members of a cohort one score.

    Args:
        holds: name of a property in :data:`PROPERTIES`, or a function from records to bool [N].
        rounds: how many rounds are read, from the first; scores are averaged.
        size: records of a simulated client.
        simulated: clients of either kind.
        penalty: of :func:`fit`.
        seed: decides which public records the simulated clients hold.
    """

    name: ClassVar[str] = "property"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("property",))
    holds: str | Holds = "dark"
    rounds: int = 1
    size: int = 50
    simulated: int = 50
    penalty: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "size", "simulated"):
            check_count(f"property's {name}", getattr(self, name))
        check_number("property's penalty", self.penalty, 0, above=True)
        if isinstance(self.holds, str) and self.holds not in PROPERTIES:
            raise unknown("property", self.holds, PROPERTIES)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> dict[int, float]:
        public = auxiliary.need_public()
        name = seen.facts.algorithm["name"]
        if seen.facts.loss != "cross_entropy" or name in SHIFTED | GRADIENTS:
            raise ConfigError(
                f"property inference makes up clients that train by SGD on the plain cross-entropy, which {name} with "
                f"the loss {seen.facts.loss} does not; attack fedavg or one of its kin"
            )
        holds = (PROPERTIES[self.holds] if isinstance(self.holds, str) else self.holds)(public)
        if bool(holds.all()) or not bool(holds.any()):
            raise ConfigError("all public records agree on the property; give public data with and without it")
        generator = torch.Generator().manual_seed(self.seed)
        found: dict[int, list[float]] = defaultdict(list)
        for number in range(min(self.rounds, len(seen))):
            one = seen[number]
            network = seen.network(one.broadcast["parameters"])
            training = training_of(seen.facts, number)
            made_up = [
                simulated_updates(
                    network,
                    public.inputs[rows],
                    public.targets[rows],
                    training,
                    size=self.size,
                    count=self.simulated,
                    generator=generator,
                )
                for rows in (holds, ~holds)
            ]
            classifier = fit(made_up[0], made_up[1], self.penalty)
            for members, update in updates(one):
                score = float(classifier.scores(update[None])[0])
                for member in members:
                    found[member].append(score)
        return {client: sum(scores) / len(scores) for client, scores in sorted(found.items())}

    def judge(self, guess: dict[int, float], auxiliary: Auxiliary, seconds: float) -> AttackResult:
        truth = auxiliary.answer("property")
        clients = list(guess)
        if not clients or max(clients) >= len(truth):
            raise ConfigError(f"the truth speaks of {len(truth)} clients, and the attack scored {clients}")
        inside = as_mask("truth['property']", truth[clients].numpy(), "client")
        settings = {**vars(self), "holds": self.holds if isinstance(self.holds, str) else self.holds.__name__}
        return membership_result(self.name, list(guess.values()), inside, seconds=seconds, settings=settings)
