"""Whether a run learns or fails: what is counted round by round, and what is said to whoever runs it.

What a claim covers never depends on it. Where uploads that cannot be used count as zeros, or who was drawn is secret,
nobody but the experimenter may learn how many there were: then what is said here enters no file but the checkpoint.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.engine.aggregation import CohortSums

LOG = logging.getLogger("privfl")
"""Where a run warns while it goes on; Python prints warnings of a logger that nobody has configured to stderr."""
SILENT = "did not answer"
"""How the reason begins of an upload whose client was not heard, over a network."""
CONNECT = "start the clients, and look at the federation's url, port and certificates"
"""What to do where nobody was heard."""
_LOWER = "lower training.learning_rate or look at what clients hold"
_MENDS = (
    (SILENT, CONNECT),
    ("max_upload_norm", f"{_LOWER}; if such uploads are honest, raise max_upload_norm"),
    ("not finite", _LOWER),
    ("non-finite", _LOWER),
    (" made a", "correct that mechanism of privacy.update"),
    ("outside of ±", "correct side_report of that mechanism of privacy.update"),
    ("sent ", "let the algorithm's finish() return what its fields() declare, and every client run the same"),
    ("policy", "let every client agree to the policy of this run"),
)
"""By words in the reason of an upload that cannot be used, what to do about it."""
_SHOWN = 8


@dataclass
class Health:
    """What is counted while a run goes on; a part of its state.

    Args:
        rounds: rounds in which clients were asked to train.
        failed: of these, the rounds in which no upload could be used.
        asked: uploads that were asked for.
        zeroed: why uploads were unusable that counted as zeros, how often.
        moved: whether any round changed the server's state or left anything with a client.
        sent: whether any sum of uploads was not zero in a round until then.
    """

    rounds: int = 0
    failed: int = 0
    asked: int = 0
    zeroed: Counter[str] = field(default_factory=Counter)
    moved: bool = False
    sent: bool = False
    _told: set[str] = field(default_factory=set, compare=False, repr=False)

    def state(self) -> dict[str, Any]:
        """The counts as JSON-able values, for a checkpoint."""
        names = ("rounds", "failed", "asked", "moved", "sent")
        return {**{name: getattr(self, name) for name in names}, "zeroed": dict(self.zeroed)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """What :meth:`state` described."""
        return cls(**{**state, "zeroed": Counter(state["zeroed"])})

    def count(self, asked: int, phases: Sequence[CohortSums], before: Tensors, after: Tensors, keeps: bool) -> str:
        """Count a round in which ``asked`` clients were asked; in words what went wrong in it, empty if nothing did.

        Args:
            phases: what arrived in each phase of the round.
            before: the server's state before the round.
            after: and after it.
            keeps: whether clients that took part keep anything.
        """
        last = phases[-1]
        usable = len(last.members) - last.zeroed.total()
        self.rounds += asked > 0
        self.asked += asked
        self.moved |= (keeps and usable > 0) or _differ(before, after)
        self.sent = self.sent or (not self.moved and any(bool(total.any()) for total in last.total.values()))
        problems: Counter[str] = Counter()
        for sums in phases:
            problems += sums.problems + sums.zeroed
            self.zeroed += sums.zeroed
        if asked and not usable:
            self.failed += 1
            return f"no upload could be used ({_reasons(problems) or 'nobody answered'})"
        return f"{problems.total()} of {asked} uploads could not be used ({_reasons(problems)})" if problems else ""

    def tell(self, where: str, kind: str, sentence: str) -> None:
        """Log ``sentence`` about ``where``, the first time that something of its ``kind`` happens."""
        if sentence and kind not in self._told:
            self._told.add(kind)
            LOG.warning("%s: %s", where, sentence)

    def warnings(self, dropped: Counter[str]) -> list[str]:
        """What was counted, in sentences: rounds that failed, and uploads that were ``dropped`` or counted as zeros."""
        found = []
        if self.failed:
            found.append(f"In {self.failed} of {self.rounds} rounds no upload could be used.")
        if dropped:
            found.append(f"{dropped.total()} of {self.asked} uploads were dropped: {_reasons(dropped)}.")
        if self.zeroed:
            found.append(f"{self.zeroed.total()} of {self.asked} uploads counted as zeros: {_reasons(self.zeroed)}.")
        return found

    def failure(self, dropped: Counter[str]) -> str:
        """Why a run that counted this failed as a whole, in one sentence with the mend; empty if it did not."""
        if self.rounds and self.failed == self.rounds:
            reasons = dropped + self.zeroed
            return f"no upload could be used in any of {self.rounds} rounds ({_reasons(reasons)}); {_mend(reasons)}"
        if self.moved:
            return ""
        if not self.rounds:
            return "the model never moved, because no client was asked in any round; draw larger cohorts, or add rounds"
        if self.sent:
            return (
                "the model never moved, although uploads were not zero: the algorithm's aggregate left the server's "
                "state as it was; add the step to it there, or raise training.learning_rate if rounding swallows it"
            )
        return "the model never moved, because every upload was zero; raise training.learning_rate"


def not_finite(server: Tensors, start: Tensors) -> list[str]:
    """The parts of the ``server``'s state that are not finite although they were at the ``start``."""
    return [
        name for name, value in server.items() if _broken(value) and not _broken(start.get(name, value.new_zeros(())))
    ]


