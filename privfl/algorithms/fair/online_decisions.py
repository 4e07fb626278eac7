"""AAggFF's decisions: aggregation weights p on the simplex, chosen online from one bounded response per client.

Equation numbers (1) to (17) are AAggFF's in ``docs/reference/equations.md``, after Hahn, Kim and Lee, "Pursuing Overall
Welfare in Federated Learning through Sequential Decision Making", ICML 2024. Pure functions on float64 tensors; the
algorithm that calls them is :mod:`privfl.algorithms.fair.aaggff`.

Differences from the authors' code, each of which changes results: the Normal distribution function is Φ itself (the
code has 3/2 − Φ, which falls with the loss); the Newton step keeps its cross term −β⟨g_τ, p_τ⟩g_τ and counts α once
(otherwise the regret exceeds its bound); decisions start at 1/n; the doubly robust response keeps its "+ r̄".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from privfl.algorithms.fair.simplex import minimise, minimise_quadratic

Function = Callable[[Tensor], Tensor]


def _frechet(x: Tensor) -> Tensor:
    return torch.exp(-1 / x)


def _gumbel(x: Tensor) -> Tensor:
    return torch.exp(-torch.exp(1 - x))


CDFS: Mapping[str, Function] = MappingProxyType(
    {
        "weibull": lambda x: -torch.expm1(-x * x),
        "exponential": lambda x: -torch.expm1(-x),
        "frechet": _frechet,
        "normal": lambda x: torch.special.ndtr(x - 1),
        "gumbel": _gumbel,
        "logistic": lambda x: torch.sigmoid(x - 1),
    }
)
"""The six distribution functions ρ of the paper, on relative losses x ≥ 0, in the order of the authors' code."""

QUANTILES: Mapping[str, Function] = MappingProxyType(
    {
        "weibull": lambda q: torch.sqrt(-torch.log1p(-q)),
        "exponential": lambda q: -torch.log1p(-q),
        "frechet": lambda q: 1 / torch.log(1 / q),
        "normal": lambda q: 1 + torch.special.ndtri(q),
        "gumbel": lambda q: 1 - torch.log(-torch.log(q)),
        "logistic": lambda q: 1 + torch.logit(q),
    }
)
"""Their inverses ρ⁻¹ on (0, 1)."""


def relative_losses(losses: Tensor) -> Tensor:
    """x_i = F_i/F̄ [m], whose mean is 1; all 1 if every loss is 0. Losses below 0 count as 0.

    Scaling by the largest loss first keeps the mean finite for any finite losses.
    """
    largest = losses.max()
    if not largest > 0:
        return torch.ones_like(losses)
    scaled = (losses / largest).clamp_min_(0)
    return scaled.div_(scaled.mean())


def relative_to(loss: Tensor, mean: Tensor) -> Tensor:
    """x = F/F̄ for a public ``mean`` F̄; 1 where the mean is 0. A client computes this about itself."""
    return torch.where(mean > 0, loss.clamp_min(0) / mean, torch.ones_like(loss))


def respond(relative: Tensor, cdf: str, lower: float, upper: float) -> Tensor:
    """Equation (3): ``r = C1 + (C2 − C1)·ρ(x)``, of the shape of ``relative``, in [C1, C2], nondecreasing in x."""
    return CDFS[cdf](relative) * (upper - lower) + lower


def lipschitz(lower: float, upper: float) -> float:
    """Equation (4): L∞ = C2/(1 + C1), the largest that an entry of the gradient can be."""
    return upper / (1 + lower)


def sampled_lipschitz(lower: float, upper: float, rate: float) -> float:
    """Equation (5): L̃∞ for doubly robust responses at inclusion probability ``rate``; 2 + q for C1 = 0, C2 = q.

    Safe and loose: for C1 = 0, C2 = q every entry is at most 1, and the weights would move 2 + q times faster.
    """
    return lipschitz(lower, upper) + 2 * (upper - lower) / (rate * (1 + lower))


def decision_loss(decision: Tensor, responses: Tensor) -> Tensor:
    """ℓ(p) = −log(1 + ⟨p, r⟩) [], of ``decision`` [n] against ``responses`` [n], or [T] against [T, n]."""
    return -torch.log1p(responses @ decision)


def decision_gradient(decision: Tensor, responses: Tensor) -> Tensor:
    """∇ℓ(p) = −r/(1 + ⟨p, r⟩) [n]."""
    return responses / -(1 + decision @ responses)


def newton_constants(clients: int, lower: float, upper: float, paper: bool) -> tuple[float, float]:
    """α = 4n·L∞ and β of the Newton step: min(½, 1/(4L∞)), or the paper's 1/(4L∞) which its proof does not cover.

    The lemma behind the bound needs β ≤ ½ too; with the paper's C2 = 1/n its β is n/4. Both kept the bound in our runs.
    """
    bound = lipschitz(lower, upper)
    beta = 1 / (4 * bound)
    return 4 * clients * bound, beta if paper else min(0.5, beta)


