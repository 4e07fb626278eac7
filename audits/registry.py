"""Audits of an experiment by name: what ``privfl audit`` runs.

Each is a frozen dataclass whose fields are its settings. An experiment is trained anew, with canaries and fresh noise:
a finished run cannot be audited after the fact, because its canaries would have to have been there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from audits.canaries.canaries import noise_canaries, rare_token_canaries, rare_token_task
from audits.canaries.client_canaries import audit_clients
from audits.canaries.gradient_canaries import audit_one_run
from audits.mechanisms.local_randomizers import audit_repeated_answers, audit_size_mechanism
from audits.result import AuditResult
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.cohorts import Cohort
from privfl.federation.task import Task
from privfl.privacy.accounting.release import Observer, Unit
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.simulation.result import Run


@dataclass(frozen=True)
class ExperimentAudit(ABC):
    """Base of the audits here.

    Class attribute:
        name: how audit files and results call it.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, experiment: Experiment, confidence: float, seed: int) -> AuditResult:
        """The claim of ``experiment`` beside certified bounds; ``seed`` decides the auditor's coins.

        Raises:
            ConfigError: the experiment claims nothing that this audit could test.
        """


@dataclass(frozen=True)
class GradientCanaries(ExperimentAudit):
    """The experiment with random rows in its clients' data, each by a fair coin: what is claimed for one example.

    Args:
        canaries: how many rows; random ones overlap, so no more than the model has room for.
        client: who holds them; leave it out to deal them to all clients.
        observer: whose view is audited.
        scale: standard deviation of the rows' values, large enough that their gradients are clipped.
    """

    name: ClassVar[str] = "gradient-canaries"
    canaries: int = 100
    client: int | None = None
    observer: Observer = "server"
    scale: float = 3.0

    def run(self, experiment: Experiment, confidence: float, seed: int) -> AuditResult:
        task = experiment.task()
        canaries = noise_canaries(task, self.canaries, scale=self.scale, client=self.client, seed=seed)
        return audit_one_run(
            task,
            lambda planted: retrain(experiment, planted),
            canaries,
            observer=self.observer,
            confidence=confidence,
            seed=seed,
        )


@dataclass(frozen=True)
class RareTokens(ExperimentAudit):
    """The experiment's mechanisms, rounds and clients on a task of rare tokens: the tightest audit of one example.

    What is claimed does not depend on the data, so other data may stand in for them: each canary is a token of its own,
    and bounds that need canaries apart become possible.

    Args:
        canaries: how many tokens.
        observer: whose view is audited.
    """

    name: ClassVar[str] = "rare-tokens"
    canaries: int = 2000
    observer: Observer = "server"

    def run(self, experiment: Experiment, confidence: float, seed: int) -> AuditResult:
        if experiment.privacy.training is None:
            raise ConfigError("the experiment has no DP-SGD, so no guarantee for examples; add [privacy.training]")
        scale = 2 * math.sqrt(2) * experiment.privacy.training.max_grad_norm
        task = rare_token_task(self.canaries, clients=len(experiment.task().clients), scale=scale)
        result = audit_one_run(
            task,
            lambda planted: retrain(experiment, planted),
            rare_token_canaries(task, self.canaries),
            observer=self.observer,
            confidence=confidence,
            seed=seed,
        )
        return replace(result, audit=self.name)


@dataclass(frozen=True)
class CanaryClients(ExperimentAudit):
    """The experiment with new clients of one random row, who take part or send nothing by a fair coin.

    Audits the row ``client``.

    Args:
        canaries: how many clients.
        observer: before whom.
        scale: standard deviation of the rows' values, large enough that updates are clipped.
    """

    name: ClassVar[str] = "client-canaries"
    canaries: int = 100
    observer: Observer = "public"
    scale: float = 3.0

    def run(self, experiment: Experiment, confidence: float, seed: int) -> AuditResult:
        task = experiment.task()
        return audit_clients(
            task,
            lambda planted, cohort: retrain(experiment, planted, cohort),
            noise_canaries(task, self.canaries, scale=self.scale, seed=seed),
            cohort=experiment.cohort,
            observer=self.observer,
            confidence=confidence,
            seed=seed,
        )


@dataclass(frozen=True)
class SizeResponse(ExperimentAudit):
    """One answer of the experiment's size mechanism, asked thousands of times about every size.

    Args:
        answers: for each size.
        unit: which sizes are neighbours: all (``client``), or those that differ by one (``sample``).
    """

    name: ClassVar[str] = "size-response"
    answers: int = 20_000
    unit: Unit = "client"

    def run(self, experiment: Experiment, confidence: float, seed: int) -> AuditResult:
        return audit_size_mechanism(
            size_mechanism(experiment), answers=self.answers, unit=self.unit, confidence=confidence
        )


@dataclass(frozen=True)
class RepeatedSizeResponses(ExperimentAudit):
    """All answers that one client gives about its size over the experiment's rounds.

    Args:
        clients: how many are asked, half with the smallest size, half with the largest.
        rounds: how often; leave it out for as often as the experiment has rounds.
    """

    name: ClassVar[str] = "repeated-size-responses"
    clients: int = 20_000
    rounds: int | None = None

    def run(self, experiment: Experiment, confidence: float, seed: int) -> AuditResult:
        rounds = experiment.schedule.rounds if self.rounds is None else self.rounds
        delta = experiment.privacy.target_delta
        return audit_repeated_answers(
            size_mechanism(experiment), rounds=rounds, clients=self.clients, delta=delta, confidence=confidence
        )


AUDITS: Mapping[str, type[ExperimentAudit]] = MappingProxyType(
    {audit.name: audit for audit in (GradientCanaries, RareTokens, CanaryClients, SizeResponse, RepeatedSizeResponses)}
)
"""The audits by the names that audit files use."""


def retrain(experiment: Experiment, task: Task, cohort: Cohort | None = None) -> Run:
    """``experiment`` on another ``task``, with fresh noise and both observers' views kept."""
    again = replace(
        experiment,
        cohort=cohort or experiment.cohort,
        privacy=replace(experiment.privacy, noise_key=None),
        schedule=replace(experiment.schedule, evaluate_every=experiment.schedule.rounds),
    )
    return again.run_on(task, record=True)


def size_mechanism(experiment: Experiment) -> SizeMechanism:
    """The experiment's size mechanism.

    Raises:
        ConfigError: it has none.
    """
    if experiment.privacy.size is None:
        raise ConfigError("the experiment has no size mechanism to audit; add [privacy.size]")
    return experiment.privacy.size
