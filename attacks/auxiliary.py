"""What an attacker has besides a transcript: public data, the records it asks about, and never the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.validation import said


@dataclass(frozen=True)
class Records:
    """Examples: ``inputs`` [N, ...] as the network takes them, and ``targets`` int64 [N].

    NumPy arrays and lists become tensors, their numbers float32 and int64 as those of a task.

    Raises:
        ConfigError: they are no arrays of numbers, differ in number, or there is none.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", as_tensor("the records' inputs", self.inputs))
        object.__setattr__(self, "targets", as_tensor("the records' targets", self.targets))
        if len(self.inputs) != len(self.targets) or not len(self.inputs):
            raise ConfigError(
                f"there are {len(self.inputs)} inputs and {len(self.targets)} targets; give one target per input"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Tensor) -> Records:
        """The records of the rows ``rows`` (numbers or a mask)."""
        return Records(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True)
class Auxiliary:
    """Public data of the victims' domain, the candidates of a membership game, and the judge's answer key.

    Args:
        public: examples that the attacker owns: no client trains on them.
        candidates: records about which the attacker asks; it holds them, but does not know whose they are.
        users: int64 [n], which of the candidates are one user's, where users are asked about; the attacker knows.
        truth: what only the judge reads, by name: ``members`` bool [n] of the candidates, ``users`` bool [U],
            ``images``, ``labels``, ``tokens``, ``tokens_at``, ``counts``, ``sizes``. :meth:`for_attacker` takes it
            away before an attack sees the object.
    """

    public: Records | None = None
    candidates: Records | None = None
    truth: Mapping[str, Tensor] = field(default_factory=dict)
    users: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("public", "candidates"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Records):
                raise ConfigError(f"{name} is {said(given)}; give attacks.Records(inputs, targets)")
        if not isinstance(self.truth, Mapping):
            raise ConfigError(f"the truth is {said(self.truth)}; give answers by their names, such as members")
        answers = {name: as_tensor(f"truth['{name}']", answer) for name, answer in self.truth.items()}
        object.__setattr__(self, "truth", answers)
        if self.users is not None:
            object.__setattr__(self, "users", as_tensor("users", self.users))
        members = answers.get("members")
        if members is not None and self.candidates is not None:
            count = len(self.candidates)
            if members.shape != (count,) or not bool(((members == 0) | (members == 1)).all()):
                raise ConfigError(
                    f"truth['members'] is {said(members)} for {count} candidates; give True or False for each"
                )
            object.__setattr__(self, "truth", {**answers, "members": members.bool()})

    def check_inputs(self, shape: tuple[int, ...], *, tokens: bool) -> None:
        """Refuse public records and candidates that a network for inputs of this ``shape`` does not take.

        Args:
            tokens: whether inputs are token ids.

        Raises:
            ConfigError: they have another shape, or are numbers where tokens are due or the other way round.
        """
        for name, records in (("public records", self.public), ("candidates", self.candidates)):
            if records is None:
                continue
            found, ids = tuple(records.inputs.shape[1:]), not records.inputs.is_floating_point()
            if found != tuple(shape) or ids != tokens:
                raise ConfigError(
                    f"the {name} have inputs {str(records.inputs.dtype).removeprefix('torch.')} {found}, and the run's "
                    f"are {'token ids' if tokens else 'floats'} {tuple(shape)}; give them as the network takes them"
                )

    def for_attacker(self) -> Auxiliary:
        """The same without the answers."""
        return replace(self, truth={})

    def need_public(self) -> Records:
        """The public data.

        Raises:
            ConfigError: there are none.
        """
        if self.public is None:
            raise ConfigError("this attack needs public data of the same domain; give Auxiliary(public=Records(…))")
        return self.public

    def need_candidates(self) -> Records:
        """The candidates.

        Raises:
            ConfigError: there are none.
        """
        if self.candidates is None:
            raise ConfigError("this attack needs records to ask about; give Auxiliary(candidates=Records(…))")
        return self.candidates

    def answer(self, name: str) -> Tensor:
        """The judge's answer ``name``.

        Raises:
            ConfigError: it is not there.
        """
        if name not in self.truth:
            known = ", ".join(self.truth) or "nothing"
            raise ConfigError(f"the truth holds {known}, and the result needs '{name}'; add it to Auxiliary(truth=…)")
        return self.truth[name]


def checked_images(images: Tensor, name: str = "images") -> Tensor:
    """``images`` as they are, if they are float [N, C, H, W] in [0, 1] with N ≥ 1.

    Raises:
        ConfigError: another shape or type, or a value outside [0, 1] or not a number.
    """
    if images.dim() != 4 or not len(images) or not images.is_floating_point():
        raise ConfigError(f"{name} are {images.dtype} {tuple(images.shape)}; give floats [N, C, H, W] with N ≥ 1")
    low, high = (float(value) for value in torch.aminmax(images))
    if not (low >= 0 and high <= 1):
        raise ConfigError(f"{name} lie in [{low:g}, {high:g}]; give pixels in [0, 1]")
    return images


def as_tensor(name: str, values: Any) -> Tensor:
    """``values`` as a tensor; NumPy arrays and lists become float32, int64 or bool.

    Raises:
        ConfigError: they are no array of numbers, or a single one.
    """
    found = values if isinstance(values, Tensor) else _from_array(name, values)
    if found.dim() == 0:
        raise ConfigError(f"{name} are a single value, {said(found.item())}; give one for each example")
    return found


def _from_array(name: str, values: Any) -> Tensor:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unlike length
        array = np.empty(0, dtype=object)
    kind = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}.get(array.dtype.kind)
    if kind is None:
        raise ConfigError(f"{name} are {said(values)}; give a tensor or an array of numbers")
    return torch.from_numpy(np.array(array, dtype=kind))
