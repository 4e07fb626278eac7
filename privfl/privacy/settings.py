"""All privacy mechanisms of one run in one object."""

from __future__ import annotations

from dataclasses import dataclass

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer, Unit
from privfl.privacy.accounting.stated import check_exact, loose_attributes
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.claims import check_mechanism
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.validation import Settings


@dataclass(frozen=True)
class Budget(Settings):
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
class Privacy(Settings):
    """The mechanisms of one run; the default is none, and then every cell of the statement is ∞.

    Args:
        training: DP-SGD at the door.
        update: chain of mechanisms for the uploads, in order: any objects whose classes derive from
            :class:`~privfl.privacy.mechanisms.mechanism.Mechanism`.
        statistics: noise on the other sums over samples that an algorithm takes, such as prototypes.
        size: how clients report their sizes to algorithms that ask; ``None`` sends them exactly.
        max_size_error: refuse a size mechanism whose estimate of the total may have a larger relative standard
            deviation than this, in the worst case over all sizes.
        target_delta: δ in (0, ½) of every claim; should be well below one over the number of protected units, and the
            statement says so where it is above that.
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
        object.__setattr__(self, "update", tuple(map(check_mechanism, self.update)))
        self.check_parts()
        names = [one.statistic for one in self.statistics]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"privacy.statistics names '{twice}' twice; give one mechanism for each statistic")
        if not self.max_size_error > 0:
            raise ConfigError(f"privacy.max_size_error is {self.max_size_error!r}; give a positive number, such as 1.0")
        if not 0 < self.target_delta < 0.5:
            raise ConfigError(
                f"privacy.target_delta is {self.target_delta!r}; give a number in (0, 0.5), such as 1e-5: at a half or "
                "more a claim says nothing, however few there are to protect"
            )
        if self.noise_key is not None and self.noise_key < 0:
            raise ConfigError(f"privacy.noise_key is {self.noise_key}; give a non-negative integer, or leave it out")

    def check_parts(self) -> None:
        """Refuse a mechanism whose class or object is another one than was accounted; before a run, again.

        The chain and sizes may be of anybody's class, which then claims what it states itself.

        Raises:
            ConfigError: with the part and the mend.
        """
        if self.training is not None:
            check_exact("privacy.training", self.training, DPSGD)
        for one in self.statistics:
            check_exact("an entry of privacy.statistics", one, NoisyTotal)
        for link in self.update:
            check_mechanism(link)
        if self.size is not None and (loose := loose_attributes(self.size)):
            raise ConfigError(
                f"this {type(self.size).__name__} was changed after it was made, or keeps '{min(loose)}' outside of "
                "its settings; declare it as a field of a frozen dataclass, or write a class of its own"
            )
