"""How good a regression's predictions are on held-out data, by scikit-learn."""

from __future__ import annotations

import math

from torch import Tensor


def regression(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean squared error, its root, mean absolute error and R² of ``predictions`` against ``targets``, [N, values].

    Each is that of one value, averaged over the values. R² is NaN for a single row, and all are for predictions that
    are not finite.
    """
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

    if not bool(predictions.isfinite().all()):
        return dict.fromkeys(("test_loss", "test_rmse", "test_mae", "test_r2"), math.nan)
    both = targets.cpu().double().numpy(), predictions.cpu().double().numpy()
    return {
        "test_loss": float(mean_squared_error(*both)),
        "test_rmse": float(root_mean_squared_error(*both)),
        "test_mae": float(mean_absolute_error(*both)),
        "test_r2": float(r2_score(*both)) if len(targets) > 1 else math.nan,
    }


def rmse(predictions: Tensor, targets: Tensor) -> float:
    """Root mean squared error of ``predictions`` against ``targets``, [N, values], averaged over the values."""
    return regression(predictions, targets)["test_rmse"]


def mae(predictions: Tensor, targets: Tensor) -> float:
    """Mean absolute error of ``predictions`` against ``targets``, [N, values], averaged over the values."""
    return regression(predictions, targets)["test_mae"]
