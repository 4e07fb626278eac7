"""Lower-triangular Toeplitz strategies C of the matrix mechanism: coefficients, inverse, errors, optimisation.

A strategy is given by the first column c₀ = 1, c₁, … of C (zeros follow the last coefficient given). Prefix sums are
A = B C with A the lower-triangular matrix of ones, so that the noise on the prefix sum after round t is row t of
B = A C⁻¹ times fresh standard normal numbers. Everything here is in units of those.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
Objective = Literal["mean", "max", "square-root"]


def square_root(bands: int) -> Array:
    """The first ``bands`` coefficients binom(2k, k)/4ᵏ of A's square root, float64.

    From Fichtenberger, Henzinger and Upadhyay, "Constant matters", ICML 2023. With as many bands as rounds no Toeplitz
    strategy has a smaller maximal error for single participation (Dvijotham et al., "Efficient and near-optimal noise
    generation for streaming differential privacy", FOCS 2024).

    >>> square_root(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    steps = np.arange(1, bands)
    return np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))


def solve(coefficients: Array, values: Array) -> Array:
    """C⁻¹ ``values`` [rounds], float64."""
    solved: Array = scipy.signal.lfilter([1.0], coefficients, values)
    return solved


def column_norms(coefficients: Array, rounds: int) -> Array:
    """Squared norms [rounds] of C's columns; the last ones are cut off by the matrix' lower edge."""
    padded = np.zeros(rounds)
    padded[: len(coefficients)] = coefficients[:rounds]
    return np.cumsum(padded**2)[::-1].copy()


def prefix_variances(coefficients: Array, rounds: int) -> Array:
    """Variance [rounds] of the noise on the prefix sum after each round."""
    return np.cumsum(solve(coefficients, np.ones(rounds)) ** 2)


@lru_cache(maxsize=32)
def optimised(rounds: int, bands: int, objective: Objective) -> tuple[float, ...]:
    """The ``bands`` coefficients, c₀ = 1, with the smallest error for one participation, or several orthogonal ones.

    ``"mean"`` and ``"max"`` minimise ‖c‖² times the mean or the largest of :func:`prefix_variances`, by L-BFGS from
    ``"square-root"``, which are the coefficients of :func:`square_root` as they are. Choquette-Choo et al.,
    "(Amplified) banded matrix factorization", NeurIPS 2023, optimise general banded matrices; of a Toeplitz
    matrix only one column has to be found. Whatever the optimiser finds is a valid strategy: privacy does not rest on
    it.
    """
    start = square_root(bands)
    if objective == "square-root" or bands == 1 or (objective == "max" and bands == rounds):
        return tuple(start.tolist())
    weights = np.arange(rounds, 0, -1) / rounds if objective == "mean" else np.ones(rounds)

    def loss(tail: Array) -> tuple[float, Array]:
        coefficients = np.concatenate([[1.0], tail])
        factor = solve(coefficients, np.ones(rounds))  # first column of B, which is Toeplitz too
        with np.errstate(over="ignore"):
            error, norm = float(weights @ factor**2), float(coefficients @ coefficients)
        if not error < 1e150:  # the line search went where C's inverse explodes; send it back before squares overflow
            return 1e3, np.zeros_like(tail)
        change = solve(coefficients, factor)  # a change of c_j moves the column by minus this, j rounds later
        pull = 2 * weights * factor
        slope = np.array([-pull[lag:] @ change[: rounds - lag] for lag in range(1, bands)])
        return float(np.log(error * norm)), slope / error + 2 * tail / norm

    found = scipy.optimize.minimize(
        loss, start[1:], jac=True, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-10}
    )
    return (1.0, *found.x.tolist())
