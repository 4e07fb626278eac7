"""Whether a model fits into memory at all: asked before it is built, because the system kills who takes too much."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from privfl.errors import ConfigError
from privfl.models import NamedModel

COPIES = 4
"""Of its parameters, what training takes at least: the server's, a client's, a gradient, and the sum of uploads."""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(model: NamedModel) -> None:
    """Refuse ``model`` if its training takes more memory than this machine has.

    Raises:
        ConfigError: with the number of parameters and both sizes.
    """
    parameters, there = model.parameters(), machine_bytes()
    needed = 4.0 * COPIES * parameters
    if needed > there:
        raise ConfigError(
            f"model '{model.name}' has {parameters:,} parameters on inputs of shape {tuple(model.input_shape)}, and "
            f"training it takes {needed / 2**30:,.0f} GiB of memory at least, where this machine has "
            f"{there / 2**30:,.1f} GiB; scale the inputs down, or name a model with fewer parameters"
        )


def machine_bytes() -> float:
    """Bytes of memory that this process may take at most: the machine's, or its container's if these are fewer."""
    found = [float("inf")]
    with suppress(ValueError, OSError, AttributeError):  # not every system tells: then nothing is refused
        found.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    for path in _LIMITS:
        try:
            found.append(float(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # no container, or one without a limit ("max")
    return min(found)
