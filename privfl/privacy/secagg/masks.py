"""Masks: pseudo-random vectors that are added to, or taken from, vectors of words, modulo 2³² or 2⁶⁴.

A mask is the ChaCha20 key stream (RFC 8439) of its 32-byte seed, zero nonce, block counter from 0, read as
little-endian words of the vector's size. A seed serves one mask of one session, which is what makes a fixed nonce
right. Because 2ᵇ divides the modulus of the word, a masked vector may be reduced modulo 2ᵇ afterwards.

Many masks are added side by side: a piece of the target and a buffer for the key stream stay in the core's second-level
cache while each mask's stream is drawn and added. Both release the interpreter's lock, so threads gain what cores are
free.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from privfl.errors import ConfigError

SEED_BYTES = 32
_BLOCK = 64  # bytes of key stream for one step of the counter
_PIECE = 1 << 17  # bytes of key stream at a time
_ZEROS = memoryview(bytes(_PIECE))  # the key stream is the encryption of zeros
_AT_ONCE = 128  # masks side by side
_LARGEST = _BLOCK << 32  # bytes after which the counter would repeat

Word = np.uint32 | np.uint64


def add_many(target: NDArray[Word], masks: Sequence[tuple[bytes, int]], threads: int = 1) -> None:
    """Add masks to ``target``, or take them off, in place, modulo 2³² or 2⁶⁴ as its words are.

    Args:
        target: one-dimensional, contiguous, uint32 or uint64.
        masks: (seed, sign): 32 secret bytes, used for one mask of one session, and 1 or −1.
        threads: how many of them share the work.

    With several ``threads`` each works on a stretch of the target of its own, because the key stream can be entered
    anywhere; the result is the same. One seed may occur twice.

    Raises:
        ConfigError: the target is of another kind or longer than 2³⁸ bytes, a seed is not 32 bytes, a sign is neither 1
            nor −1, or ``threads`` is below 1. The target is then untouched.
    """
    if target.dtype not in (np.uint32, np.uint64) or target.ndim != 1 or not target.flags.c_contiguous:
        raise ConfigError(
            f"a mask cannot be added to an array of {target.dtype} with shape {target.shape}: "
            "give one contiguous row of uint32 or uint64."
        )
    if target.nbytes > _LARGEST:
        raise ConfigError(f"a mask of {target.nbytes} bytes would repeat itself: at most 2^38 bytes.")
    for seed, sign in masks:
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            size = f"{len(seed)} bytes" if isinstance(seed, bytes) else f"a {type(seed).__name__}"
            raise ConfigError(f"the seed of a mask must be {SEED_BYTES} bytes, but it is {size}.")
        if sign not in (1, -1):
            raise ConfigError(f"the sign of a mask is {sign}: it must be 1 or -1.")
    if threads < 1:
        raise ConfigError(f"masks cannot be added by {threads} threads: give 1 or more.")
    stretch = _PIECE // target.itemsize
    pieces = -(-len(target) // stretch)
    threads = min(threads, pieces)
    if threads <= 1:
        _add(target, masks, 0)
        return
    starts = [stretch * (pieces * place // threads) for place in range(threads)] + [len(target)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: _add(target[ends[0] : ends[1]], masks, ends[0]), pairwise(starts)))


def _add(target: NDArray[Word], masks: Sequence[tuple[bytes, int]], first: int) -> None:
    """Add the masks from word ``first`` on (a multiple of a block's words) to ``target``, which is that stretch."""
    stretch = _PIECE // target.itemsize
    words = np.empty(min(len(target), stretch), dtype=target.dtype.newbyteorder("<"))
    room = words.view(np.uint8).data
    nonce = (first * target.itemsize // _BLOCK).to_bytes(4, "little") + bytes(12)
    for batch in range(0, len(masks), _AT_ONCE):
        streams = [
            (Cipher(ChaCha20(seed, nonce), mode=None).encryptor().update_into, np.add if sign == 1 else np.subtract)
            for seed, sign in masks[batch : batch + _AT_ONCE]
        ]
        for start in range(0, len(target), stretch):
            part = target[start : start + stretch]
            zeros, drawn, numbers = _ZEROS[: part.nbytes], room[: part.nbytes], words[: len(part)]
            for draw, combine in streams:
                draw(zeros, drawn)
                combine(part, numbers, out=part)
