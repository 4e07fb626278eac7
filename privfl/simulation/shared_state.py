"""Whether parts of one's own left anything where the next client would find it, while clients trained.

Noise on whole updates, or on a report, covers what one client does to its own upload. An attribute of a class, a global
or a list in a closure outlives the client that wrote to it, and carries what it trained on into the uploads of others;
so does a random generator of the whole process, by how much was drawn from it. Fields of an algorithm, a loss or a
network need no such look: each client has copies, or they are put back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from privfl.engine.workspace import Phase
from privfl.federation.task import Task
from privfl.models import OwnModel
from privfl.privacy.accounting.release import Release, everywhere, unprotected
from privfl.references import called, of_privfl
from privfl.simulation.every_state import EveryState

SHARED_STATE = "state that clients share"
REASON = (
    "{} changed while clients trained, outside of any client (an attribute of a class, a global, a closure), so that "
    "one client's data may have come into another's upload; keep what a client needs in its own state (keeps), and "
    "draw by random_numbers"
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
        if phase.channel.covers_clients:
            parts.append(("loss", task.loss))
            if isinstance(task.model, OwnModel):
                parts.append(("model", task.model.build))
        own = [(name, part) for name, part in parts if not of_privfl(part)]
        self._parts = {f"the {name} {called(part)}": part for name, part in own}
        self._before = self._now()

    def changed(self) -> list[str]:
        """What has changed since, or may have, in words."""
        (parts, generators), (parts_before, generators_before) = self._now(), self._before
        own = [name + _opaque(now) for name, now in parts.items() if now.digest != parts_before[name].digest]
        drawn_from = [name for name, now in generators.items() if now != generators_before[name]]
        return own + [f"{name} global random generator" for name in drawn_from]

    def _now(self) -> tuple[dict[str, EveryState], dict[str, Any]]:
        """The parts, and the process's random generators, each as what is equal as long as nobody draws."""
        if not self._parts:
            return {}, {}
        on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        generators = {
            "PyTorch's": torch.get_rng_state().numpy().tobytes(),
            "CUDA's": [one.numpy().tobytes() for one in on_cuda],
            "NumPy's": EveryState(np.random.get_state(legacy=False)).digest,  # noqa: NPY002 - of any kind, each with another state
            "Python's": random.getstate(),
        }
        return {name: EveryState(one) for name, one in self._parts.items()}, generators


def _opaque(state: EveryState) -> str:
    """What of it nothing can look into, which counts as changed, in words."""
    kinds = ", ".join(sorted(one.replace(":", ".") for one in state.unknown))
    return f" (which reaches {kinds}, whose content cannot be told)" if kinds else ""


def shared_state(parts: Sequence[str]) -> Release:
    """What it costs that ``parts`` changed: every claim."""
    return everywhere(SHARED_STATE, unprotected(REASON.format(" and ".join(sorted(set(parts))))))
