"""privfl's rounds against a bare loop, pfl and Flower for a small MLP: see :mod:`peers`."""

from __future__ import annotations

from typing import Any

from peers import compare


def run(repeats: int) -> list[dict[str, Any]]:
    """Rows for the MLP, without and with noise."""
    return compare(repeats, ("mlp",))
