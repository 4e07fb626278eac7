"""Whether attacks can be tried on the runs of a study, known before any is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from privfl.federation.task import Task
from privfl.simulation.plan import Plan, prepare
from privfl.simulation.state import State
from privfl.study.members import Resolved, settings_of

MODEL = "released"
"""What attacks call the models that the server evaluates: every run has them."""
SIZES = "sizes"


@dataclass
class Fitting:
    """Looks at runs of one study; runs that differ in the seed alone are looked at once.

    Args:
        attacks: that are to be tried on each.
        public_share: share of the held-out examples that attackers own, in (0, 1).
    """

    attacks: Sequence[Any]
    public_share: float
    _known: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    _tasks: dict[str, Task] = field(default_factory=dict, init=False)

    def problem(self, one: Resolved) -> str:
        """Why an attack cannot be tried on the run, or why there can be none at all; empty if all can."""
        if one.problem or one.experiment is None:
            return one.problem
        kind = (one.point.method, one.point.level)
        if kind not in self._known:
            recorded = one.experiment.record
            unseen = [a for a in self.attacks if recorded is not True and (not recorded or a.observer not in recorded)]
            if unseen:
                self._known[kind] = (
                    f"{unseen[0].name} attacks the {unseen[0].observer}'s view, which is not recorded; add "
                    f'record = ["{unseen[0].observer}"]'
                )
            else:
                plan = prepare(settings_of(one.experiment, self._task(one)))
                found = (misfit(attack, plan, self.public_share) for attack in self.attacks)
                self._known[kind] = next(filter(None, found), "")
        return self._known[kind]

    def _task(self, one: Resolved) -> Task:
        assert one.experiment is not None
        recipe = repr((one.experiment.recipe, one.experiment.schedule.seed))
        if recipe not in self._tasks:
            self._tasks = {recipe: one.experiment.task()}  # no more than one in memory
        return self._tasks[recipe]


def misfit(attack: Any, plan: Plan, public_share: float) -> str:
    """Why ``attack`` cannot be tried on a run of ``plan``, in a sentence with the mend; empty if it can."""
    task, name = plan.task, plan.algorithm.name
    leave = "leave it out, or have such runs in a study of their own"
    if attack.needs_classes and task.kind != "classification":
        return f"{attack.name} works with the class of each record, and those of {task.kind} have none; {leave}"
    client = getattr(attack, "client", None)
    if client is not None and not 0 <= client < len(task.clients):
        return f"{attack.name} is to attack client {client}; give it one of the clients 0 to {len(task.clients) - 1}"
    held = len(task.test_targets)
    if not 0 < round(public_share * held) < held:
        return f"public_share = {public_share} of {held} held-out examples leaves {attack.name} or its judge none"
    sent = {one.name: one for one in plan.algorithm.fields()}
    for wanted in attack.needs.fields:
        if wanted == SIZES and (not plan.needs_sizes or plan.privacy.size is None):
            return f"{attack.name} reads randomised answers about sizes, and {name} gets none here; {leave}"
        if wanted not in (SIZES, MODEL, *sent):
            return f"{attack.name} reads '{wanted}', which clients of {name} do not send; {leave}"
    if client is not None and set(attack.needs.fields) & set(sent) and plan.channel.usual.secure is not None:
        return f"{attack.name} reads the message of client {client}, and the server opens sums alone; leave client out"
    shape = sent["update"].shape if "update" in attack.needs.fields else None
    if shape is not None and math.prod(shape) != State.start(plan).server["parameters"].numel():
        return f"{attack.name} reads updates of the whole model, and {name} sends a part of it; {leave}"
    return ""
