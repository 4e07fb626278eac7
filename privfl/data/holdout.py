"""Holding out rows for testing: stratified by class, and inside each client where there are clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privfl.randomness import numpy_stream
from privfl.validation import check_number


def stratified_holdout(
    targets: ArrayLike, *, fraction: float = 0.2, clients: ArrayLike | None = None, seed: int = 0
) -> NDArray[np.bool_]:
    """Which rows are held out, bool [N].

    Rows are drawn by systematic sampling over the rows of a client in class order, so each class of each client
    gives its share, rounded down or up. A client with n rows gives ``round(fraction * n)`` rows, at least one and
    at most n - 1; a client with a single row keeps it for training. Without ``clients`` all rows are one client.

    Args:
        targets: integer labels [N].
        fraction: share held out, in (0, 1).
        clients: client numbers [N].
        seed: root seed of the stream ``holdout``.

    Raises:
        ConfigError: ``fraction`` is not strictly between 0 and 1.
    """
    check_number("test_fraction", fraction, 0, 1, above=True, below=True)
    labels = np.asarray(targets)
    groups = np.zeros(len(labels), dtype=np.int64) if clients is None else np.asarray(clients)
    rng = numpy_stream(seed, "holdout")
    order = np.lexsort((rng.random(len(labels)), labels, groups))
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    held = np.zeros(len(labels), dtype=np.bool_)
    for rows in np.split(order, starts):
        size = len(rows)
        if size < 2:
            continue
        count = min(max(round(fraction * size), 1), size - 1)
        picks = ((np.arange(count) + rng.random()) * size / count).astype(np.int64)
        held[rows[np.minimum(picks, size - 1)]] = True
    return held
