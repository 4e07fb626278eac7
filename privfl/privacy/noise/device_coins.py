"""Coins for many rows at once, each from its own stream, on a device: the coins that the host would draw.

Where Triton makes a kernel for the device that gives them, they are made where they are needed. Elsewhere the host
draws them and they travel.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.devices import to_device
from privfl.privacy.noise import fused
from privfl.privacy.noise.source import NoiseStream

TYPES: dict[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("u1"), 4: np.dtype("<u4")}
"""Types of coins, by their bytes."""


def coins(stream: NoiseStream, number: int, coin_bytes: int) -> NDArray[np.unsignedinteger]:
    """The next ``number`` coins of ``stream``, uniform in all of ``coin_bytes`` (1 or 4), from whole words."""
    found: NDArray[np.unsignedinteger] = stream.words(_words(number, coin_bytes)).view(TYPES[coin_bytes])
    return found[:number]


def rows_of_coins(
    streams: Sequence[NoiseStream],
    numbers: Sequence[int],
    size: int,
    least: int,
    coin_bytes: int,
    device: torch.device,
) -> Tensor:
    """Whether coins are ``least`` or more, bool [streams, size]: ``numbers`` of each stream's, and True after them."""
    if device.type == "cuda" and gives_the_coins_of_the_host(device):
        return _on_device(streams, numbers, size, least, coin_bytes, device)
    return to_device(_on_host(streams, numbers, size, least, coin_bytes), device)


def _on_host(streams: Sequence[NoiseStream], numbers: Sequence[int], size: int, least: int, coin_bytes: int) -> Tensor:
    kept = np.ones((len(streams), size), dtype=np.bool_)
    for row, stream, number in zip(kept, streams, numbers, strict=True):
        if number:
            np.greater_equal(coins(stream, number, coin_bytes), least, out=row[:number])
    return torch.from_numpy(kept)


def _on_device(
    streams: Sequence[NoiseStream],
    numbers: Sequence[int],
    size: int,
    least: int,
    coin_bytes: int,
    device: torch.device,
) -> Tensor:
    table = np.empty((len(streams), 6), dtype="<i8")
    table[:, :4] = np.frombuffer(b"".join([stream.key for stream in streams]), "<i8").reshape(-1, 4)
    table[:, 4] = [
        8 * stream.skip_words(_words(number, coin_bytes)) for stream, number in zip(streams, numbers, strict=True)
    ]
    table[:, 5] = numbers
    kept = torch.ones(len(streams), size, dtype=torch.uint8, device=device)
    toss_(kept, to_device(torch.from_numpy(table), device), least, coin_bytes)
    return kept.view(torch.bool)


def _words(number: int, coin_bytes: int) -> int:
    return math.ceil(number * coin_bytes / 8)


def toss_(kept: Tensor, table: Tensor, least: int, coin_bytes: int) -> None:
    """:func:`privfl.privacy.noise.triton_coins.toss_`."""
    from privfl.privacy.noise import triton_coins

    with torch.cuda.device(kept.device) if kept.is_cuda else nullcontext():
        triton_coins.toss_(kept, table, least, coin_bytes)


@cache
def gives_the_coins_of_the_host(device: torch.device) -> bool:
    """Whether the kernel tosses on ``device`` the coins of public keys that the host tosses; found out once.

    Where there is a kernel that does not, a warning says so; the host's coins are the same.
    """
    if not fused.available():
        return False
    problem = ""
    try:
        if not _same_coins(device):
            problem = "its coins are not the host's"
    except Exception as error:  # a compiler has many ways to fail, and none of them is worth a run
        problem = f"it fails ({type(error).__name__}: {str(error).strip().partition(chr(10))[0] or 'without a word'})"
    if problem:
        said = f"Triton's kernel tosses no coins on {device}, because {problem}; the host draws them and they travel"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    return not problem


def _same_coins(device: torch.device) -> bool:
    for coin_bytes, least in ((1, 77), (4, 1_234_567_890)):
        pair = [[NoiseStream(bytes([key]) * 32) for key in (1, 2)] for _ in range(2)]
        for number in (5, 1000):  # the second time amid a block
            numbers = [number, number // 3]
            found = _on_device(pair[0], numbers, 1009, least, coin_bytes, device)
            if not torch.equal(found.cpu(), _on_host(pair[1], numbers, 1009, least, coin_bytes)):
                return False
    return True
