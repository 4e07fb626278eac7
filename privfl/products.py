"""The products of dense layers, in the form that is quickest on this processor.

MKL, oneDNN and PyTorch's own kernels differ by factors of two where one side of a product is narrow, and which is quick
differs between makers of processors. Which form is taken depends on the processor, the build of PyTorch and the shape
of the weight alone, and never on a clock: a run that is resumed on the same machine has the same bits.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

WIDE = 1 << 16
"""Weights from which on the form of a product matters."""
HUGE = 1 << 20
"""Weights from which on oneDNN, whose calls take 20 µs more, is ahead."""
FEW = 32
"""Rows up to which a wide layer's product is quicker with the weight in front, where that is quicker at all."""
NARROW = 16
"""Columns from which on a batched product is quick as it stands: as many as a vector has numbers."""
EVEN, ALIGNED = 64, 16
"""Bytes of the widest vector, a multiple of which begins what is laid out evenly, and of what counts as aligned."""
NEAR = 1e-5
"""Largest relative difference between two forms of a product that is rounding."""


@dataclass(frozen=True)
class Forms:
    """Which forms this machine takes.

    Args:
        weight_first: of a wide layer and few rows ``W xᵀ`` is taken, not ``x Wᵀ`` (Intel: 0.37 ms instead of 0.69).
        onednn: huge layers go by oneDNN's inner product (AMD: 0.43 ms instead of 0.53 forward, 0.32 instead of 0.52
            backward, for 10 rows, 9,216 to 128).
        by_inputs: updates and gradients of wide layers run along the inputs (AMD: 0.35 ms instead of 0.47, 0.49 instead
            of 0.65).
        narrow_first: of a batched product with a narrow right side the transposed one is taken (AMD: 0.21 ms instead of
            0.81 for 20 products of [1440, 25] and [25, 8], 0.28 instead of 0.83 for [25, 1440] and [1440, 8]).
        longer_last: what many rows give a weight is a product whose longer side is its columns (Intel: 0.18 ms instead
            of 0.38 for [25, 1440] and [1440, 8], and 0.31 instead of 0.38 for [9, 2500] and [2500, 16]).
        divided: numbers in the windows of a stacked step from which on two workers are quicker than one (AMD, two
            cores: 9.9 against 10.7 ms a round with 10 clients of a small CNN, 12.4 against 11.7 with 14).
        transformed: numbers of transformed images that a convolution takes at once. With few they stay near a core;
            with all of a batch two workers wait less for the interpreter's lock (Intel: 189 ms a round of 10 clients of
            a CNN instead of 220).
        fewest: rows that a product is filled up to where each of them must be rounded alike in all batches. With fewer
            MKL takes kernels that add up in another order (Intel: from 16 rows on it does not), and a whole pass of
            the network would be as long.
    """

    weight_first: bool = False
    onednn: bool = False
    by_inputs: bool = False
    narrow_first: bool = False
    longer_last: bool = False
    divided: int = 5 << 18
    transformed: int = 1 << 18
    fewest: int = 1


@cache
def processor() -> str:
    """The maker of this machine's processor as it names itself, or what the system says of it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    return named.group(1) if named else platform.processor() or platform.machine()


@cache
def forms() -> Forms:
    """The forms that this machine takes; those of every other one where it is neither of the two that were measured."""
    return forms_of(processor())


def forms_of(maker: str) -> Forms:
    """The forms for processors of ``maker``, as far as this build of PyTorch has them."""
    if "GenuineIntel" in maker:
        return Forms(weight_first=True, longer_last=True, transformed=1 << 22, fewest=16)
    if "AuthenticAMD" in maker:
        return Forms(onednn=_onednn_agrees(), by_inputs=True, narrow_first=True, divided=3 << 18)
    return Forms()


@cache
def has_bfloat16_units() -> bool:
    """Whether this processor multiplies numbers in bfloat16, so that they take half the time of float32's or less."""
    asked = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)  # processors with tiles of bfloat16 have these too
    return bool(asked())


