"""Convex minimisation on the probability simplex, capped or not, with the certificate that a minimum was found.

The capped simplex is {l ≤ p ≤ u, Σp = 1} for two numbers l and u; l = 0 and u = 1 give the whole simplex.

In NumPy and float64: these problems are solved by the server, a few hundred unknowns at a time, where the overhead of a
tensor library would outweigh the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

MAX_STEPS = 100_000


def project(point: Vector, lower: float = 0.0, upper: float = 1.0) -> Vector:
    """The point of the simplex {``lower`` ≤ p ≤ ``upper``, Σp = 1} that is nearest to ``point`` [n].

    By sorting (Held et al., 1974): it is ``point`` minus one threshold, cut off at the bounds. Between neighbours among
    the 2n thresholds at which an entry meets a bound the sum is linear, so the right one is found exactly.
    """
    point = point - point.max()  # moves nothing, and lets a sum of 1 be seen beside entries however large
    if lower > 0 or upper < 1:
        return _project_capped(point, lower, upper)
    ordered = np.sort(point)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    threshold = excess[np.flatnonzero(ordered > excess)[-1]]
    projected = np.maximum(point - threshold, 0)
    result: Vector = projected / projected.sum()
    return result


def _project_capped(point: Vector, lower: float, upper: float) -> Vector:
    thresholds = np.sort(np.concatenate([point - upper, point - lower]))

    def cut(threshold: float) -> Vector:
        return np.clip(point - threshold, lower, upper)

    low, high = 0, len(thresholds) - 1  # the sum falls from n·upper ≥ 1 to n·lower ≤ 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cut(thresholds[middle]).sum() >= 1 else (low, middle)
    above, below = (float(cut(thresholds[end]).sum()) for end in (low, high))
    share = min(max((above - 1) / (above - below), 0.0), 1.0) if above > below else 0.0
    return cut(thresholds[low] + share * (thresholds[high] - thresholds[low]))


def residual(point: Vector, gradient: Vector, lower: float = 0.0, upper: float = 1.0) -> float:
    """How far ``point`` [n] is from the minimum whose ``gradient`` [n] this is: 0 exactly where KKT holds.

    The largest gradient of an entry that may fall minus the smallest of one that may rise. Times Σp = 1 it bounds how
    much lower a convex function can be elsewhere on the simplex.
    """
    falling, rising = gradient[point > lower], gradient[point < upper]
    if len(falling) == 0 or len(rising) == 0:
        return 0.0
    return max(float(falling.max() - rising.min()), 0.0)


def minimise(
    gradient: Callable[[Vector], Vector],
    lipschitz: float,
    start: Vector,
    tolerance: float,
    steps: int = MAX_STEPS,
    lower: float = 0.0,
    upper: float = 1.0,
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
        lower: least value of an entry.
        upper: largest value of an entry.

    Returns:
        The best point found [n] and its residual; it is above the tolerance if the steps did not suffice.
    """
    best, least = start, np.inf
    point, ahead, momentum = start, start, 1.0
    for _ in range(steps):
        slope = gradient(point)
        gap = residual(point, slope, lower, upper)
        if gap < least:
            best, least = point, gap
        if gap <= tolerance:
            break
        following = project(ahead - gradient(ahead) / lipschitz, lower, upper)
        if float((ahead - following) @ (following - point)) > 0:
            momentum = 1.0
        faster = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = following + (momentum - 1) / faster * (following - point)
        point, momentum = following, faster
    return best, least


def minimise_quadratic(
    curvature: NDArray[np.float64], linear: Vector, start: Vector, lower: float = 0.0, upper: float = 1.0
) -> Vector:
    """``argmin ½ pᵀAp − bᵀp`` over the simplex, for a positive definite ``curvature`` A [n, n] and ``linear`` b [n].

    Gradient steps find which entries are at a bound; with these known the minimum is the solution of linear equations.

    Args:
        curvature: A.
        linear: b.
        start: a point of the simplex [n].
        lower: least value of an entry, in [0, 1/n].
        upper: largest value of an entry, at least 1/n.

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
        exact = _with_the_others_fixed(curvature, linear, point, lower, upper)
        gap = np.inf if exact is None else residual(exact, curvature @ exact - linear, lower, upper)
        if exact is not None and gap <= tolerance:
            return exact
        point, gap = minimise(lambda at: curvature @ at - linear, bound, point, tolerance, steps, lower, upper)
        taken, steps = taken + steps, 2 * steps
        if gap <= tolerance:
            return point
        if taken >= MAX_STEPS:
            break
    if not gap < 1e-8 * max(1.0, scale):
        raise ArithmeticError(f"no minimum on the simplex was found: the residual is {gap:.3g} instead of 1e-8 or less")
    return point


def _with_the_others_fixed(
    curvature: NDArray[np.float64], linear: Vector, point: Vector, lower: float, upper: float
) -> Vector | None:
    """The minimum [n] with those entries of ``point`` kept that are at a bound; ``None`` if others leave the bounds."""
    moves = (point > lower) & (point < upper)
    if not moves.any():
        return point
    found = np.where(moves, 0.0, point)
    inside = np.flatnonzero(moves)
    sides = np.stack([(linear - curvature @ found)[inside], np.ones(len(inside))], 1)
    try:
        along, ones = np.linalg.solve(curvature[np.ix_(inside, inside)], sides).T
    except np.linalg.LinAlgError:
        return None
    left = 1 - found.sum()
    values = along + (left - along.sum()) / ones.sum() * ones
    if not (values.min() >= lower and values.max() <= upper):
        return None
    found[inside] = values * (left / values.sum())
    return found
