"""The chain of mechanisms that a user puts around updates: its links, and which chains make sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privfl.errors import ConfigError
from privfl.privacy.channel.field import Field
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.mechanisms.adaptive_clip import AdaptiveClip
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.clip import Clip
from privfl.privacy.mechanisms.distributed import DiscreteGaussianNoise, SharedNoise, SkellamNoise
from privfl.privacy.mechanisms.gaussian import GaussianNoise
from privfl.privacy.mechanisms.secure_sum import SecureSum
from privfl.privacy.mechanisms.tree import TreeNoise

Noise = GaussianNoise | TreeNoise | BandedNoise | DiscreteGaussianNoise | SkellamNoise
Mechanism = Clip | AdaptiveClip | Noise | SecureSum

KINDS = (Clip | AdaptiveClip, Noise, SecureSum)
"""Of each kind a chain holds at most one."""


@dataclass(frozen=True)
class Chain:
    """A chain by its links; each is there at most once.

    Order: the bound, then noise that clients add, then the secure sum, then noise that the server adds.
    """

    clip: Clip | AdaptiveClip | None = None
    noise: Noise | None = None
    secure: SecureSum | None = None

    @classmethod
    def of(cls, links: Sequence[Mechanism]) -> Chain:
        """The chain of ``links``, in their order.

        Raises:
            ConfigError: the links do not make sense in this order, or together.
        """
        for kind in KINDS:
            found = [link for link in links if isinstance(link, kind)]
            if len(found) > 1:
                names = " and ".join(type(link).__name__ for link in found)
                raise ConfigError(f"privacy.update holds a mechanism twice ({names}); give at most one of a kind")
        clip = next((link for link in links if isinstance(link, Clip | AdaptiveClip)), None)
        noise = next((link for link in links if isinstance(link, Noise)), None)
        secure = next((link for link in links if isinstance(link, SecureSum)), None)
        _check_order(links, clip, noise, secure)
        return cls(clip, noise, secure)

    def at_client(self) -> bool:
        """Whether every client adds noise of its own."""
        return _by_clients(self.noise)

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
        if isinstance(self.clip, AdaptiveClip) and noisy_sum:
            raise ConfigError(
                "DPSGD(noise_at='server') puts no noise on AdaptiveClip's count of clients; use Clip(max_norm) instead"
            )
        if self.secure is not None and not fields:
            raise ConfigError("this algorithm sends nothing that could be added up; leave SecureSum out")
        if (self.clip or self.noise) and [field.name for field in fields] != ["update"]:
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
                "is none: use fedsampling, or noise_at='client'"
            )


def _by_clients(noise: Noise | None) -> bool:
    """Whether clients add ``noise``, each its own or a share."""
    return isinstance(noise, SharedNoise) or (isinstance(noise, GaussianNoise) and noise.at == "client")


def _check_order(
    links: Sequence[Mechanism], clip: Clip | AdaptiveClip | None, noise: Noise | None, secure: SecureSum | None
) -> None:
    order = {id(link): place for place, link in enumerate(links)}
    name = type(noise).__name__
    if noise is not None and (clip is None or order[id(clip)] > order[id(noise)]):
        raise ConfigError(f"privacy.update adds {name} without a Clip before it; put Clip(max_norm) first")
    if secure is not None and clip is not None and order[id(clip)] > order[id(secure)]:
        raise ConfigError("privacy.update clips after SecureSum, where only the sum is left; put Clip before it")
    if isinstance(noise, SharedNoise) and secure is None:
        raise ConfigError(f"{name} is added in shares, which protect nobody one by one; put SecureSum() after it")
    if isinstance(clip, AdaptiveClip) and not (noise is None or isinstance(noise, GaussianNoise)):
        raise ConfigError(f"{name} needs one bound for the whole run, and AdaptiveClip's moves; use Clip(max_norm)")
    if isinstance(clip, AdaptiveClip) and isinstance(noise, GaussianNoise) and noise.at == "client":
        raise ConfigError("AdaptiveClip counts over the cohort, so its noise belongs to the sum; use at='server'")
    if secure is not None and noise is not None and (order[id(noise)] < order[id(secure)]) != _by_clients(noise):
        who, where = ("clients", "before") if _by_clients(noise) else ("the server", "after")
        raise ConfigError(f"{name} is added by {who}, so it belongs {where} SecureSum; move it there")