def outputs(given: Tensor, weight: Tensor, bias: Tensor | None, *, steady: bool = False) -> Tensor:
    """``given`` [B, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]; nothing is recorded for autograd.

    ``steady``: the form is one for all numbers of rows, so that each is rounded alike.
    """
    taken = forms()
    if taken.onednn and _suits_onednn(given, weight):
        return _by_onednn(given, weight, bias)
    if taken.weight_first and weight.numel() >= WIDE and (steady or given.shape[0] <= FEW):
        product = _by_turns(given, weight, taken.fewest) if steady else torch.mm(weight, given.T).T.contiguous()
        return product if bias is None else product.add_(bias)
    return F.linear(filled(given), weight, bias)[: given.shape[0]] if steady else F.linear(given, weight, bias)


def _by_turns(given: Tensor, weight: Tensor, rows: int) -> Tensor:
    """``W xᵀ`` transposed, of ``rows`` at a time."""
    count = given.shape[0]
    if count <= rows:  # nearly always, and in fewer calls
        return torch.mm(weight, filled(given).T).T[:count].contiguous()
    product = given.new_empty(count, weight.shape[0])
    for begin in range(0, count, rows):
        some = given[begin : begin + rows]
        product[begin : begin + rows] = torch.mm(weight, filled(some).T).T[: some.shape[0]]
    return product


def input_gradient(back: Tensor, weight: Tensor, *, steady: bool = False) -> Tensor:
    """``back`` [B, out] times ``weight`` [out, in]; ``steady`` as in :func:`outputs`."""
    if forms().onednn and _suits_onednn(back, weight):
        return _by_onednn(back, weight.T, None)
    return torch.mm(filled(back), weight)[: back.shape[0]] if steady else torch.mm(back, weight)


def filled(rows: Tensor) -> Tensor:
    """``rows`` [B, n], and rows of zeros behind them until there are as many as products on this processor need."""
    missing = forms().fewest - rows.shape[0]
    return torch.constant_pad_nd(rows, (0, 0, 0, missing)) if missing > 0 and rows.device.type == "cpu" else rows


def write_weight_gradient(back: Tensor, given: Tensor, into: Tensor) -> None:
    """Write ``back`` [B, out] transposed times ``given`` [B, in] ``into`` [out, in]."""
    if forms().by_inputs and into.numel() >= WIDE:
        torch.mm(given.T, back, out=into.T)
    else:
        torch.mm(back.T, given, out=into)


def descend_(weight: Tensor, back: Tensor, given: Tensor, rate: float) -> Tensor:
    """Subtract ``rate`` times ``back`` [B, out] transposed times ``given`` [B, in] from ``weight`` [out, in]."""
    if forms().by_inputs:
        weight.T.addmm_(given.T, back, alpha=-rate)
        return weight
    return weight.addmm_(back.T, given, alpha=-rate)


def batched(left: Tensor, right: Tensor, *, steady: bool = False) -> Tensor:
    """The products of ``left`` [n, rows, k] and ``right`` [n, k, columns], for many rows.

    Where these lie as [n, columns, rows] this is a view of them. The form is one for all numbers of rows; ``steady``:
    each of the n is rounded alike wherever it stands.
    """
    product = steady_product if steady else torch.bmm
    if right.shape[2] < NARROW and forms().narrow_first:
        return product(right.mT, left.mT).mT
    return product(left, right)


