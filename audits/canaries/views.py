"""What an observer saw of a run that was trained for an audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.federation.cohorts import Cohort
from privfl.federation.task import Task
from privfl.privacy.accounting.release import Observer
from privfl.simulation.result import Run
from privfl.simulation.transcript import Transcript
from privfl.validation import said


@dataclass(frozen=True)
class View:
    """A transcript, and the parameters [size] that the first round began with, if they are known.

    The server saw them in its first broadcast. They are drawn from a public seed, so the public has them too, but its
    transcript does not hold them: record the server's view as well, or the first round goes unused.
    """

    transcript: Transcript
    start: Tensor | None


def trained(train: Callable[..., Run], planted: Task, canaries: int, cohort: Cohort | None = None) -> Run:
    """What ``train`` made of the task ``planted``, whose last ``canaries`` rows are the canaries.

    A function that trains on a task of its own, or invites the clients that were left out, plants nothing, and every
    audit of it would pass.

    Raises:
        ConfigError: ``train`` returns no run, or that run was not on the task, each canary once, or with the
            ``cohort``, that it was given.
    """
    given = "task" if cohort is None else "task, cohort"
    example = f"lambda {given}: pf.simulate(task, …{'' if cohort is None else ', cohort=cohort'}, record=True)"
    run = train(planted) if cohort is None else train(planted, cohort)
    if not isinstance(run, Run):
        raise ConfigError(f"train returned {said(run)}; let it return the run, as {example} does")
    asked = run.asked
    held = None if asked is None or asked.task.inputs is not planted.inputs else asked.task.clients.rows
    rows = torch.arange(len(planted.targets) - canaries, len(planted.targets))
    if asked is None or held is None or not torch.equal(held[held >= len(planted.targets) - canaries].sort()[0], rows):
        raise ConfigError(
            "train did not train on the task it was given, so no canary took part and any claim would pass; use its "
            f"argument, as {example} does"
        )
    if cohort is not None and not _within(cohort, asked.cohort):
        raise ConfigError(
            "train did not use the cohort it was given, so canaries that were left out took part; hand its argument "
            f"on, as {example} does"
        )
    return run


def _within(cohort: Cohort, used: Any) -> bool:
    """Whether ``cohort`` is what was ``used``, or a part of it."""
    if used is cohort or used == cohort:
        return True
    return is_dataclass(used) and any(_within(cohort, getattr(used, one.name)) for one in fields(used))


def seen_by(run: Run, observer: Observer) -> View:
    """What ``observer`` saw of ``run``.

    Raises:
        ConfigError: nothing was recorded for ``observer``.
    """
    seen = run.transcript
    if seen is None:
        raise ConfigError(f"the run recorded nothing; train with record=['{observer}']")
    if seen.observer == "public" and observer == "server":
        raise ConfigError("the run recorded what the public saw; train with record=['server']")
    start = seen[0].broadcast["parameters"] if seen.observer == "server" else None
    return View(seen if seen.observer == observer else seen.before_public(), start)
