"""What the parties of a federation agreed on beforehand, and the policy by which a server opens a run."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w

from privfl.deploy.tasks import TaskDescription
from privfl.errors import ConfigError, PrivflError, brief
from privfl.experiment import Experiment
from privfl.federation.recipe import Recipe
from privfl.models import OwnModel
from privfl.models.flat_network import digest_of_frozen
from privfl.references import PACKAGE, imported
from privfl.schema import build, plain, read_toml
from privfl.simulation.fingerprint import INDIFFERENT, shipped_code, versions
from privfl.validation import Settings, check_number

KEY_DIGITS = 64
OWN = ("record", "device", "gpus", *INDIFFERENT)
"""Keys of an experiment file that each party sets as it likes."""
FROZEN = "frozen part of the model"
LIBRARIES = ("Python", "privfl", "torch", "numpy")
"""What has to be of the same version at every party."""


class PolicyDiffers(PrivflError):
    """A server's policy is not what this client agreed to."""


@dataclass(frozen=True)
class Federation(Settings):
    """Who takes part and on what, the same file at every party.

    Args:
        url: where the server listens, as the transport writes it.
        server: public key by which the server signs, 64 hexadecimal digits.
        clients: their public keys; a client's place in the list is its number.
        task: what everybody knows of the task.
        seconds: how long the server waits for the answers of one leg.
    """

    url: str
    server: str
    clients: tuple[str, ...]
    task: TaskDescription
    seconds: float = 60.0

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0, above=True)
        for key in (self.server, *self.clients):
            if len(key) != KEY_DIGITS or not set(key) <= set("0123456789abcdef"):
                raise ConfigError(
                    f"'{brief(key)}' is no public key; give the {KEY_DIGITS} digits that `privfl deploy key` prints"
                )
        if len(set(self.clients)) < len(self.clients) or self.server in self.clients:
            raise ConfigError("two parties of the federation have the same key; let each make its own")
        if not self.clients:
            raise ConfigError("the federation has no clients; list their public keys")

    @classmethod
    def from_toml(cls, path: Path) -> Federation:
        """Read ``path``.

        Raises:
            ConfigError: the file is missing, or a setting is unknown or impossible.
        """
        return build(cls, read_toml(path, "a federation file"))

    def to_dict(self) -> dict[str, Any]:
        """The settings as TOML can hold them."""
        found: dict[str, Any] = _without_none(plain(self))
        return found

    def to_toml(self) -> str:
        """The text of a federation file."""
        return tomli_w.dumps(self.to_dict())

    @property
    def keys(self) -> dict[int, bytes]:
        """The clients' public keys by number."""
        return {number: bytes.fromhex(key) for number, key in enumerate(self.clients)}


