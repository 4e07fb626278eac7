"""Shadow models: the victim's network trained on the attacker's own records.

A shadow is a client that keeps its model and sends nothing, so one federation trains all of them side by side in one
kernel; or it is a federation like the victim's, with its mechanism, and costs as much as the victim's run. The only
data here are the attacker's: public records and, for online attacks, the candidates that it asks about.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.auxiliary import Records
from attacks.membership.scores import Factory, Models
from privfl.algorithms.base import Tensors
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.references import Local
from privfl.engine.choice import EngineName
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.settings import Privacy
from privfl.simulation.settings import Execution
from privfl.simulation.simulation import simulate
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class Shadow(Local):
    """A client that trains alone from a fresh initialisation of its own."""

    name: ClassVar[str] = "shadow"

    def initial_client_state(self, client: int) -> Tensors:
        return {"parameters": self.context.fresh("shadow", client)}


@dataclass(frozen=True)
class ShadowTraining:
    """How shadows are trained. What is ``None`` follows the victim's public settings.

    Args:
        count: how many, at least 1.
        epochs: passes over a shadow's records; by default all that a client makes in the victim's whole run.
        learning_rate, batch_size, momentum, weight_decay: of SGD.
        share: of the pool that each shadow trains on, in (0, 1); in exactly ``round(share · count)`` of the shadows
            every record takes part.
        seed: of the shadows' initialisations, batches, shares and noise.
        federated: each shadow is a run like the victim's: FedAvg with as many clients, who hold its records dealt at
            random and all take part, as many rounds, the same local training and the same DP-SGD.
        engine: see :func:`~privfl.simulation.simulation.simulate`.
    """

    count: int = 64
    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    share: float = 0.5
    seed: int = 0
    federated: bool = False
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 < self.share < 1:
            raise ConfigError(
                f"{self.count} shadows on a share {self.share!r} of the pool are impossible; give a count ≥ 1 and a "
                "share in (0, 1)"
            )
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"the shadows' epochs are {self.epochs}; give an integer ≥ 1")
        own = (self.epochs, self.learning_rate, self.batch_size, self.momentum, self.weight_decay)
        if self.federated and any(value is not None for value in own):
            raise ConfigError("federated shadows train as the victim did; leave their epochs and SGD's settings out")

    def resolved(self, seen: Transcript) -> LocalTraining:
        """The training of one shadow against the victim that was ``seen``.

        Raises:
            ConfigError: the victim's clients train for a number of steps, which says nothing about epochs.
        """
        victim = seen.facts.training
        if self.epochs is None and victim["steps"] is not None:
            raise ConfigError(
                f"the victim's clients train for {victim['steps']} steps a round, which are no epochs; give the "
                "shadows' epochs"
            )
        own = {name: getattr(self, name) for name in ("learning_rate", "batch_size", "momentum", "weight_decay")}
        chosen = {name: victim[name] if value is None else value for name, value in own.items()}
        return LocalTraining(**chosen, epochs=self.epochs or victim["epochs"] * len(seen))


@dataclass(frozen=True, eq=False)
class Shadows:
    """Trained shadows.

    Args:
        models: evaluates them.
        parameters: [count, size].
        pool: the records that they were drawn from.
        inside: bool [count, len(pool)]: who trained on what.
        seconds: wall time of their training.
    """

    models: Models
    parameters: Tensor
    pool: Records
    inside: Tensor
    seconds: float

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits [count, n, C] of all shadows on ``inputs`` [n, ...]."""
        return torch.stack([self.models.logits(parameters, inputs) for parameters in self.parameters])


def shares(pool: int, count: int, share: float, generator: torch.Generator) -> Tensor:
    """Which of ``count`` shadows trains on which of ``pool`` records, bool [count, pool].

    Every record is in exactly ``round(share · count)`` shadows (at least one, and not in all if there are two), drawn
    independently of the other records.
    """
    inside = min(max(1, round(share * count)), max(1, count - 1))
    order = torch.rand(count, pool, generator=generator).argsort(0)
    return order < inside


