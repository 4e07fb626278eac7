"""Between images that people look at and the normalised inputs that networks take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from privfl.data.catalog import info
from privfl.errors import ConfigError


@dataclass(frozen=True)
class Pixels:
    """``inputs = (images − mean) / std`` with the public constants of a dataset, channel by channel.

    Args:
        mean: one number per channel; 0 for inputs that are pixels in [0, 1] already.
        std: one positive number per channel.

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
