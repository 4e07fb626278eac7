"""Energies of classifiers, their mixture, and the Langevin steps that FedEvg takes on them.

A network's logits f(x) are read as energies (JEM, Grathwohl et al., ICLR 2020): the joint energy is E(x, y) = −f(x)[y],
and p(x, y) ∝ exp(−E(x, y)). Equation numbers are FedEvg's in ``docs/reference/equations.md``: (1) to (5) energies
and mixture, (6) to (8) the server, (9) and (10) the client.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.errors import ConfigError

Weighting = Literal["signed", "exact", "size"]
"""How much a client's energy gradient counts; see :func:`shares`."""
Schedule = Literal["as-coded", "cosine"]
"""How the server's step size falls; see :func:`step_sizes`."""
OFFSET = 0.008
"""s of the cosine schedule (Nichol & Dhariwal, ICML 2021)."""


def joint_energy(network: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    """E(x, y) = −f(x)[y], equation (1): [n] for ``points`` [n, ...] and class numbers ``labels`` [n]."""
    logits: Tensor = network(points)
    return -logits.gather(1, labels[:, None])[:, 0]


def real_loss(network: nn.Module, inputs: Tensor, targets: Tensor, *, penalty: float = 0.0) -> Tensor:
    """The part of equation (10) that sees data, one term per sample [B]: CE(f(x⁺), y⁺) + E(x⁺, y⁺) + penalty·E².

    The gradient of the first two is that of log Σ_y exp f(x⁺)[y] − 2·f(x⁺)[y⁺].
    """
    logits: Tensor = network(inputs)
    energy = -logits.gather(1, targets[:, None])[:, 0]
    return F.cross_entropy(logits, targets, reduction="none") + energy + penalty * energy.square()


def synthetic_loss(
    network: nn.Module, images: Tensor, negatives: Tensor, labels: Tensor, *, gamma: float, penalty: float = 0.0
) -> Tensor:
    """The rest of equation (10), one term per index of I [n]: γ·CE(f(x̃), ỹ) − E(x⁻, ỹ) + penalty·E(x⁻, ỹ)².

    Args:
        images: x̃_I, the *downloaded* images [n, ...].
        negatives: x⁻, the states of the chain that began at them [n, ...].
        labels: ỹ_I [n].
        gamma: γ ≥ 0.
    """
    fitted = F.cross_entropy(network(images), labels, reduction="none")
    energy = joint_energy(network, negatives, labels)
    return gamma * fitted - energy + penalty * energy.square()


def strengths(energies: Tensor) -> Tensor:
    """s = exp(−sign E) ∈ {e, 1, 1/e}, equation (5), elementwise; s(0) = 1 and s(−E) = 1/s(E)."""
    return torch.exp(-energies.sign())


def shares(energies: Tensor, weights: Tensor, weighting: Weighting) -> Tensor:
    """How much each client's gradient counts: ω [clients, N], ω ≥ 0 and Σ_k ω = 1.

    * ``"exact"``: ω_k ∝ π_k·exp(−E_k), equation (4), by log-sum-exp, so energies of ±1e4 are harmless. The gradient of
      the mixture's energy, if all partition functions are equal; a constant added to *all* energies changes nothing.
    * ``"signed"``: ω_k ∝ π_k·exp(−sign E_k), equation (5), FedEvg's. If all signs agree it is ``"size"``: then it
      descends the average energy, a product of experts, and does not sample the mixture.
    * ``"size"``: ω_k = π_k.

    Args:
        energies: E_k(x̃_n, ỹ_n) [clients, N].
        weights: n_k ≥ 0 or any multiple of π_k [clients]; at least one is positive.
    """
    logs = weights.to(energies.dtype).log()[:, None]
    if weighting == "exact":
        return (logs - energies).softmax(0)
    if weighting == "signed":
        return (logs - energies.sign()).softmax(0)
    return logs.expand_as(energies).softmax(0)


def mixed(gradients: Tensor, shares: Tensor) -> Tensor:
    """G_n = Σ_k ω_{k,n}·g_{k,n} [N, ...], of ``gradients`` [clients, N, ...] and ``shares`` [clients, N]."""
    return (gradients * shares.view(*shares.shape, *[1] * (gradients.dim() - 2))).sum(0)


def from_sums(total: Tensor, weight: float) -> Tensor:
    """G [N, D] from the sums Σ_k n_k·(s_k·g_k, s_k) [N, D + 1] over the clients: equation (5) as a ratio of two sums.

    The server learns no single client's sign or gradient if the sum is computed securely. As s ≥ 1/e, the denominator
    is at least Σ_k n_k / e; where noise pushed it below, it is set to that.

    Args:
        weight: Σ_k n_k > 0, or the public number that stands for it.
    """
    return total[:, :-1] / total[:, -1:].clamp_min(weight / math.e)


def cosine_decay(rounds: int) -> Tensor:
    """ᾱ_t = cos²((t/R + s)/(1 + s)·π/2) / cos²(s/(1 + s)·π/2) for t = 0..R: float64 [rounds + 1], from 1 to 0."""
    times = torch.arange(rounds + 1, dtype=torch.float64) / rounds
    angles = (times + OFFSET) / (1 + OFFSET) * math.pi / 2
    return angles.cos().square() / angles[0].cos().square()


def step_sizes(rounds: int, start: float, end: float, schedule: Schedule) -> Tensor:
    """The server's step sizes β_1..β_R, float64 [rounds].

    * ``"as-coded"``, equation (8): β_r = start + (1 − ᾱ_r/ᾱ_{r−1})·(end − start), which stays near ``start`` almost to
      the last rounds: with R = 500 from 10 to 1 it is 9.94 half-way and 5.00 two rounds before the end.
    * ``"cosine"``: β_r = end + (start − end)·ᾱ_r, the plain anneal: 5.45 half-way.

    Raises:
        ConfigError: ``rounds`` is below 1.
    """
    if rounds < 1:
        raise ConfigError(f"a schedule of {rounds} rounds has no step; give rounds ≥ 1")
    client_state = cosine_decay(rounds)
    if schedule == "as-coded":
        return start + (1 - client_state[1:] / client_state[:-1]) * (end - start)
    return end + (start - end) * client_state[1:]


def langevin(
    points: Tensor, gradient: Tensor, noise: Tensor, *, step: float, deviation: float, low: float, high: float
) -> Tensor:
    """One server step, equation (6): clip(x̃ − β·G + σ·ξ, low, high), all tensors of one shape.

    The temperature is σ²/(2β): with the paper's β = 10 and σ = 1e-4 this is gradient descent but for the name.
    """
    return (points - step * gradient + deviation * noise).clamp(low, high)


def chain_step(
    points: Tensor, gradient: Tensor, noise: Tensor, *, step: float, deviation: float, clip: float
) -> Tensor:
    """One step of a client's chain, the body of (9): x⁻ − α·clip(∇E, ±τ_g) + σ_c·ξ, not yet clipped to the pixels."""
    return points - step * gradient.clamp(-clip, clip) + deviation * noise


def saturation(images: Tensor, low: float, high: float) -> Tensor:
    """Which part of the pixels lies on a bound, in [0, 1] []: where it is high, clipping drives the dynamics."""
    return ((images <= low) | (images >= high)).to(torch.float64).mean()
