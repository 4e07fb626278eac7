"""Named random streams, so that results depend on the root seed and on nothing else.

A stream is keyed by (root seed, name, keys…), for instance ``(seed, "batches", round, client)``. Two streams with
different keys are independent; the number of workers, the order of clients and a resumed run change nothing.
These streams decide what an *experiment* does. Privacy noise, response coins and the coins of a sampler whose
amplification is claimed never come from here, but from :mod:`privfl.privacy.noise.source`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


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
