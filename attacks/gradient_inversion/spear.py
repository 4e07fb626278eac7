"""SPEAR: a whole batch, exactly, from the gradient of a first layer that is linear with ReLUs behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privfl.errors import ConfigError
from privfl.validation import check_count

SEARCH_STEPS = 60
"""Steps of one search for a sparse direction."""
FLOORS = (0.3, 0.1, 0.03, 0.01)
"""Where the floor of a search's weights begins: a high one forgets the start, a low one stays near it."""
LEAST_FLOOR = 1e-7
NOISE_WIDTHS = 12.0
"""A number is taken for zero up to so many deviations of the rounding noise."""
CHANCE_ZEROS = 3
"""Any direction can be made to vanish on rank − 1 rows; one that counts vanishes on at least so many more."""


@dataclass(frozen=True)
class RecoveredBatch:
    """Inputs of a layer, recovered from its gradient.

    Attributes:
        inputs: [rank, inputs], float64, in arbitrary order.
        directions: how many of the ``rank`` columns of ∂L/∂Z were found; the inputs are exact only if all were.
        consistency: share of the entries of ∂L/∂Z [outputs, rank] that are zero just where the layer's output at
            the recovered inputs is not positive; 1 where the batch is right, the score λ of the paper.
        rounds: of searches that were made.
    """

    inputs: Tensor
    directions: int
    consistency: float
    rounds: int


@dataclass(frozen=True)
class _Factors:
    """``G = left · diag(sizes) · right`` cut to its rank b: [m, b], [b], [b, n]; and the deviation of G's noise."""

    left: Tensor
    sizes: Tensor
    right: Tensor
    noise: float


