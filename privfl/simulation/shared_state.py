"""Whether parts of one's own left anything where the next client would find it, while clients trained.

Noise on whole updates covers what one client does to its own upload. An attribute of a class, a global or a list in a
closure outlives the client that wrote to it, and carries what it trained on into the uploads of others. Fields of an
algorithm, a loss or a network need no such look: each client has copies, or they are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privfl.engine.workspace import Phase
from privfl.federation.task import Task
from privfl.models import OwnModel
from privfl.privacy.accounting.release import Release, everywhere, unprotected
from privfl.references import called
from privfl.simulation.identity import Identity

SHARED_STATE = "state that clients share"
REASON = (
    "{} changed while clients trained: an attribute of a class, a global or a closure, by which one client's data may "
    "have come into another's upload; keep what a client needs in its own state (keeps)"
)


class SharedState:
    """What the parts of one's own that train the clients of ``phase`` reach outside of a client, as it is now.

    Nothing where no claim rests on it: a gradient under DP-SGD is noisy before anybody can leave it anywhere, and a
    loss and a model see one example at a time there.
    """

    def __init__(self, task: Task, phase: Phase) -> None:
        parts: list[tuple[str, Any]] = []
        if phase.apart:
            parts.append(("algorithm", phase.algorithm))
        if phase.channel.has_client_level_noise:
            parts.append(("loss", task.loss))
            if isinstance(task.model, OwnModel):
                parts.append(("model", task.model.build))
        self._parts = [(name, part) for name, part in parts if not called(part).startswith("privfl.")]
        self._before = [Identity(part).digest for _, part in self._parts]

    def changed(self) -> list[str]:
        """The parts of which anything has changed since, in words."""
        return [
            f"the {name} {called(part)}"
            for (name, part), before in zip(self._parts, self._before, strict=True)
            if Identity(part).digest != before
        ]


def shared_state(parts: Sequence[str]) -> Release:
    """What it costs that ``parts`` changed: every claim."""
    return everywhere(SHARED_STATE, unprotected(REASON.format(" and ".join(sorted(set(parts))))))
