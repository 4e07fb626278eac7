"""Whether an object may stand in an upload's chain, and whether its class itself states what is claimed for it."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from privfl.errors import ConfigError
from privfl.privacy.accounting import stated
from privfl.privacy.mechanisms.distributed import DistributedNoise
from privfl.privacy.mechanisms.mechanism import AddsAt, Kind, Mechanism
from privfl.privacy.mechanisms.secure_sum import SecureSum

CLAIMS = {"bound": "norm_bound", "noise": "cover", "sum": "honest"}
"""Which method states what claims rest on; a transform claims nothing."""


def check_mechanism(link: object) -> Mechanism:
    """``link``, if it may stand in a chain.

    Raises:
        ConfigError: it is no mechanism, or one that says nothing sensible of itself.
    """
    name = type(link).__name__
    if isinstance(link, type):
        raise ConfigError(f"privacy.update holds the class {link.__name__}; give an object, {link.__name__}(…)")
    if not isinstance(link, Mechanism):
        value = f"{link!r}, which" if isinstance(link, str | int | float | None) else f"an object of {name}, which"
        raise ConfigError(
            f"privacy.update holds {value} is no mechanism for uploads; give such as Clip(1.0) and GaussianNoise(1.0), "
            "or derive its class from Mechanism"
        )
    if getattr(link, "kind", None) not in get_args(Kind):
        raise ConfigError(f"{name} does not say its kind; set kind to one of {', '.join(get_args(Kind))}")
    if link.adds_at not in get_args(AddsAt) or (link.kind == "noise") == (link.adds_at == "nowhere"):
        raise ConfigError(
            f"{name} is of the kind '{link.kind}' and adds_at is {link.adds_at!r}; a noise says 'client', 'share' or "
            "'server', everything else 'nowhere'"
        )
    if link.adds_at == "share" and not isinstance(link, DistributedNoise):
        raise ConfigError(f"{name} adds noise in shares, but is no DistributedNoise; derive its class from that")
    if link.kind == "sum" and not isinstance(link, SecureSum):
        raise ConfigError(f"{name} is of the kind 'sum', but no SecureSum; derive its class from that")
    if link.side_values and link.kind != "bound":
        raise ConfigError(f"{name} sends {', '.join(link.side_values)} beside updates, which only a bound may")
    taken = {field.name for field in fields(link)} & set(dir(Mechanism))
    if taken:
        raise ConfigError(f"{name} has a setting '{min(taken)}', which is what mechanisms do; name it otherwise")
    if loose := stated.loose_attributes(link):
        raise ConfigError(
            f"this {name} was changed after it was made, or keeps '{min(loose)}' outside of its settings; declare it "
            "as a field of a frozen dataclass, or write a class of its own"
        )
    return link


def unstated(link: Mechanism, claim: str) -> str:
    """Why ``link`` cannot be taken at its ``claim``; empty if it can: see :mod:`privfl.privacy.accounting.stated`."""
    return stated.unstated(link, claim, Mechanism)
