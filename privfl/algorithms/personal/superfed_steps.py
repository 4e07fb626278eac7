"""One local step of SuPerFed's two end points, eqs. (6) and (7), in few passes over memory.

With u = w^f, v = w^l, the gradient G at W(λ), the factors ``cross`` and ``own`` of ∇cos²
(:mod:`~privfl.algorithms.personal.interpolation`) and a proximity whose gradient is
``pull.own·u + pull.factor·pull.vector``, SGD follows

    (1 − λ)·G + pull.own·u + pull.factor·pull.vector + ν·(cross·v − own_u·u)   at u, and
    λ·G + ν·(cross·u − own_v·v)                                               at v.

Written down like that, a step of a model with few rows in a batch spends most of its time reading and writing vectors:
twelve times, and the two optimisers another eight. Since W(λ) = (1 − λ)·u + λ·v is at hand, one vector
H = G + h·W(λ) with h = ν·cross / (λ·(1 − λ)) brings G and the other end point to both ends,

    (1 − λ)·H + (pull.own − ν·own_u − ν·cross·(1 − λ)/λ)·u + pull.factor·pull.vector   and
    λ·H − (ν·own_v + ν·cross·λ/(1 − λ))·v,

and what multiplies an end point itself is weight decay to PyTorch's fused SGD, which also takes the factors of H as
1 − dampening. Two vectors are added and two optimisers run, at one pass each. Close to an end of the segment h would
magnify rounding, so there, like on other devices and in a stack of clients, the first form is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors, descend
from privfl.algorithms.personal.interpolation import Alignment, aligned, keep_apart_, mix, spread
from privfl.privacy.door.batch_plans import LocalTraining

NEAR_AN_END = 1 / 256
"""Distance of λ from 0 or 1 below which H would cost more than eight bits of the pull of the other end point."""


@dataclass(frozen=True)
class Pull:
    """The gradient of the proximity to the received model, as ``own·w^f + factor·vector``; ``vector`` is [size]."""

    own: float
    factor: float
    vector: Tensor

    def add_to_(self, gradient: Tensor, federated: Tensor) -> None:
        """Add it to ``gradient`` [size] in place."""
        if self.own:
            gradient.add_(federated, alpha=self.own)
        gradient.add_(self.vector, alpha=self.factor)


@dataclass(frozen=True)
class Regularisers:
    """What the loss does not see: ``nu`` times cos², over the parameters where ``drawn`` [size] is 1, and ``pull``."""

    nu: float
    drawn: Tensor | None
    pull: Pull | None


def mixture(local: Tensors, share: Tensor, sizes: Sequence[int]) -> Tensor:
    """W(λ) [size] of the end points in ``local``; ``share`` is [] for one λ, or [layers] for layers of ``sizes``."""
    federated, personal = local["parameters"], local["personal"]
    if share.dim() == 0:
        return mix(federated, personal, share)
    lams = _numbers(share)
    if lams is None:
        return mix(federated, personal, spread(share, sizes))
    mixed = torch.empty_like(federated)
    ends = (each.split_with_sizes(sizes) for each in (federated, personal, mixed))
    for lam, u, v, place in zip(lams, *ends, strict=True):
        torch.lerp(u, v, lam, out=place)
    return mixed


def descend_both(
    local: Tensors,
    gradient: Tensor,
    mixed: Tensor,
    share: Tensor,
    sizes: Sequence[int],
    terms: Regularisers,
    training: LocalTraining,
) -> None:
    """One SGD step of both end points in place, with all terms of eq. (3); ``gradient`` [size] is used up.

    ``local`` holds ``parameters`` (w^f) and ``personal`` (w^l), and with momentum also ``momentum`` and
    ``personal_momentum``; ``mixed`` [size] is where ``gradient`` was taken; ``share`` and ``sizes`` as in
    :func:`mixture`. The same as eqs. (6) and (7) followed by ``torch.optim.SGD``, up to the rounding of sums.
    """
    lams = None if terms.drawn is not None else _numbers(share)
    if lams is None:
        _directly(local, gradient, share if share.dim() == 0 else spread(share, sizes), terms, training)
        return
    found = _alignment(local) if terms.nu else None
    vectors = [local["parameters"], local["personal"], gradient, mixed]
    vectors.append(gradient if terms.pull is None else terms.pull.vector)
    if training.momentum:
        vectors += [local["momentum"], local["personal_momentum"]]
    layers = [vectors] if len(lams) == 1 else zip(*(vector.split_with_sizes(sizes) for vector in vectors), strict=True)
    for lam, layer in zip(lams, layers, strict=True):
        if NEAR_AN_END <= lam <= 1 - NEAR_AN_END:
            _in_few_passes(_Layer(*layer), lam, found, terms, training)
        else:
            _near_an_end(_Layer(*layer), lam, found, terms, training)


def _numbers(share: Tensor) -> list[float] | None:
    """The λ of every layer, or ``None`` where they cannot be read (in a stack) or not for free (on a GPU)."""
    if not share.is_cpu or share.dtype not in (torch.float32, torch.float64):
        return None
    try:
        return share.reshape(-1).tolist()
    except RuntimeError:  # what torch.func.vmap raises for values of single clients
        return None


def _alignment(local: Tensors) -> Alignment[float]:
    u, v = local["parameters"], local["personal"]
    tiny = torch.finfo(u.dtype).tiny
    squared_u, squared_v = (max(torch.dot(end, end).item(), tiny) for end in (u, v))
    return aligned(squared_u, squared_v, torch.dot(u, v).item())


def _directly(local: Tensors, gradient: Tensor, share: Tensor, terms: Regularisers, training: LocalTraining) -> None:
    """Eqs. (6) and (7) as they stand, for one client or for a stack."""
    federated, personal = local["parameters"], local["personal"]
    for_personal = gradient * share
    for_federated = gradient.sub_(for_personal)
    if terms.pull is not None:
        terms.pull.add_to_(for_federated, federated)
    if terms.nu:
        u, v = (end if terms.drawn is None else end * terms.drawn for end in (federated, personal))
        keep_apart_(for_federated, for_personal, u, v, terms.nu)
    descend(local, for_federated, training)
    descend(_end(personal, local.get("personal_momentum")), for_personal, training)


class _Layer(NamedTuple):
    """The vectors of one layer, or of all parameters where they have one λ."""

    federated: Tensor
    personal: Tensor
    gradient: Tensor
    mixed: Tensor
    pulling: Tensor
    momentum: Tensor | None = None
    personal_momentum: Tensor | None = None


def _in_few_passes(
    layer: _Layer, lam: float, found: Alignment[float] | None, terms: Regularisers, training: LocalTraining
) -> None:
    rest = 1 - lam
    own_federated = own_personal = training.weight_decay
    if found is not None:
        layer.gradient.add_(layer.mixed, alpha=terms.nu * found.cross / (lam * rest))
        own_personal -= terms.nu * (found.own_v + found.cross * lam / rest)
        own_federated -= terms.nu * (found.own_u + found.cross * rest / lam)
    _fused_descend(layer.personal, layer.gradient, layer.personal_momentum, lam, own_personal, training)
    if terms.pull is not None:
        layer.gradient.add_(layer.pulling, alpha=terms.pull.factor / rest)
        own_federated += terms.pull.own
    _fused_descend(layer.federated, layer.gradient, layer.momentum, rest, own_federated, training)


def _near_an_end(
    layer: _Layer, lam: float, found: Alignment[float] | None, terms: Regularisers, training: LocalTraining
) -> None:
    """The same by eqs. (6) and (7) as they stand."""
    federated, personal = layer.federated, layer.personal
    for_personal = layer.gradient * lam
    for_federated = layer.gradient.sub_(for_personal)
    if terms.pull is not None:
        replace(terms.pull, vector=layer.pulling).add_to_(for_federated, federated)
    if found is not None:
        cross, own_u, own_v = (terms.nu * factor for factor in (found.cross, found.own_u, found.own_v))
        for_federated.add_(personal, alpha=cross).add_(federated, alpha=-own_u)
        for_personal.add_(federated, alpha=cross).add_(personal, alpha=-own_v)
    descend(_end(federated, layer.momentum), for_federated, training)
    descend(_end(personal, layer.personal_momentum), for_personal, training)


def _end(parameters: Tensor, momentum: Tensor | None) -> Tensors:
    return {"parameters": parameters} if momentum is None else {"parameters": parameters, "momentum": momentum}


def _fused_descend(
    end: Tensor, gradient: Tensor, momentum: Tensor | None, factor: float, own: float, training: LocalTraining
) -> None:
    """One SGD step of ``end`` along ``factor·gradient + own·end`` in one pass; ``factor`` > 0.

    The kernel of ``torch.optim.SGD(fused=True)``, whose own way to it costs as much again as the pass.
    """
    torch._fused_sgd_(
        [end],
        [gradient],
        [] if momentum is None else [momentum],
        weight_decay=own / factor,
        momentum=training.momentum,
        lr=training.learning_rate if momentum is not None else training.learning_rate * factor,
        dampening=1 - factor,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