def spear(
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    weight: Tensor,
    bias: Tensor,
    batch: int,
    *,
    generator: torch.Generator,
    rounds: int = 40,
    starts: int = 128,
) -> RecoveredBatch:
    """The inputs X [B, n] behind ``∂L/∂W = (∂L/∂Z)ᵀ X`` of a layer ``Z = XWᵀ + b`` that ReLUs follow.

    Dimitrov, Baader, Müller and Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning" (NeurIPS
    2024). The gradient has rank b ≤ B; of its decomposition ``∂L/∂W = U S V`` the wanted one differs by an invertible
    Q alone: ``∂L/∂Zᵀ = UQ`` and ``X = Q⁻¹ S V``. A ReLU blocks a column of ∂L/∂Zᵀ wherever it is not active, so the
    columns of Q are the directions q with many zeros in Uq. Their lengths follow from the bias gradient, ``∂L/∂b =
    ∂L/∂Zᵀ 1``. Of the candidates the sparsest independent ones are kept, and whether they are right is seen from the
    outside: the zeros must lie where the recovered inputs leave a ReLU inactive.

    Differs from the paper in how directions are found. It draws b − 1 rows of U and takes their kernel, which is a
    column where all drawn rows happen to be zero: one draw in 2^(b−1)/b. Here a row, or the sum of two, starts a
    search for a local minimum of ``Σ_r |u_r q|^½`` over the sphere by reweighted least squares (dual principal
    component pursuit, Tsakiris and Vidal, JMLR 2018; starts as in Spielman, Wang and Wright, COLT 2012); directions
    that were found are kept out of part of the later starts.

    No knowledge of labels or data is used, and columns of any scale are found: it works on the mean of the clipped
    gradients of single images, and on sums of them, as on a batch.

    Args:
        weight_gradient: ∂L/∂W [m, n].
        bias_gradient: ∂L/∂b [m].
        weight, bias: [m, n] and [m], where the gradient was taken.
        batch: B ≥ 1, below m and n.
        generator: decides the starts.
        rounds: of ``starts`` searches at most; it ends as soon as the result is consistent.

    Raises:
        ConfigError: the shapes do not belong to one layer, or B is not below the width and the number of inputs.
    """
    check_count("batch", batch)
    shape = weight_gradient.shape
    if weight_gradient.dim() != 2 or bias_gradient.shape != shape[:1] or weight.shape != shape or bias.dim() != 1:
        raise ConfigError(
            f"gradients are {tuple(shape)} and {tuple(bias_gradient.shape)} for parameters {tuple(weight.shape)} and "
            f"{tuple(bias.shape)}; give [outputs, inputs] and [outputs] of one layer"
        )
    if batch >= min(shape):
        raise ConfigError(
            f"batch is {batch} and the first layer {shape[0]} units on {shape[1]} inputs; SPEAR needs a batch smaller "
            "than both"
        )
    factors = _factors(weight_gradient.double(), batch)
    live = factors.left.norm(dim=1) > NOISE_WIDTHS * factors.noise / float(factors.sizes[-1])
    rows = factors.left[live]
    unit = rows / rows.norm(dim=1, keepdim=True)
    layer = (bias_gradient.double(), weight.double(), bias.double())
    rank, made = len(factors.sizes), 0
    if rank == 1:
        return _recovered(rows.new_ones(1, 1), factors, *layer, made)[0]
    found, best, hints = rows.new_zeros(0, rank), None, rows.new_zeros(0, rank)
    while made < rounds and len(unit) >= rank:
        begin = torch.cat([hints, _starts(unit, found if made % 2 else found[: rank // 2], starts, generator)])
        floors = torch.full((len(begin), 1), FLOORS[-1], dtype=rows.dtype)
        floors[len(hints) :, 0] = torch.tensor(FLOORS).double().repeat(starts)[:starts]
        found = _sparsest(torch.cat([found, _polished(rows, _searched(unit, begin, floors), factors)]), rows, factors)
        made += 1
        if len(found) == rank:
            result, inactive = _recovered(found, factors, *layer, made)
            best = result if best is None or result.consistency > best.consistency else best
            if best.consistency >= 1 - 1 / weight_gradient.numel() ** 0.5:
                break
            hints = _hinted(unit, inactive[live])
    return best if best is not None else _recovered(found, factors, *layer, made)[0]


def _factors(gradient: Tensor, batch: int) -> _Factors:
    """The reduced decomposition; what lies beyond the batch's rank is noise, and tells how large that is."""
    left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
    largest = max(float(sizes[batch]), float(sizes[0]) * torch.finfo(torch.float64).eps * 100)
    noise, rank = largest / math.sqrt(max(gradient.shape)), max(1, int((sizes[:batch] > 3 * largest).sum()))
    return _Factors(left[:, :rank], sizes[:rank], right[:rank], noise)


def _starts(unit: Tensor, found: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Directions [count, b]: rows, or sums of two, without their part along what was ``found`` [k, b]."""
    picked = torch.randint(len(unit), (2, count), generator=generator)
    second = torch.randint(-1, 2, (count, 1), generator=generator).to(unit.dtype)
    begin = unit[picked[0]] + second * unit[picked[1]]
    if 0 < len(found) < found.shape[1]:
        span = torch.linalg.qr(found.T)[0]
        begin = begin - begin @ span @ span.T
    unit_length: Tensor = begin / begin.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return unit_length


def _hinted(unit: Tensor, inactive: Tensor) -> Tensor:
    """Directions [≤ b, b] along which the rows vanish that belong to a ReLU ``inactive`` bool [m, b] at a column."""
    found = [torch.linalg.svd(unit[one])[2][-1] for one in inactive.T if bool(one.any())]
    return torch.stack(found) if found else unit.new_zeros(0, unit.shape[1])


def _searched(unit: Tensor, begin: Tensor, floor: Tensor) -> Tensor:
    """Local minima [count, b] of ``Σ_r |u_r q|^½`` on the sphere, by inverse iteration with reweighted rows.

    ``floor`` [count, 1] is the least |u_r q| that counts at first; it falls by a fifth with each step.
    """
    found = begin
    ridge = 1e-12 * torch.eye(unit.shape[1], dtype=unit.dtype)
    for _ in range(SEARCH_STEPS):
        weights = (found @ unit.T).abs().clamp_min(1e-30).maximum(floor) ** -1.5
        scatter = torch.einsum("kbm,mc->kbc", unit.T * weights[:, None, :], unit)
        found = torch.linalg.solve(scatter + ridge, found)
        found = found / found.norm(dim=1, keepdim=True)
        floor = (0.8 * floor).clamp_min(LEAST_FLOOR)
    return found


def _polished(rows: Tensor, found: Tensor, factors: _Factors) -> Tensor:
    """Those of ``found`` that vanish on more rows than chance explains, each fitted to all rows where it does."""
    zero = _zeros(found, rows, factors)
    kept = zero.sum(1) >= found.shape[1] + CHANCE_ZEROS - 1
    found, zero = found[kept], zero[kept]
    if not len(found):
        return found
    signs = found * found.gather(1, found.abs().argmax(1, keepdim=True)).sign()
    _, places = torch.unique((signs * 1e4).round(), dim=0, return_inverse=True)
    first = torch.stack([(places == place).nonzero()[0, 0] for place in range(int(places.max()) + 1)])
    return torch.stack([torch.linalg.svd(rows[one])[2][-1] for one in zero[first]])


def _zeros(found: Tensor, rows: Tensor, factors: _Factors) -> Tensor:
    """Where ``rows`` [m, b] vanish along ``found`` [k, b], up to noise: bool [k, m]."""
    noise = factors.noise * (found / factors.sizes).norm(dim=1)
    zero: Tensor = (found @ rows.T).abs() < NOISE_WIDTHS * noise[:, None]
    return zero


def _sparsest(candidates: Tensor, rows: Tensor, factors: _Factors) -> Tensor:
    """Of ``candidates`` [k, b] the independent ones, chosen greedily by the number of rows where they vanish."""
    order = _zeros(candidates, rows, factors).sum(1).argsort(descending=True, stable=True)
    basis: list[Tensor] = []
    chosen: list[int] = []
    for place in order.tolist():
        rest = candidates[place].clone()
        for _ in range(2):  # twice is enough for orthogonality to rounding
            for one in basis:
                rest -= (one @ rest) * one
        if float(rest.norm()) > 1e-3:
            basis.append(rest / rest.norm())
            chosen.append(place)
        if len(chosen) == candidates.shape[1]:
            break
    return candidates[chosen]


def _recovered(
    found: Tensor, factors: _Factors, bias_gradient: Tensor, weight: Tensor, bias: Tensor, rounds: int
) -> tuple[RecoveredBatch, Tensor]:
    """What belongs to the directions ``found`` [k ≤ b, b], filled up orthogonally where some are missing.

    With it where a ReLU is inactive at the recovered inputs, bool [m, b].
    """
    rank, known = factors.left.shape[1], len(found)
    directions = found
    if known < rank:
        directions = torch.cat([found, torch.linalg.svd(found)[2][known:] if known else torch.eye(rank).double()])
    mixing = directions.T
    lengths = torch.linalg.solve(mixing, factors.left.T @ bias_gradient)
    inputs = torch.linalg.lstsq(mixing * lengths, factors.sizes[:, None] * factors.right).solution
    inactive = inputs @ weight.T + bias <= 0
    zero = _zeros(directions, factors.left, factors)
    inactive = inactive.T
    return RecoveredBatch(inputs, known, float((inactive == zero.T).double().mean()), rounds), inactive
