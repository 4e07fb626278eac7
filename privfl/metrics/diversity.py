"""How far the clients' models lie apart."""

from __future__ import annotations

from torch import Tensor


def weight_diversity(models: Tensor) -> float:
    """``Λ = (1/|S|)·Σ_{i∈S} ‖w_i − w̄‖²`` with the plain mean w̄, equation (13) of ReBaFL; ≥ 0.

    Args:
        models: flat parameters [S, size] of the clients that took part, S ≥ 1. Updates of one round serve as well: the
            common start cancels.

    Returns:
        Λ, computed in float64; 0 for one client and for identical models.
    """
    models = models.double()
    return float((models - models.mean(0)).square().sum(1).mean())
