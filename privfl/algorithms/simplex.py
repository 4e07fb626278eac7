"""Convex minimisation on the probability simplex, with the certificate that a minimum was found.

In NumPy and float64: these problems are solved by the server, a few hundred unknowns at a time, where the overhead of a
tensor library would outweigh the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

MAX_STEPS = 100_000


def project(point: Vector) -> Vector:
    """The point of the simplex {p ≥ 0, Σp = 1} that is nearest to ``point`` [n], by sorting (Held et al., 1974)."""
    ordered = np.sort(point)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    threshold = excess[np.flatnonzero(ordered > excess)[-1]]
    projected = np.maximum(point - threshold, 0)
    result: Vector = projected / projected.sum()
    return result


def residual(point: Vector, gradient: Vector) -> float:
    """How far ``point`` [n] is from the minimum whose ``gradient`` [n] this is: 0 exactly where KKT holds.

    The largest gradient on the support minus the smallest anywhere. Times Σp = 1 it bounds how much lower a convex
    function can be elsewhere on the simplex.
    """
    return float(gradient[point > 0].max() - gradient.min())


def minimise(
    gradient: Callable[[Vector], Vector], lipschitz: float, start: Vector, tolerance: float, steps: int = MAX_STEPS
) -> tuple[Vector, float]:
    """The minimum on the simplex of a convex function, by accelerated projected gradient steps with restarts.

    Beck and Teboulle's FISTA (2009) with O'Donoghue and Candès' gradient restart (2015), which makes it converge
    linearly where the function is strongly convex, without knowing how strongly.

    Args:
        gradient: of the function, at a point of the simplex or near it.
        lipschitz: a bound > 0 on the Lipschitz constant of ``gradient``.
        start: a point of the simplex [n]; one near the minimum saves steps.
        tolerance: stop at this :func:`residual`; above the rounding of ``gradient``, or it is never reached.
        steps: take at most so many.

    Returns:
        The best point found [n] and its residual; it is above the tolerance if the steps did not suffice.
    """
    best, least = start, np.inf
    point, ahead, momentum = start, start, 1.0
    for _ in range(steps):
        slope = gradient(point)
        gap = residual(point, slope)
        if gap < least:
            best, least = point, gap
        if gap <= tolerance:
            break
        following = project(ahead - gradient(ahead) / lipschitz)
        if float((ahead - following) @ (following - point)) > 0:
            momentum = 1.0
        faster = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = following + (momentum - 1) / faster * (following - point)
        point, momentum = following, faster
    return best, least


def minimise_quadratic(curvature: NDArray[np.float64], linear: Vector, start: Vector) -> Vector:
    """``argmin ½ pᵀAp − bᵀp`` over the simplex, for a positive definite ``curvature`` A [n, n] and ``linear`` b [n].

    Gradient steps find which entries are positive; with these known the minimum is the solution of linear equations.

    Raises:
        ArithmeticError: A or b is not finite, or the residual stayed above 1e-8: A may not be positive definite.
    """
    if not (np.isfinite(curvature).all() and np.isfinite(linear).all()):
        raise ArithmeticError("a quadratic with coefficients that are not finite has no minimum on the simplex")
    bound = float(np.abs(curvature).sum(1).max())  # of the largest eigenvalue (Gershgorin)
    scale = float(np.abs(curvature).max() + np.abs(linear).max())
    tolerance = 1e-12 * scale  # rounding is about 1e-16 of the scale
    point, steps, taken = start, 16, 0
    while True:
        exact = _on_support(curvature, linear, point > 0)
        gap = np.inf if exact is None else residual(exact, curvature @ exact - linear)
        if exact is not None and gap <= tolerance:
            return exact
        point, gap = minimise(lambda at: curvature @ at - linear, bound, point, tolerance, steps)
        taken, steps = taken + steps, 2 * steps
        if gap <= tolerance:
            return point
        if taken >= MAX_STEPS:
            break
    if not gap < 1e-8 * max(1.0, scale):
        raise ArithmeticError(f"no minimum on the simplex was found: the residual is {gap:.3g} instead of 1e-8 or less")
    return point


def _on_support(curvature: NDArray[np.float64], linear: Vector, support: NDArray[np.bool_]) -> Vector | None:
    """The minimum among the points of Σp = 1 that are 0 off ``support`` [n]; ``None`` if it leaves the simplex."""
    inside = np.flatnonzero(support)
    sides = np.stack([linear[inside], np.ones(len(inside))], 1)
    try:
        along, ones = np.linalg.solve(curvature[np.ix_(inside, inside)], sides).T
    except np.linalg.LinAlgError:
        return None
    values = along + (1 - along.sum()) / ones.sum() * ones
    if not values.min() >= 0:
        return None
    point = np.zeros(len(linear))
    point[inside] = values / values.sum()
    return point
