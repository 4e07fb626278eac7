"""The table of `docs/results/fedevg.md` that is made of the runs of `examples/papers/fedevg_local.py`."""

from __future__ import annotations

from collections.abc import Callable

from tables import spread, table
from verdict_intervals import interval, of_held_back

METHODS = {"signed": "FedEvg", "fedcvae": "FedCVAE", "fedcgan": "FedCGAN"}
ALPHAS = {"1.0": "1", "0.01": "0.01"}


def held_back() -> str:
    """Accuracy on what clients hold back, and FID, for both numbers of clients and both federations."""
    rows = []
    for clients in (10, 100):
        for alpha, shown in ALPHAS.items():
            for method, name in METHODS.items():
                own, base = (of_held_back(clients, alpha, one) for one in (method, "signed"))
                less = "–" if method == "signed" else interval(base, own)
                rows.append([str(clients), shown, name, spread(own, 1), less])
                rows[-1].append(spread(of_held_back(clients, alpha, method, "fid"), 0))
    return table(["clients", "α", "method", "accuracy (%)", "FedEvg − it", "FID"], rows)


TABLES: dict[str, dict[str, Callable[[], str]]] = {"fedevg": {"held back": held_back}}
