"""Who adds up in a secure sum: drawn by settings that everybody knows, or by the server, which may then choose."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from privfl.errors import ConfigError
from privfl.federation.availability import AVAILABILITY
from privfl.federation.cohorts import Everyone, FixedCohort, Rotation, check_selection
from privfl.privacy.mechanisms.secure_sum import SecureSum
from privfl.privacy.secagg.parameters import ThreatModel
from privfl.simulation.plan import Plan

BY_THE_SEED = (Everyone, FixedCohort, Rotation)
"""Rules whose draw needs neither secret coins nor sizes."""


@dataclass(frozen=True)
class SecureSumAmongAll(SecureSum):
    """A secure sum whose cohorts nobody but the server can tell: ``corrupt`` is a fraction of all ``clients`` then.

    Of a share of the cohort nothing would be left: of any three clients that the server names, a tenth is nobody.
    """

    clients: int = 0

    @classmethod
    def of(cls, secure: SecureSum, clients: int) -> SecureSumAmongAll:
        """``secure`` among so many clients."""
        return cls(**{one.name: getattr(secure, one.name) for one in fields(SecureSum)}, clients=clients)

    @property
    def whose(self) -> str:
        """Of whom ``corrupt`` is a fraction, in words."""
        return f"all {self.clients} clients"

    def accomplices(self, cohort: int) -> int:
        """How many of a cohort may work with the server, whom of all clients it names."""
        return ThreatModel(self.corrupt, 0.0).corrupt_of(self.clients)

    def honest(self, clients: int) -> int:
        """The fewest honest clients whose vectors are in a sum of ``clients`` that is ever opened.

        Stated anew, as a class that changes what its parent's claim rests on claims nothing without.

        Raises:
            ConfigError: no session of so many clients is safe.
        """
        return super().honest(clients)


def cohort_of(plan: Plan, round: int) -> list[int] | None:
    """Whom the settings draw for ``round``, ascending; ``None`` where secret coins, sizes or somebody's rule decide."""
    cohort, availability = plan.cohort, plan.availability
    if type(cohort) not in BY_THE_SEED or type(availability) not in AVAILABILITY.values():
        return None
    available = plan.available(round)
    drawn = cohort.draw(available, round, plan.schedule.seed, plan.source, np.ones(len(available)))
    clients: list[int] = check_selection(drawn, available, once=False).clients.tolist()
    return clients


def guarded(plan: Plan) -> Plan:
    """``plan`` whose secure sums withstand the agreed accomplices also where the server alone draws the cohorts.

    Raises:
        ConfigError: with so many no cohort of the usual size is safe.
    """
    channel, clients = plan.channel, len(plan.task.clients)
    secure = channel.secure
    if secure is None or isinstance(secure, SecureSumAmongAll) or cohort_of(plan, 0) is not None:
        return plan
    among = SecureSumAmongAll.of(secure, clients)
    links = tuple(among if link is secure else link for link in channel.chain.links)
    channel = replace(channel, chain=replace(channel.chain, links=links))
    if refusal := channel.usual.refusal:
        raise ConfigError(
            f"{refusal}; the server draws the cohorts of {type(plan.cohort).__name__} and "
            f"{type(plan.availability).__name__}, so {among.accomplices(0)} of all {clients} clients may be in each: "
            "let the seed draw them (everyone, fixed, rotation), or lower corrupt"
        )
    return replace(plan, channel=channel)
