"""Named random streams, so that results depend on the root seed and on nothing else.

A stream is keyed by (root seed, name, keys…), for instance ``(seed, "batches", round, client)``. Two streams with
different keys are independent; the number of workers, the order of clients and a resumed run change nothing.
These streams decide what an *experiment* does. Privacy noise, response coins and the coins of a sampler whose
amplification is claimed never come from here, but from :mod:`privfl.privacy.noise.source`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

_IN_TURN = threading.RLock()
_TIMES = [0, 0]
"""How often privfl began to use PyTorch's process-wide generators, and how often it has ended."""


def stream_seed(seed: int, name: str, *keys: int) -> int:
    """A 64-bit seed for the stream ``name`` with ``keys`` under the root ``seed``."""
    return int.from_bytes(_digest(8, seed, name, *keys), "little")


def stream_key(seed: int, name: str, *keys: int) -> bytes:
    """32 bytes for the stream ``name`` with ``keys`` under the root ``seed``; no secret, since the seed is none."""
    return _digest(32, seed, name, *keys)


def _digest(size: int, seed: int, name: str, *keys: int) -> bytes:
    text = ":".join([str(int(seed)), name, *(str(int(key)) for key in keys)])
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def numpy_stream(seed: int, name: str, *keys: int) -> np.random.Generator:
    """A NumPy generator for the stream ``name`` with ``keys`` under the root ``seed``."""
    return np.random.Generator(np.random.Philox(stream_seed(seed, name, *keys)))


def torch_stream(seed: int, name: str, *keys: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator on ``device`` for the stream ``name`` with ``keys`` under the root ``seed``."""
    generator = torch.Generator(device)
    generator.manual_seed(stream_seed(seed, name, *keys))
    return generator


@contextmanager
def process_generators(seed: int | None = None, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """What is built or tried inside may draw from PyTorch's process-wide generators, which are put back afterwards.

    One thread at a time: two would put back what the other drew, and draw by turns.

    Args:
        seed: of the CPU's generator inside, 64 bits; ``None`` leaves it as it is.
        devices: GPUs whose generators are put back as well.
    """
    with _IN_TURN:
        _TIMES[0] += 1
        try:
            with torch.random.fork_rng(devices):
                if seed is not None:
                    torch.default_generator.manual_seed(seed)
                yield
        finally:
            _TIMES[1] += 1


def times_used() -> tuple[int, int]:
    """How often :func:`process_generators` was entered and left; two numbers alike: nobody is inside."""
    return _TIMES[0], _TIMES[1]
