"""Tensors from outside, held to be tensors and nothing else.

A subclass of :class:`torch.Tensor` answers what PyTorch is asked about it: its norm could be zero and its sum another
one. Attributes that are written onto a tensor do the same to its methods. Whatever is clipped, measured or added up is
made plain first, where it comes in.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Parameter

from privfl.errors import ConfigError

KINDS = frozenset((Tensor, Parameter))
"""What PyTorch itself makes."""


def plain(tensor: Any) -> Tensor | None:
    """``tensor`` without anything that was written onto it; ``None`` if it is no tensor of PyTorch's own kind."""
    if type(tensor) not in KINDS:
        return None
    return Tensor.detach(tensor) if tensor.__dict__ else tensor


def check_plain(tensor: Tensor, what: str) -> Tensor:
    """``tensor``, made :func:`plain`, which is named ``what``.

    Raises:
        ConfigError: it is of a kind of its own.
    """
    found = plain(tensor)
    if found is None:
        raise ConfigError(
            f"{what} is a {type(tensor).__name__}, whose own code would decide what it adds up to; make it a plain "
            "tensor (tensor.as_subclass(torch.Tensor))"
        )
    return found


def check_untouched(values: Any, what: str) -> None:
    """Refuse ``values``, which are named ``what``, if they are a tensor that is not :func:`plain` as it is.

    Raises:
        ConfigError: they are a tensor of a kind of its own, or one with attributes.
    """
    if isinstance(values, Tensor) and check_plain(values, what) is not values:
        raise ConfigError(
            f"{what} has attributes of its own ({', '.join(sorted(values.__dict__))}), which could stand in for what "
            "a tensor does; give tensor.detach()"
        )


def given_plain(argument: Any, what: str = "what a step passes to the door") -> Any:
    """An ``argument`` from outside: a tensor or a table of tensors made plain, anything else as it is.

    Raises:
        ConfigError: a tensor in it is of a kind of its own.
    """
    if isinstance(argument, Tensor):
        return check_plain(argument, what)
    if isinstance(argument, dict):
        return {name: given_plain(value, what) for name, value in dict(argument).items()}
    return argument


def plain_parts(upload: Any) -> Any:
    """``upload`` with the tensors in it made plain; one of a kind of its own stays, and is no part of an upload."""
    if not isinstance(upload, dict):
        return upload
    return {name: value if (found := plain(value)) is None else found for name, value in dict(upload).items()}
