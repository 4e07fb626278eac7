"""What an upload is made of: named tensors, each with how the server puts the cohort's together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseStream, round_to_grid
from privfl.validation import Settings, check_number


@dataclass(frozen=True)
class Field(Settings):
    """One named tensor of an upload.

    Args:
        name: key in the upload.
        combine: ``"sum"``: the server needs only the sum over the cohort, so the field streams and can be aggregated
            securely; ``"each"``: it needs every client's value.
        shape: shape that the value must have; ``None`` is that of the parameters, ``()`` a scalar.
        weighted: whether the client's weight applies to it in a sum.
        epsilon: ε > 0 of a randomised report: the client clips its number to ``value_range``, adds Laplace noise of
            scale (high − low)/ε, and clips again. Guarantee: ε-DP for everything the client holds (substitution), for
            who sees the message, in every round anew.
        value_range: (low, high) of a randomised report, public constants.
        per_sample_scale: set if the field is a sum of per-sample gradients times this number, so that one sample whose
            gradient has norm C moves it by at most ``per_sample_scale``·C. Then noise may be added to the sum.
    """

    name: str
    combine: Literal["sum", "each"] = "sum"
    shape: tuple[int, ...] | None = None
    weighted: bool = True
    epsilon: float | None = None
    value_range: tuple[float, float] = (0.0, 1.0)
    per_sample_scale: float | None = None

    def __post_init__(self) -> None:
        low, high = self.value_range
        if self.per_sample_scale is not None:
            check_number(f"the field '{self.name}' has a per_sample_scale that", self.per_sample_scale, 0, above=True)
        if self.epsilon is not None and self.shape != ():
            raise ConfigError(f"the field '{self.name}' is randomised but no single number; give it the shape ()")
        if self.epsilon is not None and not (0 < self.epsilon < math.inf and -math.inf < low < high < math.inf):
            raise ConfigError(
                f"the field '{self.name}' is randomised with epsilon {self.epsilon!r} in {self.value_range!r}; give a "
                "positive epsilon and a finite range (low, high)"
            )

    def randomise(self, value: Tensor, noise: NoiseStream) -> Tensor:
        """The report of ``value`` [] as it leaves the client; a value that is not finite counts as the range's low end.

        The noise is rounded to a grid before the second clipping, so that its low bits tell nothing.
        """
        assert self.epsilon is not None
        low, high = self.value_range
        true = float(value)
        clipped = min(max(true, low), high) if math.isfinite(true) else low
        scale = (high - low) / self.epsilon
        noisy = float(round_to_grid(clipped + noise.laplace(1, scale), scale)[0])
        return torch.full_like(value, min(max(noisy, low), high))
