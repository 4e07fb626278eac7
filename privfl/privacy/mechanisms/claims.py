"""Whether an object may stand in an upload's chain, and whether its class itself states what is claimed for it."""

from __future__ import annotations

from dataclasses import fields
from itertools import takewhile
from typing import get_args

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.distributed import DistributedNoise
from privfl.privacy.mechanisms.mechanism import AddsAt, Kind, Mechanism
from privfl.privacy.mechanisms.secure_sum import SecureSum

CLAIMS = {"bound": "norm_bound", "noise": "cover", "sum": "honest"}
"""Which method states what claims rest on; a transform claims nothing."""
_BOOKKEEPING = {
    *("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__", "__slots__"),
    *("__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__match_args__", "__replace__"),
    *("__dataclass_fields__", "__dataclass_params__", "__init__", "__repr__", "__eq__", "__hash__", "__setattr__"),
    *("__delattr__", "__getstate__", "__setstate__"),
}
"""What Python and ``dataclass`` write into every class, and what only sets fields or shows them."""


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
    loose = vars(link).keys() - {field.name for field in fields(link)}
    if loose:
        raise ConfigError(
            f"this {name} was changed after it was made, or keeps '{min(loose)}' outside of its settings; declare it "
            "as a field of a frozen dataclass, or write a class of its own"
        )
    return link


def unstated(link: Mechanism, claim: str) -> str:
    """Why ``link`` cannot be taken at its ``claim``, the name of a method or attribute; empty if it can.

    The class that states a claim states it of what it and its bases do. Whatever a class nearer to the object changes
    of that makes the claim one about other code.
    """
    classes = type(link).__mro__
    nearer = tuple(takewhile(lambda one: claim not in vars(one), classes))
    stating = classes[len(nearer) :]
    name = type(link).__name__
    if stating[0] is Mechanism:
        return f"{name} states no {claim} of its own"
    settings = {field.name for field in fields(stating[0])}
    for one in nearer:
        for attribute, value in vars(one).items():
            if attribute in _BOOKKEEPING or (attribute in settings and not hasattr(value, "__get__")):
                continue
            if any(attribute in vars(base) for base in stating) or attribute in settings:
                return f"{name} changes {attribute} of {stating[0].__name__} and states no {claim} of its own"
    return ""
