"""What an attacker has besides a transcript: public data, the records it asks about, and never the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privfl.errors import ConfigError


@dataclass(frozen=True)
class Records:
    """Examples: ``inputs`` [N, ...] as the network takes them, and ``targets`` int64 [N].

    Raises:
        ConfigError: they differ in number, or there is none.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
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
