"""Noise on a device: by one kernel where Triton makes one that gives the bits of the host, else operation by operation.

A compiler might round otherwise than the host, and nobody would see it: noise looks like noise. So before a device
makes noise by the kernel, it releases public rows with public keys, and every bit is compared with what PyTorch's
operations give on the host. Where one differs, or where the kernel does not run, a warning says so, and noise is made
by these operations on the device, which take a hundred kernels and have the same bits.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils import _triton

from privfl.devices import to_device
from privfl.privacy.noise.box_muller import EIGHTHS, pairs
from privfl.privacy.noise.chacha import LANES, WORDS, key_stream

RADIUS, ANGLE, FINE = 1, 2, 3
"""Nonces of the three words of a pair; 0 is that of all other words."""
AT_ONCE = 1 << 22
"""Pairs of a pass by operations, which takes some 100 bytes for each."""
SMALL_RADIUS = 292570944
"""The first block of the key 0, 1, 2 … 31 that has a radius word (the fifth) so small that it takes a third one."""
TRIED = 2 * WORDS * LANES + 2 * WORDS * 3 + 5
"""Numbers of a row that is tried: more than one program's, not all of a block's, and oddly many."""


def release_(rows: Tensor, keys: Tensor, first: Tensor, scale: Tensor, inverse: Tensor, grid: Tensor) -> None:
    """:func:`release_by_operations_`, by one kernel; numbers of a row lie without gaps."""
    from privfl.privacy.noise import triton_release

    with torch.cuda.device(rows.device) if rows.is_cuda else nullcontext():
        triton_release.release_(rows, keys, first, scale, inverse, grid, _cosines(rows.device))


def release_by_operations_(
    rows: Tensor, keys: Tensor, first: Tensor, scale: Tensor, inverse: Tensor, grid: Tensor
) -> None:
    """Add to each of ``rows`` [n, size] the noise of its key, from its ``first`` block on, and round it to its grid.

    ``keys`` are int32 [n, 8], ``first`` int64 [n]; the rest is float64 [n, 1]: the deviation in steps of the grid, one
    over the grid, and the grid. All lie on the device of ``rows``.
    """
    size = rows.shape[1]
    half = (size + 1) // 2
    step = max(1, AT_ONCE // len(rows) // WORDS) * WORDS
    for start, end in pairwise([*range(0, half, step), half]):
        blocks = math.ceil((end - start) / WORDS)
        words = key_stream(keys, first, start // WORDS, blocks, (RADIUS, ANGLE, FINE))[:, :, : end - start]
        for place, noise in zip((start, half + start), pairs(*words), strict=True):
            part = rows[:, place : min(place + end - start, size if place >= half else half)]
            part.copy_((part * inverse + noise[:, : part.shape[1]] * scale).round_().mul_(grid))


def gives_the_bits_of_the_host(device: torch.device) -> bool:
    """Whether the kernel makes noise on ``device``; found out once. Where it was to and cannot, a warning says so."""
    return why_not(device) == ""


@cache
def why_not(device: torch.device) -> str | None:
    """Why ``device`` cannot use the kernel, in one sentence: empty if it can, ``None`` if there is no Triton for it."""
    if not available():
        return None
    problem = ""
    try:
        if not _same_bits(device):
            problem = "its bits are not the host's"
    except Exception as error:  # a compiler has many ways to fail, and none of them is worth a run
        text = str(error).strip().splitlines()
        problem = f"it fails ({type(error).__name__}: {text[0] if text else 'without a word'})"
    if not problem:
        return ""
    said = f"Triton's kernel makes no noise on {device}, because {problem}; PyTorch's operations make the same noise"
    warnings.warn(f"{said}, in more than a hundred kernels a step", RuntimeWarning, stacklevel=2)
    return said


def available() -> bool:
    """Whether there is a Triton that has a device."""
    return find_spec("triton") is not None and bool(_triton.has_triton())


def _same_bits(device: torch.device) -> bool:
    """Whether public rows come out of the kernel on ``device`` with the bits that the host gives them."""
    for dtype, bits in ((torch.float32, torch.int32), (torch.float64, torch.int64)):
        rows, *there = public_release(dtype)
        found = to_device(rows, device)
        release_(found, *(to_device(one, device) for one in there))
        release_by_operations_(rows, *there)
        if not torch.equal(found.cpu().view(bits), rows.view(bits)):
            return False
    return True


def public_release(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows on the CPU that no data is in, and all that :func:`release_` takes; a word of one row takes a third."""
    keys = torch.arange(32, dtype=torch.uint8).view(torch.int32).repeat(4, 1)
    keys[1:3] += torch.arange(1, 3, dtype=torch.int32)[:, None]
    first = torch.tensor([SMALL_RADIUS, 0, (1 << 31) - 200, 12345])
    scale = torch.tensor([1.0, 1.5, 1.999, 1.25], dtype=torch.float64)[:, None] * 2.0**20
    grid = 2.0 ** torch.tensor([-20.0, -33.0, 3.0, -60.0], dtype=torch.float64)[:, None]
    spread = torch.linspace(-1.0, 1.0, TRIED, dtype=torch.float64)
    rows = spread.pow(3) * grid * scale * torch.tensor([2.0, 0.0, 1e4, 2.0**30], dtype=torch.float64)[:, None]
    rows[1, :3] = torch.tensor([math.inf, -math.inf, -0.0])
    return rows.to(dtype), keys, first, scale, 1.0 / grid, grid


@cache
def _cosines(device: torch.device) -> Tensor:
    return to_device(torch.tensor(EIGHTHS, dtype=torch.float64), device)
