"""Norms of rows, the factors that clip them, and sums of clipped rows: no row exceeds its bound, whatever is finite.

Squares are added up in float64, in which those of float32 neither overflow nor vanish. Where a sum of clipped rows is
one matrix product, what single steps of a row contribute may cancel, so that rounding, which is relative to their
*sizes*, is large beside the row's norm. Then the product is formed in float64 too, and so are sums with factors so
small that float32 would round them coarsely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from privfl.compiling import installed
from privfl.privacy.norms import norms, suits
from privfl.products import steady_product

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

SMALL_FACTOR = 1e-18
CANCELLING = 16.0
"""Sizes of a clipped row, relative to the bound, from which its sum is formed in float64."""
LEAST = 1e-6
"""Smallest norm, relative to the sizes, that a row is taken to have: float64 cannot tell much smaller ones from 0."""
ROWS_IN_FLOAT32 = 96
"""Rows whose sum may be formed in the rows' own dtype; longer sums are formed in float64."""
BLOCK = 16
"""Rows of each client whose sum in float64 is one product, so that it does not depend on how many others have."""
MARGIN = 1e-5
"""What the bound is shrunk by for the rounding of norms, factors and products of one row, at most 1e-6 in float32."""

_NARROW = ContextVar("whether sums stay in float32", default=False)


@contextmanager
def narrow_sums() -> Iterator[None]:
    """In this thread no row asks for float64: what is found out of sums is to hold for those in float32.

    Public rows may all ask where a client's rows do not, and sums in float64 show no kernel's rounding.
    """
    token = _NARROW.set(True)
    try:
        yield
    finally:
        _NARROW.reset(token)


