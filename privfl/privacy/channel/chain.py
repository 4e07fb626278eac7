"""The chain of mechanisms that a user puts around updates: its links, and which chains make sense."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import OBSERVERS, Observer
from privfl.privacy.channel.field import Field
from privfl.privacy.channel.own_noise import doubt
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.mechanisms.claims import CLAIMS, check_mechanism, unstated
from privfl.privacy.mechanisms.distributed import DistributedNoise
from privfl.privacy.mechanisms.mechanism import ChannelRun, Kind, Mechanism, Tensors
from privfl.privacy.mechanisms.secure_sum import SecureSum
from privfl.references import shipped


@dataclass(frozen=True)
class Chain:
    """A chain by its ``links``, in the order in which they act at the client.

    At most one bound, one noise and one secure sum, in this order; or the secure sum, then noise that the server adds.
    Transforms may stand anywhere before the first link that works on the sum.

    ``unclaimed`` says why the chain claims nothing, although it adds noise; empty if its classes state its claims.
    """

    links: tuple[Mechanism, ...] = ()
    unclaimed: str = ""

    @classmethod
    def of(cls, links: Sequence[object]) -> Chain:
        """The chain of ``links``.

        Raises:
            ConfigError: a link is no mechanism, or the links do not make sense in this order, or together.
        """
        checked = tuple(map(check_mechanism, links))
        for kind in CLAIMS:
            found = [link for link in checked if link.kind == kind]
            if len(found) > 1:
                names = " and ".join(type(link).__name__ for link in found)
                raise ConfigError(f"privacy.update holds a mechanism twice ({names}); give at most one of a kind")
        problems = [unstated(link, CLAIMS[link.kind]) for link in checked if link.kind in CLAIMS]
        problems += [unstated(link, "update_multiplier") for link in checked if link.side_values]
        chain = cls(checked, next(filter(None, problems), ""))
        chain._check_order()
        return chain

    def for_run(self, run: ChannelRun) -> Chain:
        """This chain for one run.

        Raises:
            ConfigError: a link does not go with it.
        """
        planned = Chain.of([link.for_run(run) for link in self.links])
        return replace(planned, unclaimed=self.unclaimed or planned.unclaimed or doubt(planned.noise, run))

    @cached_property
    def clip(self) -> Mechanism | None:
        """The link that bounds what one client may add."""
        return self._only("bound")

    @cached_property
    def noise(self) -> Mechanism | None:
        """The link that adds noise."""
        return self._only("noise")

    @cached_property
    def secure(self) -> SecureSum | None:
        """The link that adds up securely."""
        return next((link for link in self.links if isinstance(link, SecureSum)), None)

    @property
    def shares(self) -> DistributedNoise | None:
        """The noise, if it is added in shares."""
        return next((link for link in self.links if isinstance(link, DistributedNoise)), None)

    @cached_property
    def noise_on_sum(self) -> bool:
        """Whether what noise covers is how far one client moves the sum, and not what it sends."""
        return self.noise is not None and self.noise.adds_at != "client"

    @property
    def bounds_what_is_sent(self) -> bool:
        """Whether what an honest client sends keeps to the bound, so that whoever receives it may hold it to that.

        Noise that a client adds lengthens it, and so may what a link does after a bound that nothing is added to.
        """
        if self.noise is not None:
            return self.noise_on_sum
        clip = self.clip
        later = self.links[self.links.index(clip) + 1 :] if clip is not None else ()
        return clip is not None and shipped(type(clip)) and all(link.kind == "sum" for link in later)

    @property
    def covered(self) -> tuple[Observer, ...]:
        """Who sees no more than what the noise covers: noise that the server adds hides nothing from it."""
        if self.noise is None:
            return ()
        return ("public",) if self.noise.adds_at == "server" else OBSERVERS

    @property
    def side_values(self) -> Mapping[str, float]:
        """What clients send beside their updates: name → largest magnitude."""
        return {} if self.clip is None else self.clip.side_values

    @property
    def server_state(self) -> tuple[str, ...]:
        """What the links leave at the server for later rounds."""
        return tuple(name for link in self.links for name in link.server_state)

    def bound(self, server: Tensors, told: float | None = None) -> float:
        """The L2 norm that updates keep to where noise is added; ∞ without a bound.

        A client that does not know the ``server``'s state takes what it is ``told`` where a bound from outside may
        follow any of it: noise is sized for just that, or was planned for more.

        Raises:
            ConfigError: the bound is none that noise could be sized for.
        """
        clip, bound = self.clip, math.inf
        if clip is not None:
            bound = clip.norm_bound(server) if told is None or shipped(type(clip)) else told
        if self.noise is not None and not (isinstance(bound, float | int) and 0 < bound < math.inf):
            raise ConfigError(
                f"{type(clip).__name__} states the bound {bound!r}, for which no noise can be sized; let its "
                "norm_bound return a positive number"
            )
        return bound

    def uncovered_gradients(self) -> str:
        """Why noise that covers one sample's gradient in the sum no longer does after this chain; empty if it does."""
        for link in self.links:
            if link.kind == "sum" and (problem := unstated(link, CLAIMS["sum"])):
                return problem
            if link.kind in ("bound", "transform") and (not link.nonexpansive or unstated(link, "nonexpansive")):
                return f"{type(link).__name__} may move an update by more than the noise on the sum of gradients covers"
        return ""

    def check_fields(self, fields: Sequence[Field], dpsgd: DPSGD | None) -> None:
        """Refuse fields, and mechanisms at the door, that this chain cannot go with.

        Raises:
            ConfigError: with the field's name and what to do.
        """
        noisy_sum = dpsgd is not None and dpsgd.noise_at == "server"
        if self.noise is not None and noisy_sum:
            raise ConfigError(
                f"noise is added to the sum twice; use either DPSGD(noise_at='server') or {type(self.noise).__name__}"
            )
        if self.side_values and noisy_sum:
            raise ConfigError(
                f"DPSGD(noise_at='server') puts no noise on {type(self.clip).__name__}'s count of clients; use "
                "Clip(max_norm) instead"
            )
        if self.secure is not None and not fields:
            raise ConfigError("this algorithm sends nothing that could be added up; leave SecureSum out")
        if any(link.kind != "sum" for link in self.links) and [field.name for field in fields] != ["update"]:
            names = ", ".join(field.name for field in fields) or "nothing"
            raise ConfigError(
                f"privacy.update needs an algorithm that uploads one field 'update'; this one sends {names}"
            )
        apart = [field.name for field in fields if field.combine == "each"]
        if apart and self.secure is not None:
            raise ConfigError(
                f"the server needs every client's '{apart[0]}', which SecureSum hides from it; leave SecureSum out, or "
                "use an algorithm that needs sums only (`privfl list algorithms`)"
            )
        if apart and (self.noise is not None or noisy_sum):
            raise ConfigError(
                f"the server needs every client's '{apart[0]}', and noise is calibrated for their sum; leave the noise "
                "out, or use an algorithm that needs sums only (`privfl list algorithms`)"
            )
        unbounded = [field.name for field in fields if field.per_sample_scale is None]
        if noisy_sum and unbounded:
            raise ConfigError(
                f"DPSGD(noise_at='server') needs uploads that are sums of per-sample gradients; '{unbounded[0]}' "
                "is not such a sum; use fedsampling, or noise_at='client'"
            )

    def _only(self, kind: Kind) -> Mechanism | None:
        return next((link for link in self.links if link.kind == kind), None)

    def _check_order(self) -> None:
        clip, noise, secure = self.clip, self.noise, self.secure
        order = {id(link): place for place, link in enumerate(self.links)}
        name = type(noise).__name__
        if noise is not None and (clip is None or order[id(clip)] > order[id(noise)]):
            raise ConfigError(f"privacy.update adds {name} without a Clip before it; put Clip(max_norm) first")
        if secure is not None and clip is not None and order[id(clip)] > order[id(secure)]:
            raise ConfigError("privacy.update clips after SecureSum, where only the sum is left; put Clip before it")
        if noise is not None and noise.adds_at == "share" and secure is None:
            raise ConfigError(f"{name} is added in shares, which protect nobody one by one; put SecureSum() after it")
        if clip is not None and noise is not None and (clip.server_state or clip.side_values):
            bound = type(clip).__name__
            if not noise.splits_noise:
                raise ConfigError(f"{name} needs one bound for the whole run, and {bound}'s moves; use Clip(max_norm)")
            if noise.adds_at == "client":
                raise ConfigError(f"{bound} counts over the cohort, so its noise belongs to the sum; use at='server'")
        if secure is not None and noise is not None:
            by_server = noise.adds_at == "server"
            if (order[id(noise)] > order[id(secure)]) != by_server:
                who, where = ("the server", "after") if by_server else ("clients", "before")
                raise ConfigError(f"{name} is added by {who}, so it belongs {where} SecureSum; move it there")
        on_sum = [link for link in (noise, secure) if link is not None and link.adds_at != "client"]
        for link in self.links:
            late = [one for one in on_sum if order[id(link)] > order[id(one)]]
            if link.kind == "transform" and late:
                raise ConfigError(
                    f"{type(link).__name__} changes single updates, and {type(late[0]).__name__} works on their sum; "
                    f"put {type(link).__name__} before it"
                )
