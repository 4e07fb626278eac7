"""Audits of what a run claims for one example, by canaries in its clients' data: white box, one run or two worlds.

    task = rare_token_task(5000)
    train = lambda task: pf.simulate(task, pf.FedAvg(weighting="uniform"), …, record=["server"])
    print(audit_one_run(task, train, rare_token_canaries(task, 5000)))

The auditor sees what the observer saw, its own canaries and its own coins; the run is an ordinary one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from attacks.observations.messages import training_of
from audits.bounds.bound import LowerBound, error_level, shared_confidence
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.guess_budget import planned_guesses
from audits.bounds.one_run import epsilon_one_run_from_scores
from audits.bounds.scores import epsilon_from_scores
from audits.canaries.alignment import Alignment, Statistics, sample_alignment
from audits.canaries.canaries import (
    SEPARABLE,
    Canaries,
    Coins,
    Train,
    as_trained,
    check_apart,
    interference,
    mixed_coins,
    plant,
)
from audits.canaries.claimed_statistic import ClaimedStatistic
from audits.canaries.views import View, seen_by, trained
from audits.result import AuditResult
from privfl.errors import ConfigError
from privfl.federation.task import Task
from privfl.privacy.accounting.release import Observer
from privfl.privacy.accounting.statement import Cell
from privfl.simulation.result import Run
from privfl.simulation.transcript import PublicFacts
from privfl.validation import checked

Score = Literal["likelihood", "sum", "largest", "smallest", "spread"]
"""What a canary's rounds come to: the logarithm of the likelihood ratio that the claimed noise and sampling give them,
which is the sharpest score if the claim is true; their sum; the largest of them (a row that comes once in every epoch);
and, per unit of length, the smallest magnitude (noise that is left out now and then) or the largest minus the smallest
(noise that is used again)."""
MEMORYLESS = frozenset({"fedavg", "fedprox"})
"""Those of them that carry nothing but the parameters from round to round."""
CLIPPED = 1e-4
"""How far a squared length may be from the clipping norm's by rounding."""
NO_LAW = "the score is 'likelihood', but the distribution of a round is not known here; use 'sum'"
OneRunBound = Literal["one-run", "one-run f-DP", "trials"]
"""How the scores of one run are turned into ε; see :func:`audit_one_run`."""


@checked
def audit_one_run(
    task: Task,
    train: Train,
    canaries: Canaries,
    *,
    observer: Observer = "server",
    confidence: float = 0.95,
    bounds: Sequence[OneRunBound] | None = None,
    scores: Sequence[Score] | None = None,
    seed: int = 0,
) -> AuditResult:
    """Train once on ``task`` with each canary included by a fair coin, and certify what ``observer`` can tell of them.

    Args:
        train: trains on a task and records what ``observer`` sees.
        bounds: ``"one-run"`` (Steinke et al. 2023) and ``"one-run f-DP"`` (Mahloujifar et al. 2025) take the canaries
            of one run together; how many guesses are made follows from the claim, which is known beforehand. The second
            reads ε off the Gaussian family where canaries are apart and the sampling is known, and off (ε, δ)-DP
            otherwise. ``"trials"`` counts every canary as a trial of its own, which only canaries that are apart are,
            and inverts the Gaussian family at a threshold that follows from the claim, or that half of them chose. The
            default is all that the canaries allow. The error is shared equally among all bounds and scores.
        scores: how a canary's rounds are summed up; several share the error. The default is the likelihood ratio where
            noise and sampling are public, the sum elsewhere.
        confidence: in (0, 1), of all bounds together.
        seed: of the auditor's coins.

    Returns:
        The claim of the cell (sample, ``observer``) beside the bounds.

    Raises:
        ConfigError: an argument is not as said, canaries are said to be apart and are not, ``train`` does not return a
            run on the task it was given, the run recorded nothing for ``observer``, trained without DP-SGD, or
            ``bounds`` asks for what the canaries cannot give.
    """
    began = time.perf_counter()
    check_apart(task, canaries)
    included = mixed_coins(canaries, seed)
    countable = canaries.apart and 2 <= included.sum() <= len(canaries) - 2
    _wanted(bounds, countable)
    shared_confidence(confidence, len(get_args(OneRunBound)) * len(scores or ("sum",)))
    if observer == "public" and "likelihood" in (scores or ()):
        raise ConfigError(NO_LAW)
    run = trained(train, plant(task, canaries, included), int(included.sum()))
    canaries = as_trained(run, canaries)
    view, cell = seen_by(run, observer), run.statement.cell("sample", observer)
    wanted = _wanted(bounds, countable and gaussian_family(view, canaries, cell) is not None)
    law = claimed_law(view, canaries)
    names: Sequence[Score] = scores or (("sum",) if law is None else ("likelihood",))
    each = shared_confidence(confidence, len(wanted) * len(names))
    aligned = sample_alignment(view, canaries, task.loss)
    guesses = planned_guesses(len(canaries), cell.epsilon, delta=run.statement.delta, confidence=each)
    audited = _Audited(included, gaussian_family(view, canaries, cell), law, run.statement.delta, each, guesses)
    found = [audited.bound(kind, name, summary(aligned, name, law)) for name in names for kind in wanted]
    return _result("gradient-canaries", run, observer, confidence, found, began, _settings(canaries, names, seed))


