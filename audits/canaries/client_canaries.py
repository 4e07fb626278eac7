"""Audits of what a run claims for a client: canary clients, each with one row, that take part or send nothing.

    task = rare_token_task(2000)
    train = lambda task, cohort: pf.simulate(task, pf.FedAvg(weighting="uniform"), …, cohort=cohort, record=["public"])
    print(audit_clients(task, train, rare_token_canaries(task, 2000)))

A client whose coin fell the other way stays in the federation, its number stays in every public divisor, and its
contribution is left out: the neighbouring relation of the statement's row ``client``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from audits.bounds.bound import Estimate, LowerBound, shared_confidence
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.guess_budget import planned_guesses
from audits.bounds.one_run import epsilon_one_run_from_scores
from audits.bounds.one_shot import epsilon_one_shot
from audits.bounds.scores import epsilon_from_scores
from audits.canaries.alignment import client_alignment
from audits.canaries.canaries import SEPARABLE, Canaries, as_trained, check_apart, interference, mixed_coins
from audits.canaries.views import seen_by, trained
from audits.result import AuditResult
from privfl.data.mapped import MappedRows
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.cohorts import Cohort, CohortWithout, Everyone
from privfl.federation.task import Task
from privfl.privacy.accounting.release import Observer
from privfl.simulation.result import Run
from privfl.simulation.transcript import PublicFacts
from privfl.validation import checked

TrainClients = Callable[[Task, Cohort], Run]
"""Trains on a task with the cohort that is given, and records what the observer sees."""

SILENT_NOISE = "that a client which drops out leaves its share of the noise out, too, reveals nothing"
"""What a bound assumes where clients add noise: one whose update alone is left out would still add it."""

FRESH = frozenset({"clip", "gaussian-noise"})
"""Mechanisms for updates that treat every client by itself, and every round."""


def with_canary_clients(task: Task, canaries: Canaries) -> tuple[Task, Canaries]:
    """``task`` with one new client for each canary, and the canaries with these clients as their owners."""
    if isinstance(task.inputs, MappedRows):
        raise ConfigError("canaries cannot be planted in a memory map; audit a task whose inputs are in memory")
    clients, begin = len(task.clients), len(task.targets)
    parts = [task.clients[client].numpy() for client in range(clients)]
    parts += [np.array([begin + place]) for place in range(len(canaries))]
    held = task.inputs[:]
    planted = replace(
        task,
        inputs=torch.cat([held, canaries.inputs.to(held)]),
        targets=torch.cat([task.targets, canaries.targets.to(task.targets)]),
        clients=ClientIndex.of(parts),
        report=None,
    )
    return planted, replace(canaries, owners=clients + np.arange(len(canaries)))


@checked
def audit_clients(
    task: Task,
    train: TrainClients,
    canaries: Canaries,
    *,
    cohort: Cohort | None = None,
    observer: Observer = "public",
    confidence: float = 0.95,
    trials: GaussianFamily | None = None,
    seed: int = 0,
) -> AuditResult:
    """Train once on ``task`` with a new client for each canary, which takes part or sends nothing by a fair coin.

    A canary's score is the sum over the rounds of ⟨what the model gained, the canary's unit update⟩. Besides the
    certified one-run bounds (Steinke et al. 2023; Mahloujifar et al. 2025 for (ε, δ)-DP) there is Andrew et al.'s
    one-shot estimate from the same scores, which certifies nothing. Their canaries send random directions; here a
    canary sends what one row makes it send, through the same training, clipping and secure sum as everybody.

    Args:
        train: trains on a task with the cohort that it is given.
        cohort: who takes part in a round, everyone by default.
        observer: before whom the row ``client`` of the statement is audited.
        trials: the family of Gaussian mechanisms to invert, with every canary as a trial of its own; for canaries that
            are apart. A score sees the whole run, so ``observed_steps`` are all ``steps``. Left out where an algorithm,
            a mechanism or weight decay ties canaries to each other, as the result's settings then say.
        confidence: in (0, 1), of all bounds together.
        seed: of the auditor's coins.

    Raises:
        ConfigError: an argument is not as said, canaries are said to be apart and are not, ``train`` does not return a
            run on the task and with the cohort it was given, the run recorded nothing for ``observer``, or ``trials``
            is given for canaries that overlap, or for fewer than two in or two out.
    """
    began = time.perf_counter()
    shared_confidence(confidence, 2 if trials is None else 3)
    check_apart(task, canaries)
    if trials is not None and not canaries.apart:
        reason = interference(task, canaries) or "these are not marked as apart"
        raise ConfigError(
            f"trials need canaries that do not interfere, and {reason}; plant rare_token_canaries in a "
            "rare_token_task, or leave trials out"
        )
    if trials is not None and trials.observed_steps != trials.steps:
        raise ConfigError(
            f"trials observe {trials.observed_steps} of {trials.steps} steps, and a score sees the whole run; give as "
            "many observed_steps as steps"
        )
    planted, canaries = with_canary_clients(task, canaries)
    included = mixed_coins(canaries, seed)
    if trials is not None and not 2 <= included.sum() <= len(canaries) - 2:
        raise ConfigError(f"{len(canaries)} canaries are too few for trials; plant more, or leave trials out")
    left_out = frozenset(canaries.owners[~included].tolist())
    run = trained(train, planted, len(canaries), CohortWithout(cohort or Everyone(), left_out))
    view = seen_by(run, observer)
    settings: dict[str, Any] = {"canaries": len(canaries), "apart": canaries.apart, "seed": seed}
    tied = "" if trials is None else _tied(view.transcript.facts, as_trained(run, canaries))
    if tied:
        trials, settings = None, settings | {"no_trials": tied}
    scores = client_alignment(view, canaries, task.loss).sum(0)
    cell, delta = run.statement.cell("client", observer), run.statement.delta
    each = shared_confidence(confidence, 2 if trials is None else 3)
    guesses = planned_guesses(len(canaries), cell.epsilon, delta=delta, confidence=each)
    shared = partial(epsilon_one_run_from_scores, scores, included, delta=delta, confidence=each, guesses=guesses)
    bounds: list[LowerBound] = [shared(method="steinke"), shared(method="f-dp", family=trials)]
    ins, outs = scores[included], scores[~included]
    if trials is not None:
        bounds.append(epsilon_from_scores(ins, outs, delta=delta, confidence=each, family=trials))
    if _clients_add_noise(view.transcript.facts):
        bounds = [replace(one, assumes="; ".join(filter(None, (one.assumes, SILENT_NOISE)))) for one in bounds]
    estimates: tuple[Estimate, ...] = ()
    try:
        estimates = (epsilon_one_shot(ins, scores_out=outs, delta=delta),)
    except ConfigError as error:  # no normal law fits scores without noise, or a single one; the bounds need none
        settings["no_estimate"] = str(error)
    return AuditResult(
        audit="client-canaries",
        unit="client",
        observer=observer,
        claim=cell.epsilon,
        delta=delta,
        confidence=confidence,
        bounds=tuple(bounds),
        estimates=estimates,
        settings=settings,
        seconds=time.perf_counter() - began,
    )


def _tied(facts: PublicFacts, canaries: Canaries) -> str:
    """Why what is seen of one canary client depends on others, whatever the canaries are; empty if it does not."""
    if not canaries.apart:
        return "train used a model in which canaries interfere"
    others = sorted({part["name"] for part in facts.privacy.get("update") or ()} - FRESH)
    if others:
        return f"{others[0]} may tie clients, or rounds, to each other"
    if facts.privacy.get("training") is not None:
        return "the noise of DP-SGD in one update reaches the weights of all tokens"
    if facts.algorithm["name"] not in SEPARABLE:
        return f"{facts.algorithm['name']} does not treat every parameter by itself"
    return "weight_decay moves the weights of all tokens" if facts.training["weight_decay"] else ""


def _clients_add_noise(facts: PublicFacts) -> bool:
    """Whether any noise on updates comes from the clients: before they send them, or in shares of a secure sum's."""
    chain = facts.privacy.get("update") or ()
    secure = any(part["name"] == "secure-sum" for part in chain)
    noisy = [part for part in chain if "noise_multiplier" in part]
    return any(secure or part.get("at") == "client" for part in noisy)