def newton_step(
    curvature: Tensor, linear: Tensor, decision: Tensor, responses: Tensor, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations (9) and (10), the lazy online Newton step (Agarwal et al., 2006).

    ``A ← A + βggᵀ``, ``b ← b + (β⟨g, p⟩ − 1)g``, then ``p ← argmin over the simplex of ½pᵀAp − bᵀp``, which is the
    minimum of ``Σ⟨g_τ, p⟩ + α/2·‖p‖² + β/2·Σ⟨g_τ, p − p_τ⟩²``, to a KKT residual below 1e-8.

    Args:
        curvature: A [n, n], α times the identity at the start.
        linear: b [n], 0 at the start.
        decision: p_t [n].
        responses: r_t [n].
        beta: β > 0.

    Returns:
        A, b and p_{t+1}; the arguments keep their values.
    """
    gradient = decision_gradient(decision, responses)
    curvature = curvature + beta * torch.outer(gradient, gradient)  # in this order it stays exactly symmetric
    linear = linear + (beta * (gradient @ decision) - 1) * gradient
    found = minimise_quadratic(curvature.cpu().numpy(), linear.cpu().numpy(), decision.cpu().numpy())
    return curvature, linear, torch.from_numpy(found).to(decision.device)


def newton_bound(clients: int, rounds: int, lower: float, upper: float, paper: bool) -> float:
    """What the regret of :func:`newton_step` cannot exceed after ``rounds``: ``α/2 + (n/2β)·log(1 + βL∞²T/α)``.

    With β = 1/(4L∞) this is Theorem 1, equation (6): ``2L∞n(1 + log(1 + T/(16n)))``.
    """
    alpha, beta = newton_constants(clients, lower, upper, paper)
    steepest = lipschitz(lower, upper)
    return alpha / 2 + clients / (2 * beta) * math.log1p(beta * steepest**2 * rounds / alpha)


def entropy_scale(clients: int, decided: Tensor | int, bound: Tensor | float) -> Tensor:
    """s_{t+1} = √(log n)/(L·√(t + 1)) [] after ``decided`` = t rounds, the inverse of the step η of equation (14)."""
    decided = torch.as_tensor(decided, dtype=torch.float64)
    return math.sqrt(math.log(clients)) / (torch.as_tensor(bound, dtype=torch.float64) * torch.sqrt(decided + 1))


def entropy_decision(accumulated: Tensor, scale: Tensor) -> Tensor:
    """Equation (15): p ∝ exp(s·u) [n], the minimum of ``−⟨u, p⟩ + (1/s)·Σ p log p``, for ``accumulated`` −Σg = u."""
    return torch.softmax(scale * accumulated, 0)


def visit_gain(response: Tensor, mean: Tensor, rate: Tensor | float) -> Tensor:
    """Equation (16): what a visit adds to a client's accumulator u_i, ``(r_i − r̄)/(q(1 + r̄))``.

    Softmax ignores what all clients share, so of the doubly robust, linearised gradient (13) only this remains: only
    sampled clients' accumulators change, and the decision is *exactly* that of (12) to (15). With C2 = q the gain lies
    within ±1/(1 + r̄).
    """
    return (response - mean) / (rate * (1 + mean))


def best_fixed_decision(responses: Tensor) -> tuple[Tensor, float]:
    """The decision [n] that would have been best in all rounds of ``responses`` [T, n], and a bound on its error.

    Minimises ``−Σ_t log(1 + ⟨p, r_t⟩)``; the minimum is at most the error below the value found.
    """
    rows = responses.detach().cpu().to(torch.float64).numpy()
    clients = rows.shape[1]
    start = torch.full((clients,), 1 / clients, dtype=torch.float64).numpy()
    floor = 1 + float(rows.min())
    steepness = float((rows.T @ rows).sum(1).max()) / floor**2
    if steepness == 0:
        return torch.from_numpy(start), 0.0
    tolerance = 1e-10 * float(rows.sum(0).max())
    found, gap = minimise(lambda at: -rows.T @ (1 / (1 + rows @ at)), steepness, start, tolerance)
    return torch.from_numpy(found), gap


def regret(decisions: Tensor, responses: Tensor) -> float:
    """Equation (2): what ``decisions`` [T, n] lost against ``responses`` [T, n] beyond the best fixed decision.

    Never too small: the error of :func:`best_fixed_decision` is added.
    """
    played = -torch.log1p((decisions * responses).sum(1)).sum()
    best, error = best_fixed_decision(responses)
    return float(played - decision_loss(best.to(responses.device), responses).sum()) + error


def clipped_laplace_mean(truth: Tensor, epsilon: float) -> Tensor:
    """Mean of ``truth`` in [0, 1] after Laplace noise of scale b = 1/ε and clipping to [0, 1], of its shape.

    ``t + (b/2)(e^{−t/b} − e^{−(1−t)/b})``: clipping pulls towards the centre.
    """
    return truth + (torch.exp(-truth * epsilon) - torch.exp(-(1 - truth) * epsilon)) / (2 * epsilon)


def next_reference(reference: Tensor, reports: Tensor, cdf: str, epsilon: float) -> Tensor:
    """A public mean loss F̄ [] for the next round, from ``reports`` [m] of ρ(F_i/F̄) that were randomised at ε.

    Post-processing: it looks at nothing but the reports and the last ``reference``, so it costs no privacy. The mean of
    the reports is corrected for clipping by bisection of :func:`clipped_laplace_mean`, and ρ⁻¹ of it says by which
    factor the mean loss differs from the reference; the reference follows by at most a factor of 2 in a round.
    """
    mean = reports.mean()
    low, high = torch.zeros_like(mean), torch.ones_like(mean)
    for _ in range(50):
        middle = (low + high) / 2
        below = clipped_laplace_mean(middle, epsilon) < mean
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return reference * QUANTILES[cdf](high).clamp(0.5, 2)