def train_shadows(seen: Transcript, pool: Records, training: ShadowTraining) -> Shadows:
    """Train shadows of the network of ``seen`` on shares of ``pool``.

    One shadow trains on a random half: with a single one nothing is balanced.

    Raises:
        ConfigError: the pool is so small that a shadow would have no record.
    """
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(training.seed)
    if training.count == 1:
        inside = torch.rand(1, len(pool), generator=generator) < training.share
    else:
        inside = shares(len(pool), training.count, training.share, generator)
    if not bool(inside.any(1).all()):
        raise ConfigError(f"{len(pool)} records are too few for {training.count} shadows; give more public records")
    factory: Factory = seen.factory
    if training.federated:
        found = [_federated(seen, pool, row, training, number) for number, row in enumerate(inside)]
        return Shadows(Models(factory), torch.stack(found), pool, inside, time.perf_counter() - began)
    task = _task(seen, pool, [np.flatnonzero(row.numpy()) for row in inside])
    plan = training.resolved(seen)
    run = simulate(
        task,
        Shadow(),
        rounds=1,
        training=plan,
        seed=training.seed,
        execution=Execution(device="cpu", engine=training.engine),
    )
    parameters = torch.stack([run.client_state[client]["parameters"] for client in range(training.count)])
    if not bool(torch.isfinite(parameters).all()):
        raise ConfigError(
            f"a shadow diverged with learning rate {plan.learning_rate:g} over {plan.epochs} epochs; lower the rate"
        )
    return Shadows(Models(factory), parameters, pool, inside, time.perf_counter() - began)


def _task(seen: Transcript, pool: Records, clients: Sequence[NDArray[np.intp]]) -> Task:
    """The attacker's task: ``clients`` hold rows of ``pool``."""
    few = min(len(pool), 100)
    return Task(
        name="shadows",
        inputs=pool.inputs,
        targets=pool.targets,
        clients=ClientIndex.of(clients),
        test_inputs=pool.inputs[:few],
        test_targets=pool.targets[:few],
        classes=seen.facts.classes,
        model=seen.factory,
        model_name=seen.facts.model,
        vocabulary=seen.facts.vocabulary,
    )


def _federated(seen: Transcript, pool: Records, inside: Tensor, training: ShadowTraining, number: int) -> Tensor:
    """The released parameters [size] of a run like the one ``seen`` on the records ``inside``, bool, of ``pool``.

    Raises:
        ConfigError: the victim's algorithm is not FedAvg.
    """
    facts = seen.facts
    settings = {name: value for name, value in facts.algorithm.items() if name != "name"}
    if facts.algorithm["name"] != FedAvg.name:
        raise ConfigError(f"federated shadows run fedavg, and the victim {facts.algorithm['name']}; train them alone")
    rows = np.flatnonzero(inside.numpy())
    np.random.default_rng((training.seed, number)).shuffle(rows)
    privacy = Privacy()
    if facts.privacy["training"] is not None:
        told: dict[str, Any] = facts.privacy["training"]
        told = {name: tuple(one) if isinstance(one, list) else one for name, one in told.items()}
        privacy = Privacy(training=DPSGD(**told), noise_key=training.seed * training.count + number)
    run = simulate(
        _task(seen, pool, np.array_split(rows, min(facts.clients, len(rows)))),
        FedAvg(**settings),
        rounds=len(seen),
        training=LocalTraining(**facts.training),
        privacy=privacy,
        seed=training.seed * training.count + number,
        evaluate_every=len(seen),
        execution=Execution(device="cpu", engine=training.engine, workers=1),
    )
    parameters: Tensor = run.parameters
    return parameters


def join(*parts: Records | None) -> Records:
    """All records of ``parts`` one after the other; parts that are ``None`` are left out.

    Raises:
        ConfigError: nothing is left.
    """
    there = [part for part in parts if part is not None]
    if not there:
        raise ConfigError("shadows need records to train on; give Auxiliary(public=Records(…))")
    return Records(torch.cat([part.inputs for part in there]), torch.cat([part.targets for part in there]))
