"""The mechanisms that a configuration file can name: privfl's own, and those that installed packages offer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.adaptive_clip import AdaptiveClip
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.clip import Clip
from privfl.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfl.privacy.mechanisms.gaussian import GaussianNoise
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.privacy.mechanisms.secure_sum import SecureSum
from privfl.privacy.mechanisms.tree import TreeNoise

GROUP = "privfl.mechanisms"
"""The group of entry points under which a package offers mechanisms, by the names that files use for them."""
UPDATE_MECHANISMS: dict[str, type[Mechanism]] = {
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


def update_mechanisms() -> dict[str, type[Mechanism]]:
    """Every mechanism of an upload's chain that a file can name, by its name.

    Raises:
        ConfigError: a package's entry point cannot be used, or takes a name that is taken.
    """
    found = dict(UPDATE_MECHANISMS)
    for point in _offered(entry_points, tuple(sys.path)):
        where = f"the entry point '{point.name}' of {point.dist.name if point.dist else 'an unknown package'}"
        try:
            kind = point.load()
        except Exception as error:
            raise ConfigError(
                f"{where} cannot be loaded ({type(error).__name__}: {error}); mend or uninstall that package"
            ) from error
        if not (isinstance(kind, type) and issubclass(kind, Mechanism)):
            raise ConfigError(f"{where} is {kind!r}, no class of mechanisms; derive it from privfl's Mechanism")
        if found.setdefault(point.name, kind) is not kind:
            raise ConfigError(f"{where} takes a name that is taken by {found[point.name].__name__}; name it otherwise")
    return found


@cache
def _offered(find: Callable[..., Any], path: tuple[str, ...]) -> tuple[Any, ...]:
    """The entry points on ``path``; to look for them takes 20 ms, and every experiment asks."""
    return tuple(find(group=GROUP))