def steady_product(left: Tensor, right: Tensor) -> Tensor:
    """The products of ``left`` [n, rows, k] and ``right`` [n, k, columns], each rounded alike wherever it stands.

    As far as is known of kernels that do otherwise (:func:`by_place`): a claim that rests on it is tried besides.
    """
    (rows, columns), size = (left.shape[1], right.shape[2]), left.element_size()
    if left.device.type != "cpu" or not by_place():
        return torch.bmm(left, right)
    if right.stride(2) != 1 or columns == 1:
        left = evenly(left) if left.stride(2) == 1 else left
        return torch.bmm(left, evenly(right.mT).mT if rows == 1 or size > 4 else right)
    if rows * columns * size % ALIGNED == 0:
        return torch.bmm(left, right)
    if rows == 1:  # product by product, none of which is copied
        into = left.new_empty(len(left), 1, -(-columns * size // EVEN) * EVEN // size)[:, :, :columns]
        return torch.bmm(left, right, out=into)
    several = ALIGNED // size
    if left.numel() < right.numel():
        return torch.bmm(F.pad(left, (0, 0, 0, -rows % several)), right)[:, :rows].contiguous()
    return torch.bmm(left, F.pad(right, (0, -columns % several)))[:, :, :columns].contiguous()


@cache
def by_place() -> bool:
    """Whether this processor rounds a product by where matrices begin.

    MKL's kernels did on an AMD EPYC without AVX512, where a matrix did not begin at a multiple of 16 bytes: of ``A Bᵀ``
    the first one, of ``A B`` the product. In float64, or with a single row of ``A``, ``Bᵀ`` counts too.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator).expand(4, *shape) for shape in ((6, 501), (501, 9)))
    with torch.no_grad():
        found = torch.bmm(left.contiguous(), right.contiguous()), torch.bmm(left.contiguous(), right.mT.contiguous().mT)
    return any(not torch.equal(one, one[:1].expand_as(one)) for one in found)


def evenly(stack: Tensor) -> Tensor:
    """``stack`` [n, ...] with each of the n at a multiple of 64 bytes, copied where one is not."""
    even = EVEN // stack.element_size()
    if stack.device.type != "cpu":
        return stack
    if (len(stack) == 1 or stack.stride(0) % even == 0) and stack.data_ptr() % EVEN == 0:
        return stack
    size = stack[0].numel()
    laid = stack.new_empty(len(stack), -(-size // even) * even)
    return laid[:, :size].view(stack.shape).copy_(stack)


def at_even_places(stack: Tensor, dim: int = 0) -> Tensor:
    """``stack``, with clients along ``dim``, laid out evenly where the processor rounds by place and ``dim`` is 0.

    So what a pass is given lies as it lay when it was looked at whether passes round alike.
    """
    return evenly(stack) if dim == 0 and stack.dim() > 1 and by_place() else stack


def sums_over_rows(given: Tensor, back: Tensor, *, steady: bool = False) -> Tensor:
    """The products [n, k, columns] of ``given`` [n, rows, k], transposed, and ``back`` [n, rows, columns].

    Where these lie as [n, columns, k] this is a view of them. The form is one for all numbers of rows; ``steady`` as in
    :func:`batched`.
    """
    if back.shape[2] < given.shape[2] and forms().longer_last:
        return (steady_product if steady else torch.bmm)(back.mT, given).mT
    return batched(given.mT, back, steady=steady)


def _suits_onednn(rows: Tensor, weight: Tensor) -> bool:
    return weight.numel() >= HUGE and rows.dtype == weight.dtype == torch.float32 and rows.device.type == "cpu"


def _by_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


@cache
def _onednn_agrees() -> bool:
    """Whether PyTorch has oneDNN's inner product under the name that is used here, and it is what it is taken for."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    generator = torch.Generator().manual_seed(0)
    rows, weight, bias, back = (
        torch.randn(shape, generator=generator) for shape in ((3, 64), (32, 64), (32,), (3, 32))
    )
    try:
        with torch.no_grad():
            found = _by_onednn(rows, weight, bias), _by_onednn(back, weight.T, None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = F.linear(rows, weight, bias), torch.mm(back, weight)
    return all(
        one.shape == wanted.shape and float((one - wanted).abs().max()) <= NEAR * float(wanted.abs().max())
        for one, wanted in zip(found, expected, strict=True)
    )
