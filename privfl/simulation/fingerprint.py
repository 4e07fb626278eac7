"""What the messages of a run depend on, as named hashes: by them noise is derived, and a resumed run is compared.

Two runs that would send other messages under one noise give away the difference of the messages bare. So the noise of a
run comes from its key *and* its fingerprint: whatever differs between two fingerprints, their noises are independent.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from privfl.models import OwnModel
from privfl.privacy.settings import Privacy
from privfl.references import called, of_privfl
from privfl.simulation.health import LOG
from privfl.simulation.identity import Identity
from privfl.simulation.plan import Plan, RunSettings

PACKAGES = ("privfl", "numpy", "scipy", "opacus", "cryptography", "dp-accounting", "scikit-learn", "numba")
"""What takes part in a message, beside torch and Python."""
DATA: Mapping[str, str] = {
    "inputs": "the inputs",
    "targets": "the labels",
    "clients": "which client holds which examples",
    "test_inputs": "the held-out inputs",
    "test_targets": "the held-out labels",
    "local_tests": "which examples clients hold back for tests",
    "local_validations": "which examples clients hold back for validation",
    "classes": "the kind of the task, or its number of classes or tokens",
}
INDIFFERENT = ("engine", "inside", "workers", "address", "checkpoint_seconds")
"""Settings that another start may change: a run keeps its engine, and its workers where they decide the
rounding of messages."""
NO_MESSAGE = ("evaluate_every", "device", "gpus")
"""Settings that decide no message; what the device turns out to be does."""
CODE = ("model", "loss", "algorithm", "training", "privacy", "cohort", "availability")
"""Parts that a user may have written."""
POLICY = "the policy of the federation"
HOLDS = ", because it holds "
"""Behind what stands for a part that is another one each time."""
SETTINGS: Mapping[str, str] = {"schedule": "the rounds or how they are computed", "initial": "the initial model"}


@dataclass(frozen=True)
class Fingerprint:
    """What every message of one run depends on.

    Args:
        parts: for each part a hash, or what it is in words, such as a version.
        names: for parts that a user may have written what they are called, in words.
    """

    parts: Mapping[str, str]
    names: Mapping[str, str]

    @classmethod
    def of(cls, asked: RunSettings, plan: Plan, *, fresh: bool, policy: str = "") -> Fingerprint:
        """Of the run ``asked`` for, which became ``plan``.

        What decides the bits of a message beyond data, settings and own code (versions, privfl's own code, the device,
        the initial model) counts for a key from the operating system only: a fixed key is for experiments, which shall
        give the same figures elsewhere.

        Args:
            fresh: read the data again, also memory maps. Tensors in memory are always read: NumPy may have written to
                them since they were last.
            policy: digest of what the parties agreed to, where they are more than one.
        """
        task, drawn = asked.task, not plan.source.reproducible
        things: dict[str, Any] = {
            "model": task.model,
            "loss": task.loss,
            "algorithm": asked.algorithm,
            "training": asked.training,
            "privacy": replace(asked.privacy, noise_key=None),
            "cohort": asked.cohort,
            "availability": asked.availability,
            "schedule": {
                name: value
                for name, value in {**vars(asked.schedule), **vars(asked.execution)}.items()
                if name not in (*INDIFFERENT, *NO_MESSAGE) and (name != "rounds" or plan.bound_to_rounds)
            },
        }
        parts = {
            **task.content(fresh=fresh or task.open_to_arrays),
            "classes": f"{task.classes} {task.vocabulary} {task.kind}",
        }
        for name, thing in things.items():
            identity = Identity(thing)
            parts[name] = identity.digest
            if drawn and identity.unknown:  # nobody can say whether it is the same: it never is
                kinds = sorted(kind.replace(":", ".") for kind in identity.unknown)
                parts[name] = f"{os.urandom(16).hex()}{HOLDS}{', '.join(kinds)}"
        if drawn:
            parts |= {
                "initial": Identity(task.model(asked.schedule.seed).state_dict()).digest,
                "device": "Ray's GPUs" if asked.execution.gpus else _device(plan.initial.device),
                "privfl's own code": shipped_code(),
                **versions(),
            }
        if policy:
            parts[POLICY] = policy
        return cls(parts, {name: _called(things[name]) for name in CODE})

    def warn(self, path: Path) -> None:
        """Say that the run which begins in ``path`` could not be resumed, if that is so: because of what, and why."""
        called = {name: f"the code of {told}" for name, told in self.names.items()}
        held = {name: part.partition(HOLDS)[2] for name, part in self.parts.items() if HOLDS in part}
        if held:
            what = " and ".join(f"{called.get(name, name)} holds {kinds}" for name, kinds in held.items())
            LOG.warning(
                "%s cannot be resumed if it is interrupted: %s, and nobody can tell whether another process would have "
                "the same; create it where it is used",
                path,
                what,
            )

    @property
    def digest(self) -> bytes:
        """32 bytes."""
        return hashlib.sha256(json.dumps(dict(self.parts), sort_keys=True).encode()).digest()

    def differences(self, there: Mapping[str, str], settings: bool, libraries: bool) -> list[str]:
        """In words, what differs between this run and that whose parts are ``there``.

        Args:
            settings: those differences are named already that follow from other settings.
            libraries: whether it matters what computes the messages, beside the code of one's own.
        """
        return list(self._differences(there, settings, libraries))

    def _differences(self, there: Mapping[str, str], settings: bool, libraries: bool) -> Iterator[str]:
        for name in dict.fromkeys((*DATA, *CODE, *SETTINGS, *there, *self.parts)):
            was, found = there.get(name), self.parts.get(name)
            if was == found:
                continue
            if name in DATA:
                yield DATA[name]
            elif name in CODE or name in SETTINGS:
                if not settings and (name in CODE or libraries or name == "schedule"):
                    called = f"the code of {self.names[name]}" if name in CODE else SETTINGS[name]
                    yield called + (f" ({found.partition(', ')[2]})" if found and ", because" in found else "")
            elif libraries:
                short = len(was or "") > 60 or len(found or "") > 60
                yield name if short else f"{name} ({was or 'not recorded'} there and {found or 'not recorded'} here)"


def versions() -> dict[str, str]:
    """The versions of what computes messages."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2]), "torch": str(torch.__version__)}
    return found | {package: _version(package) for package in PACKAGES}


@cache
def _version(package: str) -> str:
    """What this process found installed when it first asked; each answer reads and parses a file."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@cache
def shipped_code() -> str:
    """A hash of all source files of privfl."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _device(device: torch.device) -> str:
    """Processors of one kind round alike; others need not."""
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"{device.type}, {torch.backends.cpu.get_cpu_capability()}"


def _called(thing: Any) -> str:
    """What a part is called where its code was changed."""
    if isinstance(thing, Privacy):
        mechanisms = [one for one in (thing.training, *thing.update, *thing.statistics, thing.size) if one is not None]
        own = [_called(one) for one in mechanisms if not of_privfl(one)]
        return " or ".join(own) or "privacy"
    return called(thing.build if isinstance(thing, OwnModel) else thing)
