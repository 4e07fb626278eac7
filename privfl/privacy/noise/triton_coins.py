"""Coins of many streams in one kernel, where Triton is installed: which numbers of a key stream reach a bound.

Integers alone, so a device has the coins of the host whatever its compiler does; that it has them is tried all the same
before they are used (:mod:`privfl.privacy.noise.device_coins`). A lane has one block of the key stream: 64 coins of a
byte, or 16 of four.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privfl.privacy.noise.chacha import LANES
from privfl.privacy.noise.triton_release import THERE, _block, _compiled

if THERE:
    import triton.language as tl

BLOCK_BYTES = 64


def _toss_of(
    row: tl.tensor, first: tl.tensor, end: tl.tensor, word: tl.tensor, least: tl.tensor, BYTES: tl.constexpr
) -> None:
    """The coins of ``word``, whose first one is number ``first`` of its row; the row has ``end`` of them."""
    for place in tl.static_range(8 // BYTES):
        coin = (word >> (place * 8 * BYTES)) & ((1 << (8 * BYTES)) - 1)
        number = first + place
        tl.store(row + number, (coin >= least).to(tl.uint8), mask=(number >= 0) & (number < end))


_toss = _compiled(_toss_of)


def _toss_rows(
    kept: tl.tensor,
    apart: tl.tensor,
    keys: tl.tensor,
    places: tl.tensor,
    least: tl.tensor,
    programs: tl.tensor,
    LANES: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    """``programs`` of a row, each with ``LANES`` blocks; rows of ``kept`` lie ``apart`` numbers from one another."""
    place = (tl.program_id(0) // programs).to(tl.int64)
    block = (tl.program_id(0) % programs).to(tl.int64) * LANES + tl.arange(0, LANES)
    start, end = tl.load(places + place * 6), tl.load(places + place * 6 + 1)
    number = (start // 64 + block).to(tl.uint32)
    key = keys + place * 12
    k0 = tl.load(key + 0).to(tl.uint32, bitcast=True)
    k1 = tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2 = tl.load(key + 2).to(tl.uint32, bitcast=True)
    k3 = tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4 = tl.load(key + 4).to(tl.uint32, bitcast=True)
    k5 = tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6 = tl.load(key + 6).to(tl.uint32, bitcast=True)
    k7 = tl.load(key + 7).to(tl.uint32, bitcast=True)
    w0, w1, w2, w3, w4, w5, w6, w7 = _block(k0, k1, k2, k3, k4, k5, k6, k7, number, 0)
    row = kept + place * apart
    first = (block * 64 - start % 64) // BYTES
    _toss(row, first, end, w0, least, BYTES)
    _toss(row, first + 8 // BYTES, end, w1, least, BYTES)
    _toss(row, first + 16 // BYTES, end, w2, least, BYTES)
    _toss(row, first + 24 // BYTES, end, w3, least, BYTES)
    _toss(row, first + 32 // BYTES, end, w4, least, BYTES)
    _toss(row, first + 40 // BYTES, end, w5, least, BYTES)
    _toss(row, first + 48 // BYTES, end, w6, least, BYTES)
    _toss(row, first + 56 // BYTES, end, w7, least, BYTES)


_tosses = _compiled(_toss_rows)


def toss_(kept: Tensor, table: Tensor, least: int, coin_bytes: int) -> None:
    """Overwrite the first numbers of each row of ``kept``, uint8 [n, size], with whether coins reach ``least``.

    ``table`` int64 [n, 6] has a row's key in its first four words, the bytes, a multiple of 8, that its stream has
    given already, and how many numbers get a coin.
    """
    programs = -(-(kept.shape[1] * coin_bytes + BLOCK_BYTES) // (BLOCK_BYTES * LANES))
    _tosses[(len(kept) * programs,)](
        kept,
        kept.stride(0),
        table.view(torch.int32),
        table[:, 4:],
        least,
        programs,
        LANES=LANES,
        BYTES=coin_bytes,
        num_warps=4,
    )
