"""What clients receive stays as it was sent: one client's step must not change it for the others, and for the server.

In a simulation all clients, and the server, hold the same tensors. A step that changes one of them in place would hand
what it trained on to whoever comes next, past every clipping, and into the server's model without any noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from privfl.algorithms import Algorithm
from privfl.algorithms.base import Tensors
from privfl.errors import ConfigError


def handed(received: Tensors) -> dict[str, Tensor]:
    """What was ``received`` as one client, or one stack of them, gets hold of it: in the same memory, and as new.

    What is added to it, written onto one of its tensors, or added up in the ``grad`` of one, stays with whoever did so.
    """
    return {name: value.detach() for name, value in received.items()}


Versions = Mapping[str, int]
"""By name, how often a tensor was changed in place so far."""


def versions_of(received: Tensors) -> Versions:
    """What :func:`check_unchanged` compares with."""
    return {name: value._version for name, value in received.items()}


def check_unchanged(algorithm: Algorithm, received: Tensors, versions: Versions) -> None:
    """Refuse an ``algorithm`` that has changed what it ``received`` since there were these ``versions`` of it.

    Raises:
        ConfigError: it has; the clients after it would train with the change.
    """
    for name, version in versions.items():
        if name not in received or received[name]._version != version:
            raise ConfigError(
                f"{algorithm.name} changed '{name}' of what clients receive, which all of them and the server share; "
                "change a copy of it (.clone())"
            )


def unshared(local: Mapping[str, Any], received: Tensors) -> dict[str, Any]:
    """``local`` with copies of tensors that lie in the memory of what was ``received``, since steps may change them."""
    shared = {value.untyped_storage().data_ptr() for value in received.values()}
    return {
        name: value.clone() if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in shared else value
        for name, value in local.items()
    }
