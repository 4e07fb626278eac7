"""Points on the segment between two end points of one network, and what SuPerFed adds to their loss.

Equation numbers are those of SuPerFed (Hahn, Jeong and Lee, KDD 2022) in ``docs/reference/equations.md``. Everything
works on flat parameter vectors, for one client or stacked by ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from privfl.models.flat_network import Layout


def mix(federated: Tensor, personal: Tensor, lam: Tensor | float) -> Tensor:
    """W(λ) = (1 − λ)·``federated`` + λ·``personal`` [size], eq. (1); exactly an end point at λ = 0 and at λ = 1.

    ``lam`` is a number or [] for one λ for all parameters, or [size] (see :func:`spread`) for one per layer.
    """
    if isinstance(lam, Tensor):
        return torch.lerp(federated, personal, lam)
    return torch.lerp(federated, personal, float(lam))


def spread(per_layer: Tensor, sizes: Sequence[int]) -> Tensor:
    """One value per parameter [Σ sizes] from one per layer [layers], eq. (1b)."""
    return torch.cat([value.expand(size) for value, size in zip(per_layer.unbind(), sizes, strict=True)])


Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Alignment(Generic[Number]):
    """cos²(u, v) and its gradients, as factors of u and v: no vector is formed before it is needed.

    ``∇_u cos² = cross·v − own_u·u`` and ``∇_v cos² = cross·u − own_v·v`` (the ν terms of eqs. (6) and (7)). All are
    numbers, or tensors: [], or [clients, 1] for stacked vectors.
    """

    cosine: Number
    cross: Number
    own_u: Number
    own_v: Number


def alignment(u: Tensor, v: Tensor) -> Alignment[Tensor]:
    """The cosine c = ⟨u, v⟩ / (‖u‖‖v‖) of eq. (5), and the factors of ∇c²; vectors [size] or [clients, size].

    A vector of zero has cosine 0. The paper's code adds 1e-6 to every product u_i·v_i, which shifts the numerator by
    the number of parameters times 1e-6.
    """
    tiny = torch.finfo(u.dtype).tiny
    squared_u, squared_v = _inner(u, u).clamp_min(tiny), _inner(v, v).clamp_min(tiny)
    return aligned(squared_u, squared_v, _inner(u, v))


def aligned(squared_u: Number, squared_v: Number, inner: Number) -> Alignment[Number]:
    """The same from ‖u‖² > 0, ‖v‖² > 0 and ⟨u, v⟩."""
    lengths = squared_u**0.5 * squared_v**0.5
    cosine = inner / lengths
    square = 2 * cosine**2
    return Alignment(cosine, 2 * cosine / lengths, square / squared_u, square / squared_v)


def _inner(u: Tensor, v: Tensor) -> Tensor:
    return torch.dot(u, v) if u.dim() == 1 else (u * v).sum(-1, keepdim=True)


def keep_apart_(for_u: Tensor, for_v: Tensor, u: Tensor, v: Tensor, nu: float) -> None:
    """Add ν·∇_u cos²(u, v) to ``for_u`` and ν·∇_v cos²(u, v) to ``for_v``, [size] each, in place."""
    _KeepApart.apply(for_u, for_v, u, v, nu)  # type: ignore[no-untyped-call]


class _KeepApart(torch.autograd.Function):
    """Outside of a stack, where sums are formed in place: vmap knows no ``addcmul_`` and a slow ``dot``."""

    @staticmethod
    def forward(for_u: Tensor, for_v: Tensor, u: Tensor, v: Tensor, nu: float) -> Tensor:
        """On vectors of one client."""
        _add_gradients(for_u, for_v, u, v, nu)
        return for_u.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: local steps run without gradients of their own."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], *values: Any) -> tuple[Tensor, int]:
        """The same on [clients, size]; every end point differs from client to client, so all are stacked."""
        for_u, for_v, u, v = (vector.movedim(dim, 0) for vector, dim in zip(values[:4], in_dims[:4], strict=True))
        _add_gradients(for_u, for_v, u, v, values[4])
        return u.new_zeros(len(u)), 0


def _add_gradients(for_u: Tensor, for_v: Tensor, u: Tensor, v: Tensor, nu: float) -> None:
    found = alignment(u, v)
    for_u.addcmul_(v, found.cross, value=nu).addcmul_(u, found.own_u, value=-nu)
    for_v.addcmul_(u, found.cross, value=nu).addcmul_(v, found.own_v, value=-nu)


def random_parameters(layout: Layout, one: Tensor, other: Tensor) -> Tensor:
    """Which parameters are drawn at random, bool [size], from two independent initialisations [size].

    Scales and shifts of normalisation layers start at 1 and 0 in every model. They carry about half of ‖w‖² in deep
    networks, so a cosine over all parameters starts near 0.5 there and the ν term spends itself on them.
    """
    drawn = [bool((a != b).any()) for a, b in zip(layout.views(one), layout.views(other), strict=True)]
    return torch.repeat_interleave(torch.tensor(drawn), torch.tensor(layout.sizes)).to(one.device)


def norm_proximity_gradient(parameters: Tensor, anchor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Gradient [size] of Σ_t ‖w_t − w₀_t‖₂ over the tensors of ``sizes`` values, the proximity of the paper's code.

    It is 0 for a tensor that has not moved, as in PyTorch (not 0/0).
    """
    tiny = torch.finfo(parameters.dtype).tiny
    moved = torch.split(parameters - anchor, list(sizes))
    return torch.cat([part / part.norm().clamp_min(tiny) for part in moved])
