"""Whether the class of a part itself states what is claimed for it, or has changed what another class claimed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import takewhile
from typing import Any

from privfl.errors import ConfigError

_BOOKKEEPING = {
    *("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__", "__slots__"),
    *("__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__match_args__", "__replace__"),
    *("__dataclass_fields__", "__dataclass_params__", "__init__", "__repr__", "__eq__", "__hash__", "__setattr__"),
    *("__delattr__", "__getstate__", "__setstate__"),
}
"""What Python and ``dataclass`` write into every class, and what only sets fields or shows them."""


def stating_class(part: object, claim: str) -> type:
    """The class nearest to ``part`` that defines ``claim``, the name of a method or attribute."""
    return next(one for one in type(part).__mro__ if claim in vars(one))


def unstated(part: Any, claim: str, root: type) -> str:
    """Why ``part`` cannot be taken at its ``claim``, the name of a method or attribute; empty if it can.

    The class that states a claim states it of what it and its bases do. Whatever a class nearer to the object changes
    of that makes the claim one about other code. What ``root``, the base of all such parts, says is no claim.
    """
    classes, name, stating_one = type(part).__mro__, type(part).__name__, stating_class(part, claim)
    if stating_one is root:
        return f"{name} states no {claim} of its own"
    nearer = tuple(takewhile(lambda one: one is not stating_one, classes))
    stating = classes[len(nearer) :]
    settings = {field.name for field in fields(stating_one)} if is_dataclass(stating_one) else set()
    for one in nearer:
        for attribute, value in vars(one).items():
            if attribute in _BOOKKEEPING or (attribute in settings and not hasattr(value, "__get__")):
                continue
            if any(attribute in vars(base) for base in stating) or attribute in settings:
                return f"{name} changes {attribute} of {stating_one.__name__} and states no {claim} of its own"
    return ""


def loose_attributes(part: Any) -> set[str]:
    """What was put into ``part``, a dataclass, after it was made, or is kept outside of its fields."""
    return set(vars(part)) - {field.name for field in fields(part)}


def check_exact(where: str, part: Any, kind: type) -> None:
    """Refuse ``part`` unless it is exactly a ``kind``, as it was made: its claim is one about that class.

    Raises:
        ConfigError: it is of a subclass, or was changed after it was made.
    """
    name = type(part).__name__
    if type(part) is not kind:
        raise ConfigError(
            f"{where} is a {name}, and nobody has accounted what that changes of {kind.__name__}; give a "
            f"{kind.__name__}(…) itself"
        )
    if loose := loose_attributes(part):
        raise ConfigError(
            f"this {name} was changed after it was made: it has '{min(loose)}', which is none of its settings; make a "
            "new one"
        )
