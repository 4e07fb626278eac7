"""The ChaCha20 key stream (RFC 8439) in integer operations of torch, for keys that many streams have, at any position.

On a GPU noise is made where it is needed: a block of the stream depends on key, block number and nonce alone, so all
blocks of all streams are computed at once, and PyTorch's compiler makes one kernel of it where there is a compiler.
Integers are exact, so words are those of the CPU's cipher on every device and however kernels are fused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.utils import _triton

WORDS = 8
"""64-bit words of a block."""
LANES = 128
"""Blocks of a program of Triton's kernel: one for each thread of four warps, in whose registers two of them fit."""
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)


def key_stream(keys: Tensor, starts: Tensor, skipped: int, blocks: int, nonces: tuple[int, ...]) -> Tensor:
    """Words int64 [nonces, streams, 8·blocks] of the key streams of ``keys`` int32 [streams, 8].

    Each begins ``skipped`` blocks after its block number ``starts`` [streams]. A nonce is the last 32-bit word of one
    whose others are zero. Words are little-endian, as the cipher's.
    """
    if keys.is_cuda and _triton.has_triton():
        return _compiled()(keys, starts, skipped, blocks, nonces)
    return _blocks(keys, starts, skipped, blocks, nonces)


@cache
def _compiled() -> Callable[[Tensor, Tensor, int, int, tuple[int, ...]], Tensor]:
    return torch.compile(_blocks, dynamic=True)


def _blocks(keys: Tensor, starts: Tensor, skipped: int, blocks: int, nonces: tuple[int, ...]) -> Tensor:
    counted = torch.arange(blocks, dtype=torch.int32, device=keys.device) + skipped
    numbers = (starts.to(torch.int32)[:, None] + counted).expand(len(nonces), -1, -1)
    zero = torch.zeros_like(numbers)
    a = torch.stack([zero + constant for constant in CONSTANTS])
    b, c = (torch.stack([zero + keys[:, place, None] for place in range(first, first + 4)]) for first in (0, 4))
    d = torch.stack(
        [numbers, zero, zero, torch.stack([part + nonce for part, nonce in zip(zero, nonces, strict=True)])]
    )
    state = (a, b, c, d)
    for _ in range(10):
        a, b, c, d = _quarter(a, b, c, d)
        a, b, c, d = _quarter(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    halves = torch.cat([one + other for one, other in zip((a, b, c, d), state, strict=True)]).to(torch.int64)
    words = (halves[1::2] << 32) | (halves[::2] & 0xFFFFFFFF)  # PyTorch 2.11 compiles no view of their bits
    return words.movedim(0, -1).flatten(2)


def _quarter(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds side by side, on rows of the state [4, ...]."""
    a = a + b
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 12)
    a = a + b
    d = _turned(d ^ a, 8)
    c = c + d
    return a, _turned(b ^ c, 7), c, d


def _turned(words: Tensor, left: int) -> Tensor:
    """32-bit rotation; the shift to the right of signed integers repeats the sign, which the mask takes away."""
    return (words << left) | ((words >> (32 - left)) & ((1 << left) - 1))
