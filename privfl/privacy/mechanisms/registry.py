"""The mechanisms of an upload's chain that a configuration file can name."""

from __future__ import annotations

from typing import Any

from privfl.privacy.mechanisms.adaptive_clip import AdaptiveClip
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.clip import Clip
from privfl.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfl.privacy.mechanisms.gaussian import GaussianNoise
from privfl.privacy.mechanisms.secure_sum import SecureSum
from privfl.privacy.mechanisms.tree import TreeNoise

UPDATE_MECHANISMS: dict[str, type[Any]] = {
    "adaptive-clip": AdaptiveClip,
    "banded-noise": BandedNoise,
    "clip": Clip,
    "discrete-gaussian-noise": DiscreteGaussianNoise,
    "gaussian-noise": GaussianNoise,
    "secure-sum": SecureSum,
    "skellam-noise": SkellamNoise,
    "tree-noise": TreeNoise,
}
"""privfl's own mechanisms of an upload's chain, by the name that configuration files use."""


def update_mechanisms() -> dict[str, type[Any]]:
    """Every mechanism of an upload's chain that a file can name, by its name."""
    return dict(UPDATE_MECHANISMS)