@dataclass(frozen=True)
class Policy:
    """What one run is, as its server says and signs, and as every client compares with what it agreed to.

    Args:
        run: 32 bytes that no other run has.
        experiment: all settings that decide messages, resolved.
        federation: the federation file.
        code: hash of privfl's own code.
        libraries: versions of what computes messages, of those in :data:`LIBRARIES`.
        parts: hashes of the files with the code of parts that are not privfl's own, and of what is frozen in a model of
            one's own, which no message carries.
    """

    run: bytes
    experiment: Mapping[str, Any]
    federation: Mapping[str, Any]
    code: str
    libraries: Mapping[str, Any]
    parts: Mapping[str, Any]

    @classmethod
    def of(cls, run: bytes, experiment: Experiment, federation: Federation) -> Policy:
        """The policy that this party would sign."""
        libraries = {name: version for name, version in versions().items() if name in LIBRARIES}
        agreed = shared_settings(experiment), federation.to_dict()
        return cls(run, *agreed, shipped_code(), libraries, _code(experiment, federation))

    def to_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "run": self.run.hex(),
            "experiment": dict(self.experiment),
            "federation": dict(self.federation),
            "code": self.code,
            "libraries": dict(self.libraries),
            "parts": dict(self.parts),
        }

    @classmethod
    def from_dict(cls, told: Any) -> Policy:
        """What :meth:`to_dict` gave.

        Raises:
            PolicyDiffers: these are no parts of a policy.
        """
        try:
            run = bytes.fromhex(told["run"])
            agreed, computed = (told["experiment"], told["federation"]), (told["libraries"], told["parts"])
            if len(run) != 32 or not all(isinstance(part, dict) for part in (*agreed, *computed)):
                raise TypeError("its parts are of other kinds")
            return cls(run, *agreed, str(told["code"]), *computed)
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyDiffers(
                f"the server sent no policy ({brief(str(error))}); both need the same privfl"
            ) from error

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that differ for policies that differ in anything."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def check(self, experiment: Experiment, federation: Federation) -> None:
        """Return if this is what the party with these files agreed to.

        Raises:
            PolicyDiffers: it is not; the sentence names the first setting that differs.
        """
        own = Policy.of(self.run, experiment, federation)
        if self.code != own.code:
            raise PolicyDiffers("the server runs another version of privfl's code; install the same on both sides")
        if difference := _difference(_canonical(own.libraries), _canonical(self.libraries)):
            raise PolicyDiffers(
                f"the server computes with other libraries: {difference}; install the same on both sides"
            )
        for what, mine, theirs in (
            ("experiment", own.experiment, self.experiment),
            ("federation", own.federation, self.federation),
        ):
            if difference := _difference(_canonical(mine), _canonical(theirs)):
                raise PolicyDiffers(
                    f"the server's {what} is not the one that this client agreed to: {difference}; agree on one file"
                )
        for name in sorted({*own.parts, *self.parts}):
            if self.parts.get(name) != own.parts.get(name):
                raise PolicyDiffers(
                    f"the server has another {name} than this client; give every party the same file of it"
                    if name == FROZEN
                    else f"the server's {name} has the same settings and other code than here; install the same module "
                    "of your own on both sides"
                )


def _code(experiment: Experiment, federation: Federation) -> dict[str, str]:
    """Hashes of the files with the code of parts that are not privfl's, and of what is frozen, by what they are."""
    task, privacy = federation.task, experiment.privacy
    parts: dict[str, Any] = {
        "algorithm": type(experiment.algorithm),
        "cohort": type(experiment.cohort),
        "availability": type(experiment.availability),
        "size mechanism": type(privacy.size),
        "DP-SGD": type(privacy.training),
        **{f"mechanism {place}": type(one) for place, one in enumerate((*privacy.update, *privacy.statistics))},
    }
    modules = {name: {part.__module__} for name, part in parts.items()}
    for name, named in (("model", task.model), ("loss", task.loss)):
        if named is not None and ":" in named.name:
            part = imported(named.name, f"task.{name}.name")
            modules[name] = {named.name.partition(":")[0], part.__module__}
    found = {}
    for name, homes in modules.items():
        files = (getattr(sys.modules.get(home), "__file__", None) for home in sorted(homes))
        own = [Path(file) for file in files if file is not None and not Path(file).resolve().is_relative_to(PACKAGE)]
        if own:
            found[name] = hashlib.sha256(b"".join(file.read_bytes() for file in own)).hexdigest()
    if "model" in found and (frozen := digest_of_frozen(OwnModel(task.model.load("task.model"))(0))):
        found[FROZEN] = frozen
    return found


def shared_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings of ``experiment`` that all parties must share; the data have a description of their own."""
    apart = {one.name for one in fields(Recipe)} | set(OWN)
    return {name: _storable(value) for name, value in experiment.to_dict().items() if name not in apart}


def _storable(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers that are not finite as texts."""
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _canonical(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


def _difference(mine: Any, theirs: Any, key: str = "") -> str:
    """The first setting that differs, with both values; empty if none does."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for name in sorted({*mine, *theirs}):
            if found := _difference(mine.get(name), theirs.get(name), f"{key}.{name}".lstrip(".")):
                return found
        return ""
    if mine == theirs:
        return ""
    return f"{key} is {brief(json.dumps(theirs))} there and {brief(json.dumps(mine))} here"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
