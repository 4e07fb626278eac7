"""All privacy mechanisms of one run in one object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer, Unit
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.claims import check_mechanism
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.privacy.sizes.mechanism import SizeMechanism


@dataclass(frozen=True)
class Budget:
    """Stop before the round in which the claim of one cell of the statement would exceed ``epsilon``.

    Args:
        epsilon: largest ε that the cell may reach, > 0.
        unit: row of the statement: ``sample`` or ``client``.
        observer: column of the statement: ``server`` or ``public``.
    """

    epsilon: float
    unit: Unit = "sample"
    observer: Observer = "public"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ConfigError(f"the budget's epsilon is {self.epsilon!r}; give a positive number")


@dataclass(frozen=True)
class Privacy:
    """The mechanisms of one run; the default is none, and then every cell of the statement is ∞.

    Args:
        training: DP-SGD at the door.
        update: chain of mechanisms for the uploads, in order: any objects whose classes derive from
            :class:`~privfl.privacy.mechanisms.mechanism.Mechanism`.
        statistics: noise on the other sums over samples that an algorithm takes, such as prototypes.
        size: how clients report their sizes to algorithms that ask; ``None`` sends them exactly.
        max_size_error: refuse a size mechanism whose estimate of the total may have a larger relative standard
            deviation than this, in the worst case over all sizes.
        target_delta: δ in (0, 1) of every claim; should be well below one over the number of protected units.
        budget: stop the run in time.
        noise_key: fixes all privacy noise to reproduce an experiment; the statement then says that the run must not
            be released. ``None`` takes the key from the operating system.
    """

    training: DPSGD | None = None
    update: tuple[Mechanism, ...] = ()
    statistics: tuple[NoisyTotal, ...] = ()
    size: SizeMechanism | None = None
    max_size_error: float = 1.0
    target_delta: float = 1e-5
    budget: Budget | None = None
    noise_key: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "update", _links(self.update))
        object.__setattr__(self, "statistics", tuple(self.statistics))
        names = [one.statistic for one in self.statistics]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"privacy.statistics names '{twice}' twice; give one mechanism for each statistic")
        if not 0 < self.target_delta < 1:
            raise ConfigError(f"privacy.target_delta is {self.target_delta!r}; give a number in (0, 1), such as 1e-5")
        if self.noise_key is not None and self.noise_key < 0:
            raise ConfigError(f"privacy.noise_key is {self.noise_key}; give a non-negative integer, or leave it out")


def _links(update: Any) -> tuple[Mechanism, ...]:
    """The mechanisms that ``update`` lists.

    Raises:
        ConfigError: it is no list, or something in it is no mechanism for uploads.
    """
    if isinstance(update, Mechanism):
        raise ConfigError(f"privacy.update is {type(update).__name__} itself; put it into a list: update=[{update!r}]")
    if isinstance(update, str | type) or not isinstance(update, Iterable):
        raise ConfigError(f"privacy.update is {update!r}; give a list of mechanisms, such as [Clip(1.0)]")
    links = tuple(update)
    for link in links:
        for kind, home in ((DPSGD, "training"), (SizeMechanism, "size"), (NoisyTotal, "statistics")):
            if isinstance(link, kind):
                name = type(link).__name__
                raise ConfigError(f"privacy.update holds {name}, which is no mechanism for uploads; give it as {home}")
    return tuple(map(check_mechanism, links))