def full_products(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """``function`` without TF32: what clips may not round as coarsely as what is clipped."""

    @wraps(function)
    def in_full(*arguments: Given.args, **named: Given.kwargs) -> Answer:
        products = torch.backends.cuda.matmul
        if not products.allow_tf32:
            return function(*arguments, **named)
        products.allow_tf32 = False
        try:
            return function(*arguments, **named)
        finally:
            products.allow_tf32 = True

    return in_full


def shrunk(max_grad_norm: float, dtype: torch.dtype) -> float:
    """What the norms of rows in ``dtype`` are clipped to, so that one row more moves a rounded sum by max_grad_norm.

    However n rows of norm ≤ C are added up, every partial sum of m of them is rounded by at most u times the sizes of
    these m (u = 2⁻²⁴ in float32). Added up over the n - 1 partial sums that is u·C·(2 + 3 + … + n) at most, where they
    are added one after the other; products with factors add u·C·n. Two worlds are off by twice their sum, 5.7e-4·C for
    96 rows in float32. Sums of more rows are formed in float64, and rounded once: by u·C·n, less up to 4700 rows.
    """
    rows = ROWS_IN_FLOAT32
    return max_grad_norm * (1 - MARGIN - torch.finfo(dtype).eps * (rows * (rows + 1) / 2 - 1 + rows))


def norms_along(values: Tensor) -> Tensor:
    """L2 norms [...] in float64 along the last dimension of ``values`` [..., n] of any floating type."""
    if values.dtype == torch.float64 and values.shape[-1] > 0:  # its own squares overflow and vanish
        largest = values.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        relative: Tensor = torch.linalg.vector_norm(values / largest, dim=-1)
        return relative * largest[..., 0]
    if installed() and suits(values):  # what stands in for Numba is slower than PyTorch
        return norms(values)
    found: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return found


def exact_sums(factors: Tensor, rows: Tensor) -> Tensor:
    """Σ factors·rows [clients, n] in float64, of ``factors`` [clients, B] and ``rows`` [clients, B, n]."""
    return exact_products(factors.double()[..., None], rows, 1)[:, 0]


def exact_products(left: Tensor, right: Tensor, steps: int) -> Tensor:
    """Σ left⊗right [clients, m, n] in float64, of [clients, B·steps, m] and [clients, B·steps, n], in blocks of rows.

    In a stack the blocks are equally long, whatever B is, so that a client's sum has the same bits in all stacks.
    """
    clients, alone = len(left), len(left) == 1
    size = steps * (ROWS_IN_FLOAT32 if alone else BLOCK)
    total = torch.zeros(clients, left.shape[2], right.shape[2], dtype=torch.float64, device=left.device)
    for one, other in zip(torch.split(left, size, 1), torch.split(right, size, 1), strict=True):
        missing = 0 if alone else size - one.shape[1]
        if missing:
            one, other = (F.pad(part, (0, 0, 0, missing)) for part in (one, other))
        total += steady_product(one.double().mT, other.double())
    return total


def row_norms(values: Tensor) -> Tensor:
    """L2 norm [B] in float64 of every row of ``values`` [B, ...]."""
    return norms_along(values if values.dim() == 2 else values.reshape(values.shape[0], math.prod(values.shape[1:])))


def bounded_norms(norms: Tensor, sizes: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Upper bounds [B] of what ``norms`` [B] are after rounding in ``dtype``.

    A row is a sum over ``steps`` whose terms have norms that add up to ``sizes`` [B].
    """
    return (norms + steps * torch.finfo(dtype).eps * sizes).maximum(LEAST * sizes)


@dataclass(frozen=True)
class Clipping:
    """What the rows of a batch are multiplied with before they are added up.

    Args:
        norms: of the rows before, float64; [B] or stacked.
        factors: 0 for rows that are not finite, float64; likewise.
        finite: which rows are finite, ``None`` if all are; likewise.
        max_grad_norm: the bound of each row, may be ``inf``.
        exact: whether sums need float64 whatever is added up; [clients] if those of some clients do.
        narrow: the factors in the rows' own dtype.
    """

    norms: Tensor
    factors: Tensor
    finite: Tensor | None
    max_grad_norm: float
    exact: bool | Tensor
    narrow: Tensor

    @classmethod
    def of(
        cls,
        squares: Tensor,
        max_grad_norm: float,
        dtype: torch.dtype,
        together: int | Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> Clipping:
        """From squared norms in float64, at least one, of rows in ``dtype``; see :meth:`of_norms`."""
        return cls.of_norms(squares.sqrt(), max_grad_norm, dtype, together, mask)

    @classmethod
    def of_norms(
        cls,
        norms: Tensor,
        max_grad_norm: float,
        dtype: torch.dtype,
        together: int | Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> Clipping:
        """From norms in float64, at least one, of rows in ``dtype``.

        A row whose norm is not finite or beyond the range of ``dtype`` counts as not finite; on CUDA also one that
        is 10¹⁸ times as long as the bound. ``together`` rows are added up, of each client if it says so of each, also
        in passes besides this one. Factors are 0 where ``mask``, shaped as the norms are, is false.
        """
        limit, finite, usable, largest = torch.finfo(dtype).max, None, norms, 0.0
        if norms.is_cuda:  # the host does not ask, and no row is so long that its factor would need float64
            finite = norms <= min(limit, max_grad_norm / SMALL_FACTOR)
        elif not (largest := float(norms.max())) <= limit:
            finite = norms <= limit
            usable = norms.where(finite, 0)
            largest = float(usable.max())
        if math.isinf(max_grad_norm):
            factors = torch.ones_like(norms)
        else:
            bound = shrunk(max_grad_norm, dtype)
            factors = quotient(bound, usable.clamp_min(bound))
        for wanted in (finite, mask):
            factors = factors if wanted is None else zero_unless(wanted, factors)
        exact = _many(norms.shape[-1] if together is None else together, norms.device)
        if largest * SMALL_FACTOR > max_grad_norm and not _NARROW.get():
            exact = _settled((usable.amax(-1) * SMALL_FACTOR > max_grad_norm) | exact)
        return cls(norms, factors, finite, max_grad_norm, exact, factors.to(dtype))

    def kept(self, values: Tensor) -> Tensor:
        """``values`` [B, ...] so that those of rows that are not finite are zero times their factors, which are 0."""
        if self.finite is None:
            return values
        if values.is_cuda:  # one launch instead of two
            return values.nan_to_num(0.0, 0.0, 0.0)
        return values.where(_wide(self.finite, values), 0)

    def scaled(self, values: Tensor, *, exact: bool) -> Tensor:
        """``values`` [B, ...] times the factors, in float64 if ``exact``."""
        kept = self.kept(values)
        return (kept.double() if exact else kept) * _wide(self.factors if exact else self.narrow, kept)

    def regimes(self, places: Mapping[str, Tensor], sizes: Tensor | None = None) -> Iterator[bool]:
        """Whether sums are to be formed in float64: one answer for all clients, or first yes and then no.

        A row whose steps have norms that add up to ``sizes`` [clients·B] may ask for it. What a client gets is up to
        its own rows: after two answers, for each of which sums were written to ``places`` [clients, ...], every client
        keeps its own.
        """
        wide = self._wide(sizes, next(iter(places.values())).shape[0])
        if isinstance(wide, bool):
            yield wide
            return
        yield True
        kept = {name: place.clone() for name, place in places.items()}
        yield False
        for name, place in places.items():
            place[wide] = kept[name][wide]

    def _wide(self, sizes: Tensor | None, clients: int) -> bool | Tensor:
        if sizes is None or self.exact is True or math.isinf(self.max_grad_norm) or _NARROW.get():
            return self.exact
        if sizes.is_cuda:  # whose answer the host would wait for
            return True
        asks = self.factors * sizes > CANCELLING * self.max_grad_norm
        return _settled(asks.view(clients, -1).any(1) | self.exact) if bool(asks.any()) else self.exact

    def sum_of(self, rows: Tensor) -> Tensor:
        """The sum [n] of clipped ``rows`` [B, n], in their dtype."""
        return self.mapped(lambda values: values[None]).sums_of(rows[None])[0]

    @full_products
    def sums_of(self, rows: Tensor) -> Tensor:
        """Each client's sum [clients, n] of clipped ``rows`` [clients, B, n], in their dtype."""
        kept = rows if self.finite is None else self.mapped(Tensor.flatten).kept(rows.flatten(0, 1)).view_as(rows)
        exact = self.exact
        if exact is True:
            return exact_sums(self.factors, kept).to(rows.dtype)
        sums = steady_product(self.narrow[:, None], kept)[:, 0]
        return sums if exact is False else exact_sums(self.factors, kept).to(rows.dtype).where(exact[:, None], sums)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Clipping:
        """The same with the rows in another order or shape."""
        finite = None if self.finite is None else change(self.finite)
        return replace(
            self,
            norms=change(self.norms),
            factors=change(self.factors),
            finite=finite,
            narrow=change(self.narrow),
        )


def _many(rows: int | Sequence[int], device: torch.device) -> bool | Tensor:
    """Whether more than :data:`ROWS_IN_FLOAT32` ``rows`` are added up, of all clients or of each."""
    if isinstance(rows, int):
        return rows > ROWS_IN_FLOAT32
    many = [count > ROWS_IN_FLOAT32 for count in rows]
    return many[0] if len(set(many)) == 1 else torch.tensor(many, device=device)


def _settled(flags: Tensor) -> bool | Tensor:
    """One answer if all ``flags`` [] or [clients] agree."""
    some, every = bool(flags.any()), bool(flags.all())
    return every if some == every else flags


def quotient(number: float, values: Tensor) -> Tensor:
    """``number`` / ``values``, in one operation."""
    return torch.tensor(number, dtype=values.dtype) / values


def zero_unless(wanted: Tensor, values: Tensor) -> Tensor:
    """``values``, but zero where ``wanted``, shaped as they are, is false."""
    return torch.where(wanted, values, zero_like(values))


def zero_like(values: Tensor) -> Tensor:
    """0 in the type of ``values`` and where they are."""
    return _zero(values.dtype, values.device)


@cache
def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """One 0 for all that is made zero: on a device, making it is one launch more."""
    return torch.zeros((), dtype=dtype, device=device)


Clip = Callable[[Tensor], Clipping]
"""Says of squared norms [B] in float64 what their rows are multiplied with."""


def _wide(per_row: Tensor, values: Tensor) -> Tensor:
    return per_row.view(-1, *[1] * (values.dim() - 1))
