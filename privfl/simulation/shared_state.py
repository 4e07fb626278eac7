"""Whether parts of one's own left anything where the next client would find it, while clients trained.

Noise on whole updates, or on a report, covers what one client does to its own upload. An attribute of a class, a global
or a list in a closure outlives the client that wrote to it, and carries what it trained on into the uploads of others;
so does a random generator of the whole process, by how much was drawn from it. Fields of an algorithm, a loss or a
network need no such look: each client has copies, or they are put back.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.engine.workspace import Phase
from privfl.federation.task import Task
from privfl.models import OwnModel
from privfl.models.module_state import ModuleState
from privfl.privacy.accounting.release import Release, everywhere, unprotected
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.references import called, of_privfl
from privfl.simulation.every_state import EveryState

SHARED_STATE = "state that clients share"
REASON = (
    "{} changed while clients trained, outside of any client (an attribute of a class, a global, a closure), so that "
    "one client's data may have come into another's upload; keep what a client needs in its own state (keeps), draw "
    "by random_numbers, and let mechanisms keep nothing"
)

_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class SharedState:
    """What the parts of one's own that train the clients of ``phase`` reach outside of a client, as it is now.

    Nothing where no claim rests on it: a gradient under DP-SGD is noisy before anybody can leave it anywhere, and a
    loss and a model see one example at a time there. ``received`` is what clients share, and ``states`` are those of
    the networks that train, of which is looked at what remains when they have been restored.
    """

    def __init__(
        self, task: Task, phase: Phase, training: LocalTraining, received: Tensors, states: Sequence[ModuleState]
    ) -> None:
        parts: list[tuple[str, Any]] = []
        if phase.apart:
            parts += [("algorithm", phase.algorithm), ("training", training)]
        if phase.forgets:
            parts.append(("loss", task.loss))
            if isinstance(task.model, OwnModel):
                parts.append(("model", task.model.build))
        if phase.mechanisms_forget:
            parts += [("mechanism", link) for link in phase.channel.chain.links]
        own = [(name, part) for name, part in parts if not of_privfl(part)]
        self._parts: dict[str, Any] = {}
        for name, part in own:
            told = f"the {name} {called(part)}"
            self._parts[f"{told}, once more" if told in self._parts else told] = part
        self._states = states if phase.apart or phase.forgets else ()
        self._received = received if phase.apart else {}
        self._found: set[str] = set()
        self._before = self._now()
        self._sent = {name: value.clone() for name, value in self._received.items()}

    @property
    def watches(self) -> bool:
        """Whether a claim rests on parts of one's own that leave nothing behind."""
        return bool(self._parts)

    def look(self, mechanism: Mechanism | None) -> None:
        """Note it if what ``mechanism``, or any part, can reach has changed by now, though nothing be left at the end.

        Where clients train side by side, what one leaves and another takes at once may be over before anybody looks.
        """
        before = dict(self._before[0])
        for name, part in self._parts.items():
            if name in self._found or (mechanism is not None and part is not mechanism):
                continue
            try:
                same = EveryState(part).digest == before[name].digest
            except RuntimeError:  # another worker changes it right now
                same = False
            if not same:
                self._found.add(name)

    def changed(self) -> list[str]:
        """What has changed since, or may have, in words."""
        (parts, process), (parts_before, process_before) = self._now(), self._before
        pairs = zip(parts, parts_before, strict=True)
        differ = [name in self._found or now.digest != before.digest for (name, now), (_, before) in pairs]
        own = [name + _opaque(now) for (name, now), other in zip(parts, differ, strict=True) if other]
        own += [f"what clients receive ('{name}')" for name, sent in self._sent.items() if self._differs(name, sent)]
        return own + [name for name, now in process.items() if now != process_before[name]]

    def _differs(self, name: str, sent: Tensor) -> bool:
        """Whether ``name`` of what clients receive has other bits now than when it was ``sent``."""
        now = self._received.get(name)
        return now is None or now.shape != sent.shape or not torch.equal(_bits(now), _bits(sent))

    def _now(self) -> tuple[list[tuple[str, EveryState]], dict[str, Any]]:
        """The parts and networks, and what the whole process has, each as what is equal while nobody changes it."""
        for state in self._states:
            state.restore()
        if not self._parts:
            return [], {}
        on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        process = {
            "PyTorch's global random generator": torch.get_rng_state().numpy().tobytes(),
            "CUDA's global random generator": [one.numpy().tobytes() for one in on_cuda],
            "NumPy's global random generator": _values(np.random.get_state(legacy=False)),  # noqa: NPY002 - of any kind
            "Python's global random generator": random.getstate(),
            "a variable of the environment": _environment(),
        }
        parts = [(name, EveryState(part)) for name, part in self._parts.items()]
        for state in self._states:  # one by one: the parameters of another network hold what another client trained
            now = EveryState(state.remembered, loaded=state.parameters, apart=state.modules)
            parts.append(("the network that trains", now))
        return parts, process


def _bits(tensor: Tensor) -> Tensor:
    """``tensor`` as bytes, so that what is not a number equals itself."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _environment() -> dict[str, str]:
    """The variables of the environment, but for the folder that PyTorch's compiler notes there at its first use."""
    found, inductor = dict(os.environ), sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if inductor is not None and found.get(_CACHE) == os.path.abspath(inductor.default_cache_dir()):
        del found[_CACHE]
    return found


def _values(state: Any) -> Any:
    """The state of a generator as what equals itself: arrays as bytes, which is quicker than a hash of each."""
    if isinstance(state, dict):
        return {name: _values(value) for name, value in state.items()}
    if isinstance(state, np.ndarray) and state.dtype != object:
        return state.dtype.str, state.shape, state.tobytes()
    return state if isinstance(state, int | str) else EveryState(state).digest


def _opaque(state: EveryState) -> str:
    """What of it nothing can look into, which counts as changed, in words."""
    kinds = ", ".join(sorted(one.replace(":", ".") for one in state.unknown))
    return f" (which reaches {kinds}, whose content cannot be told)" if kinds else ""


def shared_state(parts: Sequence[str]) -> Release:
    """What it costs that ``parts`` changed: every claim."""
    return everywhere(SHARED_STATE, unprotected(REASON.format(" and ".join(sorted(set(parts))))))
