"""Which rows of a task belong to which client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.errors import DataError


@dataclass(frozen=True)
class ClientIndex:
    """Which rows belong to which client: ``rows`` [N] by client, ``offsets`` [clients + 1]; no copies of data."""

    rows: Tensor
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[NDArray[np.int64]]) -> ClientIndex:
        """From one array of row numbers per client.

        Raises:
            DataError: a client is empty.
        """
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        if len(parts) == 0 or sizes.min() == 0:
            empty = int(sizes.argmin()) if len(parts) else 0
            raise DataError(f"client {empty} holds no sample; give every client at least one, or leave it out")
        return cls.allowing_empty(parts)

    @classmethod
    def allowing_empty(cls, parts: Sequence[NDArray[np.int64]]) -> ClientIndex:
        """From one array of row numbers per client, which may be empty: what clients test on.

        Raises:
            DataError: a client's are no whole numbers, as those of a mask are not.
        """
        for client, part in enumerate(parts):
            if len(part) and np.asarray(part).dtype.kind not in "iu":
                found = np.asarray(part).dtype
                raise DataError(
                    f"the rows of client {client} are {found}; give their numbers, np.flatnonzero(mask) say"
                )
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        rows = torch.from_numpy(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))
        return cls(rows, np.concatenate([[0], sizes.cumsum()]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    def hash(self) -> str:
        """A hash of which client holds which examples, 64 hexadecimal digits."""
        return hashlib.sha256(self.rows.cpu().numpy().tobytes() + self.offsets.tobytes()).hexdigest()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples [clients] of every client (private: only the door may use it for training)."""
        return np.diff(self.offsets)

    @cached_property
    def overlap(self) -> bool:
        """Whether some row is listed more than once, by one client or by several."""
        return bool((torch.bincount(self.rows) > 1).any())
