"""Between images that people look at and the normalised inputs that networks take.

What a dataset of the catalog is normalised by is public. Of images of one's own nothing is known: they are taken for
pixels in [0, 1] as they are, which their values must bear out, unless an attack's setting ``pixels`` says otherwise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from privfl.data.catalog import info
from privfl.data.normalised import NORMALISED
from privfl.errors import ConfigError

ROOM = 1e-3
"""By how much rounding may carry a pixel out of [0, 1]."""


@dataclass(frozen=True)
class Pixels:
    """``inputs = (images − mean) / std`` with the public constants of a dataset, channel by channel.

    Args:
        mean: one number per channel, or one for all; 0 for inputs that are pixels in [0, 1] already.
        std: as many positive numbers; 1/255 for inputs from 0 to 255.

    Raises:
        ConfigError: the two differ in length, are empty, or a ``std`` is not positive.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ConfigError(f"Pixels has {len(self.mean)} means and {len(self.std)} std; give one each per channel")
        if not all(value > 0 for value in self.std):
            raise ConfigError(f"Pixels' std is {self.std!r}; give positive numbers")

    @classmethod
    def of(cls, dataset: str) -> Self:
        """The constants that the catalog's dataset ``dataset`` is normalised by.

        Raises:
            ConfigError: there is no such dataset, or it is not one of images.
        """
        entry = info(dataset)
        if not entry.mean:
            raise ConfigError(f"dataset '{dataset}' has no normalised images; choose one of images")
        return cls(tuple(entry.mean), tuple(entry.std))

    def inputs(self, images: Tensor) -> Tensor:
        """Network inputs [B, C, H, W] of ``images`` [B, C, H, W] in [0, 1]; differentiable."""
        mean, std = self._constants(images)
        return (images - mean) / std

    def images(self, inputs: Tensor) -> Tensor:
        """Images [B, C, H, W] of network ``inputs`` [B, C, H, W], clamped to [0, 1]."""
        mean, std = self._constants(inputs)
        return (inputs * std + mean).clamp(0, 1)

    def box(self, inputs: Tensor) -> Tensor:
        """``inputs`` [B, C, H, W] projected to what pixels in [0, 1] can give."""
        return self.inputs(self.images(inputs))

    def _constants(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.mean).view(-1, 1, 1), like.new_tensor(self.std).view(-1, 1, 1)


def pixels_of(dataset: str, inputs: Tensor, given: Pixels | None, whose: str = "public") -> Pixels:
    """How the ``inputs`` [N, C, H, W] of a run on ``dataset`` come from images: as ``given``, or as the catalog has it.

    Other data without a word about them are taken for pixels in [0, 1].

    Args:
        whose: what the inputs are, for the sentence that refuses them.

    Raises:
        ConfigError: the inputs are no images, ``given`` has another number of channels, or the inputs of data of one's
            own do not come from pixels in [0, 1] in this way.
    """
    if inputs.dim() != 4 or not inputs.is_floating_point():
        raise ConfigError(
            f"the inputs are {str(inputs.dtype).removeprefix('torch.')} {tuple(inputs.shape[1:])}, and this attack "
            "looks for images, floats [C, H, W]; leave it out"
        )
    if given is None and dataset in NORMALISED:
        return Pixels.of(dataset)
    found, channels = Pixels() if given is None else given, inputs.shape[1]
    if len(found.mean) not in (1, channels):
        raise ConfigError(
            f"pixels has {len(found.mean)} means and the images {channels} channels; give one for each, or one for all"
        )
    mean, std = found._constants(inputs)
    low, high = (float(value) for value in torch.aminmax(inputs * std + mean))
    if not (low >= -ROOM and high <= 1 + ROOM):
        taken = "taken as they are" if given is None else f"times {found.std} plus {found.mean}"
        raise ConfigError(
            f"the {whose} inputs, {taken}, lie in [{low:g}, {high:g}] and are no pixels in [0, 1]; set the attack's "
            "pixels, a mean and a std for which inputs · std + mean are"
        )
    return found


def told(pixels: Pixels | None) -> dict[str, Any]:
    """The setting ``pixels`` for a result's settings, where it was given."""
    return {} if pixels is None else {"pixels": asdict(pixels)}