@checked
def audit_two_worlds(
    task: Task,
    train: Train,
    canaries: Canaries,
    *,
    per_round: bool = False,
    observer: Observer = "server",
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """Train twice on ``task``, with all the canaries and with none, and count every canary as a trial of each world.

    With ``per_round`` every round of every canary is a trial, which lets a single canary do; canaries that are not
    clipped in all rounds are refused. They are trials because
    the canaries are apart: a round's score without one is that round's fresh noise, and with one it is shifted by at
    most 1; algorithms and weight decay that carry noise from round to round are refused. ε is read off the family of
    Poisson-subsampled Gaussian mechanisms, composed over the whole run, so it is the scale of the noise and the
    sampling that are audited, and rounds that share their noise escape ``per_round``.

    Args and Raises: as :func:`audit_one_run`. The canaries must be :attr:`~audits.canaries.canaries.Canaries.apart`.

    Source: Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023.
    """
    began = time.perf_counter()
    error_level(0.0, confidence)
    check_apart(task, canaries)
    if not canaries.apart:
        reason = interference(task, canaries) or "these are not marked as apart"
        raise ConfigError(
            f"counting rounds as trials needs canaries that do not interfere, and {reason}; plant rare_token_canaries "
            "in a rare_token_task"
        )
    everyone = np.ones(len(canaries), dtype=np.bool_)
    run = trained(train, plant(task, canaries, everyone), len(canaries))
    view = seen_by(run, observer)
    if not as_trained(run, canaries).apart:
        raise ConfigError("train used a model in which canaries interfere; let it train the task's own")
    family = gaussian_family(view, canaries, run.statement.cell("sample", observer), per_round=per_round)
    law = claimed_law(view, canaries)
    if family is None:
        raise ConfigError(
            "what this run does with a batch is not one step of Poisson-sampled Gaussian noise after the other, canary "
            "by canary; audit it in one run"
        )
    if per_round and not _fresh_rounds(view.transcript.facts):
        raise ConfigError(
            "a round of this run carries what earlier rounds left, so it is no trial of its own; leave per_round out, "
            "or train by fedavg without weight_decay"
        )
    if law is None and not per_round and len(canaries) < 2:
        raise ConfigError("one canary is one trial, on which no threshold can be chosen; plant more, or use per_round")
    worlds = run, trained(train, plant(task, canaries, ~everyone), 0)
    if not as_trained(worlds[1], canaries).apart:
        raise ConfigError("train used a model in which canaries interfere; let it train the task's own")
    aligned = [sample_alignment(seen_by(one, observer), canaries, task.loss) for one in worlds]
    if per_round:
        if any(bool((np.abs(one.lengths[one.lengths > 0] - 1) > CLIPPED).any()) for one in aligned):
            raise ConfigError(
                "a canary's gradient was not clipped in some rounds, whose trials would then depend on earlier ones; "
                "plant canaries of larger gradients, or leave per_round out"
            )
        ins, outs = (_per_length(one)[one.lengths > 0] for one in aligned)
    else:
        ins, outs = (summary(one, "sum" if law is None else "likelihood", law) for one in aligned)
    found = epsilon_from_scores(
        ins,
        outs,
        delta=run.statement.delta,
        confidence=confidence,
        threshold=None if per_round or law is None else law.threshold(family, len(canaries), confidence),
        family=family,
        seed=seed,
    )
    settings = _settings(canaries, (), seed) | {"per_round": per_round}
    return _result("two-worlds", run, observer, confidence, [found], began, settings)


def claimed_law(view: View, canaries: Canaries) -> ClaimedStatistic | None:
    """The law that the run claims for the server's view of the canaries; ``None`` where a score needs another."""
    facts = view.transcript.facts
    protection, steps = facts.privacy["training"], _steps_and_rate(facts, canaries)
    if protection is None:
        return None
    noise = protection["noise_multiplier"]
    owned = {noise} if isinstance(noise, int | float) else {noise[client] for client in canaries.owners.tolist()}
    seen_alone = view.transcript.observer == "server" and protection["noise_at"] == "client"
    if steps is None or steps[0] > 1 or len(owned) > 1 or not seen_alone:
        return None
    multiplier = float(owned.pop())
    return ClaimedStatistic(steps[1], multiplier) if multiplier > 0 else None


def summary(aligned: Alignment, score: Score, law: ClaimedStatistic | None = None) -> Statistics:
    """The scores [m] of canaries whose rounds were ``aligned``.

    Raises:
        ConfigError: there is no such score, or the likelihood is asked for and the law is not known.
    """
    if score not in get_args(Score):
        raise ConfigError(f"the score is {score!r}; choose from {', '.join(get_args(Score))}")
    if score == "likelihood":
        if law is None:
            raise ConfigError(NO_LAW)
        return law.log_ratios(aligned.statistics, aligned.lengths)
    if score == "sum":
        return _array(aligned.statistics.sum(0))
    if score == "largest":
        return _array(aligned.statistics.max(0))
    per_length = _per_length(aligned)
    return _array(np.abs(per_length).min(0) if score == "smallest" else per_length.max(0) - per_length.min(0))


def _per_length(aligned: Alignment) -> Statistics:
    """⟨s, c⟩/(C·‖c‖) [rounds, m]: the noise's share is N(0, σ²) whatever the parameters have come to; 0 if unseen."""
    return _array(aligned.statistics / np.sqrt(np.where(aligned.lengths > 0, aligned.lengths, np.inf)))


def _array(values: ArrayLike) -> Statistics:
    return np.asarray(values, dtype=np.float64)


def gaussian_family(view: View, canaries: Canaries, cell: Cell, *, per_round: bool = False) -> GaussianFamily | None:
    """The Gaussian mechanisms that the run says it is one of; ``None`` if canaries overlap or there is no such family.

    That is where the sampling is not public, where the algorithm or an update's clipping ties the canaries to each
    other, and where ``cell``, the statement's, counts other steps than the local training: a step that is not told
    here would be taken for less noise. A score sees the whole run, or with ``per_round`` one round. Where a public
    transcript hides the first round's change, the gradients still tell what that round left.
    """
    facts = view.transcript.facts
    steps = _steps_and_rate(facts, canaries)
    if steps is None or not canaries.apart or facts.privacy.get("update"):
        return None
    per, rate = steps
    taken = per * len(view.transcript)
    counted = sum(release.count for release in cell.releases if "Gaussian noise" in release.mechanism)
    if facts.algorithm["name"] not in SEPARABLE or counted != taken:
        return None
    return GaussianFamily(sample_rate=rate, steps=taken, observed_steps=per if per_round else taken)


def _fresh_rounds(facts: PublicFacts) -> bool:
    """Whether what one round shows of a canary that is not there is that round's noise alone."""
    return facts.algorithm["name"] in MEMORYLESS and facts.training["weight_decay"] == 0


def _steps_and_rate(facts: PublicFacts, canaries: Canaries) -> tuple[int, float] | None:
    """Steps of a round and sampling rate of the canaries' owners; ``None`` unless all take part in every round and draw
    their batches at DP-SGD's own rate."""
    if facts.privacy["training"] is None:
        return None
    rates, everyone = facts.privacy["training"]["sample_rate"], (facts.cohort["name"], facts.availability["name"])
    owned = {rates} if isinstance(rates, int | float) else {rates[client] for client in canaries.owners.tolist()}
    if len(owned) > 1 or everyone != ("everyone", "always") or facts.algorithm["name"].startswith("fedsampling"):
        return None
    rate = float(owned.pop())
    return training_of(facts, 0).steps_at(rate), rate


@dataclass(frozen=True)
class _Audited:
    """What all bounds of one audit share."""

    included: Coins
    family: GaussianFamily | None
    law: ClaimedStatistic | None
    delta: float
    confidence: float
    guesses: tuple[int, int]

    def bound(self, kind: OneRunBound, score: Score, scores: Statistics) -> LowerBound:
        delta, confidence = self.delta, self.confidence
        if kind == "trials":
            ins, outs = scores[self.included], scores[~self.included]
            fixed = None
            if score == "likelihood" and self.law is not None and self.family is not None:
                fixed = self.law.threshold(self.family, len(scores) // 2, confidence)
            return epsilon_from_scores(
                ins, outs, delta=delta, confidence=confidence, threshold=fixed, family=self.family
            )
        return epsilon_one_run_from_scores(
            scores,
            self.included,
            delta=delta,
            confidence=confidence,
            guesses=self.guesses,
            method="steinke" if kind == "one-run" else "f-dp",
            family=None if kind == "one-run" else self.family,
        )


def _wanted(bounds: Sequence[OneRunBound] | None, known: bool) -> tuple[OneRunBound, ...]:
    """The bounds to find, where canaries may count as trials of a ``known`` Gaussian family or not."""
    if bounds is None:
        return ("one-run", "one-run f-DP", "trials") if known else ("one-run", "one-run f-DP")
    if not bounds:
        raise ConfigError("bounds is empty; name at least one, or leave it out")
    if "trials" in bounds and not known:
        raise ConfigError(
            "the bound 'trials' needs canaries that do not interfere, two of them in and two out, and a run of "
            "Poisson-sampled Gaussian steps; leave it out, or use more rare tokens, an algorithm such as fedavg and no "
            "mechanisms for updates"
        )
    return tuple(bounds)


def _settings(canaries: Canaries, scores: Sequence[Score], seed: int) -> dict[str, object]:
    return {"canaries": len(canaries), "apart": canaries.apart, "scores": list(scores), "seed": seed}


def _result(
    name: str,
    run: Run,
    observer: Observer,
    confidence: float,
    bounds: Sequence[LowerBound],
    began: float,
    settings: dict[str, object],
) -> AuditResult:
    return AuditResult(
        audit=name,
        unit="sample",
        observer=observer,
        claim=run.statement.cell("sample", observer).epsilon,
        delta=run.statement.delta,
        confidence=confidence,
        bounds=tuple(bounds),
        settings=settings,
        seconds=time.perf_counter() - began,
    )
