"""A server that imprints the first layer, so that its gradient holds single images, also in a sum of many clients."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from attacks.crafted_broadcast import crafting_server
from privfl.algorithms.base import Algorithm
from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork, Layout
from privfl.validation import check_count, check_number

PARALLEL = 0.999
"""Cosine from which two units' weights count as parallel."""


def imprinting_server(
    algorithm: Algorithm,
    public: Tensor,
    *,
    units: int,
    directions: int = 1,
    gain: float = 1.0,
    seed: int = 0,
    rounds: Collection[int] | None = None,
) -> Algorithm:
    """``algorithm`` run by a server that imprints ``units`` units of the first layer of what it broadcasts.

    Fowl, Geiping, Czaja, Goldblum and Goldstein, "Robbing the Fed: Directly Obtaining Private Data in Federated
    Learning with Modified Models" (ICLR 2022): the units measure one number of an input, ``h(x) = ⟨w, x⟩``, against
    rising thresholds, ``relu(h(x) − c_i)``, and the layer behind treats them alike. The gradients of neighbours then
    differ by the inputs whose measurement lies between their thresholds, and what lies there alone is read exactly,
    whatever else was added up (:func:`imprinted_inputs`). The paper's example measures the mean brightness; here w is a
    random direction with thresholds at the quantiles of public inputs. Several ``directions`` share the units: two
    inputs that lie between the same thresholds of one seldom do so along another.

    With ``units`` below the width the least used units are imprinted, and a small ``gain`` keeps them from being felt:
    the rest goes on learning, and updates of imprinted parameters never reach the server's own model. With ``rounds``
    the server is honest in all others and adds nothing to its model in these: what it releases lacks their updates.

    Args:
        public: inputs [N, …] of the victims' domain, N at least ``units``.
        units: how many of the first layer's units are imprinted, 2 or more for each direction.
        directions: how many directions w there are.
        gain: > 0, the weight of the units in the layer behind: the size of their gradients.
        seed: of w and of the signs in the layer behind.
        rounds: in which it imprints, from 0; ``None`` all.

    Raises:
        ConfigError: a number is out of range. At the first broadcast: the network is no perceptron of that width.
    """
    check_count("directions", directions)
    check_count("imprinted units", units, 2 * directions)
    check_number("gain", gain, 0, above=True)
    if len(public) < units:
        raise ConfigError(f"there are {len(public)} public inputs for the thresholds of {units} units; give as many")
    flat_inputs = public.detach().flatten(1)

    def craft(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        if rounds is not None and number not in rounds:
            return honest
        weight, bias, behind = perceptron_parts(network.module, honest)
        chosen = _least_used(weight, bias, behind, units, flat_inputs)
        generator = torch.Generator().manual_seed(seed)
        for group in torch.tensor_split(chosen, directions):
            direction = torch.randn(weight.shape[1], generator=generator, dtype=weight.dtype).to(weight.device)
            direction = direction / direction.norm()
            levels = (torch.arange(len(group), dtype=weight.dtype, device=weight.device) + 0.5) / len(group)
            weight[group] = direction
            bias[group] = -torch.quantile(flat_inputs.to(weight) @ direction, levels)
        signs = torch.randn(len(behind), generator=generator, dtype=weight.dtype).to(weight.device)
        behind[:, chosen] = gain * signs[:, None] / units
        return honest

    def keep(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        if rounds is not None:
            return torch.full_like(honest, float(number not in rounds))
        weight, bias, behind = perceptron_parts(network.module, honest.clone())
        chosen = _least_used(weight, bias, behind, units, flat_inputs)
        mask = torch.ones_like(honest)
        parts = perceptron_parts(network.module, mask)
        parts[0][chosen], parts[1][chosen] = 0.0, 0.0
        parts[2][:, chosen] = 0.0
        return mask

    return crafting_server(algorithm, craft, "Imprinting", keep)


def perceptron_parts(network: nn.Module, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First weight [m, n], first bias [m] and second weight [k, m] as views into ``flat`` [size].

    Raises:
        ConfigError: the network does not begin with two fully connected layers, the first with a bias.
    """
    views = Layout.of(network).views(flat)
    fits = len(views) >= 3 and (views[0].dim(), views[1].dim(), views[2].dim()) == (2, 1, 2)
    if not fits or views[1].shape[0] != views[0].shape[0] or views[2].shape[1] != views[0].shape[0]:
        raise ConfigError(
            f"{type(network).__name__} does not begin with two fully connected layers and a bias; attack a 'two-nn'"
        )
    return views[0], views[1], views[2]


def imprinted_inputs(weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """``(G_i − G_{i+1})/(g_i − g_{i+1})`` of units with parallel weights, ordered by threshold: [k, n], largest first.

    Args:
        weight, bias: [m, n] and [m] of the layer as it was sent, which shows what units were imprinted.
        weight_gradient, bias_gradient: of the same shapes: the gradient of a batch, or any weighted sum of gradients.

    Raises:
        ConfigError: no two units are parallel.
    """
    groups = parallel_groups(weight)
    if not groups:
        raise ConfigError("no units of the first layer are parallel; the server of this run did not imprint it")
    all_parts, all_sizes = [], []
    for group in groups:
        scale = weight[group].norm(dim=1)
        rows = group[(bias[group] / scale).argsort(descending=True)]  # from the lowest threshold to the highest
        above = torch.cat([rows[1:], rows[:1]])
        parts = weight_gradient.double()[rows] - weight_gradient.double()[above]
        sizes = bias_gradient.double()[rows] - bias_gradient.double()[above]
        parts[-1], sizes[-1] = weight_gradient.double()[rows[-1]], bias_gradient.double()[rows[-1]]
        all_parts.append(parts)
        all_sizes.append(sizes)
    parts, sizes = torch.cat(all_parts), torch.cat(all_sizes)
    largest = sizes.abs().argsort(descending=True)
    held = largest[sizes[largest].abs() > 1e-12 * float(sizes.abs().max().clamp_min(1e-300))]
    inputs: Tensor = parts[held] / sizes[held, None]
    return inputs


def parallel_groups(weight: Tensor) -> list[Tensor]:
    """Sets of two or more rows of ``weight`` [m, n] that point the same way, each int64 [≤ m], the largest first."""
    unit = weight.double() / weight.double().norm(dim=1, keepdim=True).clamp_min(1e-300)
    alike = unit @ unit.T > PARALLEL
    found = []
    while bool((alike.sum(1) > 1).any()):
        largest = alike[alike.sum(1).argmax()].clone()
        found.append(largest.nonzero().flatten())
        alike[largest], alike[:, largest] = False, False
    return found


def parallel_units(network: nn.Module) -> float:
    """The share of the first layer's units whose weights are parallel to another unit's: what a client can check.

    Next to 0 for any model that was trained or initialised, and the imprinted share for an imprinted one. A server
    that knows of this check can hide from it (noise on the rows, at a price in sharpness).
    """
    weight = next(network.parameters()).detach()
    return sum(map(len, parallel_groups(weight.flatten(1)))) / len(weight)


def _least_used(weight: Tensor, bias: Tensor, behind: Tensor, units: int, inputs: Tensor) -> Tensor:
    """The ``units`` units that add least to the layer behind on ``inputs``, int64 [units]."""
    if units > len(weight):
        raise ConfigError(f"the first layer has {len(weight)} units and {units} are to be imprinted; imprint fewer")
    active = (inputs.to(weight) @ weight.T + bias).clamp_min(0).norm(dim=0) / math.sqrt(len(inputs))
    chosen: Tensor = (active * behind.norm(dim=0)).argsort(stable=True)[:units]
    return chosen