def broken_clients(client_state: Mapping[int, Tensors], clients: Iterable[int]) -> list[int]:
    """Those of ``clients`` that keep a tensor that is not finite."""
    return [one for one in clients if any(map(_broken, client_state.get(one, {}).values()))]


def conclusions(
    server: Tensors, start: Tensors, client_state: Mapping[int, Tensors], ensemble: bool
) -> tuple[str, str]:
    """What is to be said of the states that a run ended in: a warning and a failure, each empty if there is none.

    Args:
        server: the server's state.
        start: the one that it began with.
        client_state: what clients keep.
        ensemble: the clients' own models are the model.
    """
    mend = "lower training.learning_rate"
    if names := not_finite(server, start):
        return "", f"the model has diverged: {', '.join(names)} of the server's state is not finite; {mend}"
    broken = broken_clients(client_state, sorted(client_state))
    if ensemble and broken and len(broken) == len(client_state):
        return "", f"the model has diverged: what every client keeps is not finite; {mend}"
    if broken:
        return f"What {_named(broken)} is not finite ({len(broken)} of {len(client_state)} clients).", ""
    return "", ""


def _named(clients: Sequence[int]) -> str:
    """``clients 3, 7 and 40 others keep``."""
    shown = ", ".join(map(str, clients[:_SHOWN]))
    more = f" and {len(clients) - _SHOWN} others" if len(clients) > _SHOWN else ""
    return f"client {shown} keeps" if len(clients) == 1 else f"clients {shown}{more} keep"


def kept_warning(broken: Sequence[int]) -> str:
    """That ``broken`` clients keep something that is not finite; empty if there are none."""
    return f"what {_named(broken)} is not finite" if broken else ""


def _reasons(problems: Counter[str]) -> str:
    """``3 sent a non-finite 'update', 1 sent no 'update'``; the most frequent ones."""
    return ", ".join(f"{count} {reason}" for reason, count in problems.most_common(3))


def _mend(problems: Counter[str]) -> str:
    """What to do about the most frequent of ``problems`` for which there is anything."""
    for reason, _ in problems.most_common():
        for words, mend in _MENDS:
            if words in reason:
                return mend
    return "look at what clients hold"


def _broken(value: Tensor) -> bool:
    """Whether ``value`` holds a number that is not finite; a sum is finite only if all its terms are."""
    if not value.is_floating_point() or math.isfinite(float(value.sum())):
        return False
    return not bool(torch.isfinite(value).all())


def _differ(before: Tensors, after: Tensors) -> bool:
    """Whether anything that may be a model has changed; single numbers are rates and clocks."""
    return any(
        value.numel() > 1 and name in after and not torch.equal(value, after[name]) for name, value in before.items()
    )
