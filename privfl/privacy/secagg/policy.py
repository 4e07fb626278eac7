"""What a client asks of a session before it takes part, and of a sum before it helps to open it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import PolicyRefused
from privfl.privacy.secagg.rules import LEAST_HONEST, Adversary
from privfl.privacy.secagg.session import UNSTATED, Session

Cohorts = Literal["any", "same"]


@dataclass(frozen=True)
class Policy:
    """A client's own terms, from a source that the server does not control; a session that breaks one is refused.

    What several opened sums tell together is not bounded by the protocol: the difference of two sums over cohorts that
    differ in one client is that client's vector, if the others' vectors stay the same. So a policy may bind the cohorts
    of the sums that one client helps to open, as far as its store remembers:

    * ``cohorts="same"``: any two cohorts are the same or have nobody in common. Then no combination of the sums is over
      fewer clients than one cohort, if vectors stay the same.
    * ``smallest_difference``: two cohorts are the same, or differ in so many clients at least. This bounds differences
      of two sums only; combinations of three or more may still single a client out.

    Both need the whole list of survivors, which a client sees on the complete graph only.

    Args:
        length: numbers in a vector.
        encoding: digest of the encoding of numbers.
        members: the session's members are all among these; ``None`` for anybody.
        adversary: the session is against this one, or a stronger one (``"active"``).
        accomplices: it withstands so many at least.
        least_honest: its sums are over so many honest clients at least.
        cohorts: ``"any"`` or ``"same"``.
        smallest_difference: 0 for any.

    Raises:
        ConfigError: a value is out of range.
    """

    length: int
    encoding: bytes = UNSTATED
    members: frozenset[int] | None = None
    adversary: Adversary = "active"
    accomplices: int = 0
    least_honest: int = LEAST_HONEST
    cohorts: Cohorts = "any"
    smallest_difference: int = 0

    def __post_init__(self) -> None:
        for name, value, options in (
            ("adversary", self.adversary, get_args(Adversary)),
            ("cohorts", self.cohorts, get_args(Cohorts)),
        ):
            if value not in options:
                raise ConfigError(f"a policy's {name} is {value!r}; give one of {', '.join(options)}.")
        for name, least in (("length", 1), ("accomplices", 0), ("least_honest", 2), ("smallest_difference", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"a policy's {name} is {value!r}; give an integer from {least}.")

    @property
    def binds_cohorts(self) -> bool:
        """Whether earlier sums matter."""
        return self.cohorts == "same" or self.smallest_difference > 0

    def check(self, session: Session) -> None:
        """Return if ``session`` keeps to this policy.

        Raises:
            PolicyRefused: it does not; the sentence says in what.
        """
        if self.members is not None and (strangers := set(session.members) - self.members):
            raise PolicyRefused(f"member {min(strangers)} is none of those that this client adds up with.")
        if self.adversary == "active" and session.adversary != "active":
            raise PolicyRefused(
                f"the session is against a server that is {session.adversary}; this client asks for active."
            )
        for name, value, least in (
            ("accomplices", session.accomplices, self.accomplices),
            ("least_honest", session.least_honest, self.least_honest),
        ):
            if value < least:
                raise PolicyRefused(f"the session's {name} is {value}; this client asks for {least} or more.")
        if session.length != self.length:
            raise PolicyRefused(
                f"the session adds vectors of {session.length} numbers; this client's have {self.length}."
            )
        if session.encoding != self.encoding:
            raise PolicyRefused("the session's encoding of numbers is not that of this client; both must use the same.")
        if self.binds_cohorts and not session.complete:
            raise PolicyRefused("this client compares cohorts, which it can see on the complete graph only.")

    def check_sum(self, survivors: Collection[int], earlier: Collection[frozenset[int]]) -> None:
        """Return if the sum over ``survivors`` may be opened after those over the ``earlier`` cohorts.

        Raises:
            PolicyRefused: together with an earlier sum it tells more than this policy allows.
        """
        cohort = frozenset(survivors)
        for one in earlier:
            if one == cohort:
                continue
            if self.cohorts == "same" and not one.isdisjoint(cohort):
                raise PolicyRefused(
                    f"an earlier sum is over {len(one)} clients, of whom {len(one & cohort)} are in this one too; "
                    "this client opens sums over the same cohort or over others altogether."
                )
            if len(one ^ cohort) < self.smallest_difference:
                raise PolicyRefused(
                    f"this sum and an earlier one differ in {len(one ^ cohort)} clients, whose vectors the difference "
                    f"would tell; this client asks for {self.smallest_difference} or more."
                )
