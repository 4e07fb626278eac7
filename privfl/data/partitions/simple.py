"""Partitions that look at sizes, at an order or at client ids: iid, natural, log-normal, label-sorted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfl.data.partitions.base import (
    Assignment,
    Partition,
    check_enough,
    class_pools,
    consecutive,
    even_sizes,
    proportional_sizes,
)
from privfl.errors import ConfigError, DataError
from privfl.validation import check_count, check_number


@dataclass(frozen=True)
class IID(Partition):
    """Every sample goes to a client at random; sizes differ by at most one.

    Args:
        clients: number of clients, ≥ 1.
    """

    needs_classes: ClassVar[bool] = False
    clients: int

    def __post_init__(self) -> None:
        check_count("clients", self.clients)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        check_enough(len(targets), self.clients)
        return consecutive(rng.permutation(len(targets)), even_sizes(len(targets), self.clients))


@dataclass(frozen=True)
class Natural(Partition):
    """The dataset's own clients, in ascending order of their ids; those with fewer than ``min_size`` are left out.

    Args:
        min_size: samples that a client must have to be kept, ≥ 1.
    """

    needs_classes: ClassVar[bool] = False
    min_size: int = 1

    def __post_init__(self) -> None:
        check_count("min_size", self.min_size)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        if clients is None:
            raise ConfigError(
                "the natural partition needs client ids and this dataset has none; choose another one, such as "
                "dirichlet or pathological"
            )
        clients = np.asarray(clients)
        if clients.shape != targets.shape:
            raise DataError(f"client ids have shape {clients.shape}; give one per example, shape {targets.shape}")
        _, owners, sizes = np.unique(clients, return_inverse=True, return_counts=True)
        kept = sizes >= self.min_size
        if not kept.any():
            raise ConfigError(
                f"min_size is {self.min_size} and the largest natural client has {int(sizes.max())} examples; lower it"
            )
        indices = np.flatnonzero(kept[owners])
        return Assignment(indices, (np.cumsum(kept) - 1)[owners[indices]], int(kept.sum()))


@dataclass(frozen=True)
class LogNormal(Partition):
    """Log-normal client sizes with iid labels, as in FedSampling (Qi et al., IJCAI 2023); every sample is used.

    With ``mean_size`` as in the authors' code (``size_noniid``): one weight w ~ LogNormal(0, ``sigma``) per sample of
    the dataset, sizes ceil(mean_size · w / mean(ceil(w))), clients filled one after the other until the data is used
    up, the last one cut short. The number of clients is then random, and because of the ceil the realised mean is
    larger than ``mean_size`` (2.73 for their 2 with ``sigma`` 2.5). With ``clients`` instead: that many clients, sizes
    proportional to w, at least one sample each. Give exactly one of the two. ``sigma`` is in [0, 100]; 0 means equal.

    Args:
        sigma: spread of the sizes, the deviation of their logarithms, in [0, 100].
        mean_size: aimed mean size, > 0; then the number of clients follows from the data.
        clients: number of clients, ≥ 1; then the mean size follows from the data.
    """

    needs_classes: ClassVar[bool] = False
    sigma: float = 2.5
    mean_size: float | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        check_number("sigma", self.sigma, 0, 100)
        if (self.mean_size is None) == (self.clients is None):
            raise ConfigError(
                f"log-normal has mean_size={self.mean_size} and clients={self.clients}; give exactly one of the two"
            )
        if self.mean_size is not None:
            check_number("mean_size", self.mean_size, 0, above=True)
        if self.clients is not None:
            check_count("clients", self.clients)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        samples = len(targets)
        if self.mean_size is None:
            assert self.clients is not None  # __post_init__: one of the two is given
            check_enough(samples, self.clients)
            logs = self.sigma * rng.standard_normal(self.clients)
            sizes = proportional_sizes(np.exp(logs - logs.max()), samples, 1, exhaust=True)
        else:
            weights = rng.lognormal(0, self.sigma, samples)
            wanted = np.ceil(np.minimum(self.mean_size * weights / np.ceil(weights).mean(), samples)).astype(np.int64)
            filled = np.minimum(np.cumsum(wanted), samples)  # never short: every size is at least one
            sizes = np.diff(filled[: np.searchsorted(filled, samples) + 1], prepend=0)
        return consecutive(rng.permutation(samples), sizes)


@dataclass(frozen=True)
class LabelSorted(Partition):
    """Samples sorted by class, cut into consecutive blocks.

    Give ``clients`` (all samples, block sizes differ by at most one) or ``block_size`` (as many clients as fit; the
    remainder is left out, as in FedSampling's EMNIST split with blocks of 600). With one block per client, client i
    gets block i; with more, blocks are dealt at random: ``LabelSorted(clients=100, blocks_per_client=2)`` is the
    pathological split of McMahan et al. (AISTATS 2017). Samples of one class are in random order.

    Args:
        clients: number of clients, ≥ 1.
        block_size: samples of a block, ≥ 1.
        blocks_per_client: blocks that each client gets, ≥ 1.
    """

    clients: int | None = None
    block_size: int | None = None
    blocks_per_client: int = 1

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.block_size is None):
            raise ConfigError(
                f"label-sorted has clients={self.clients} and block_size={self.block_size}; give exactly one of the two"
            )
        for name in ("clients", "block_size", "blocks_per_client"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        samples, each = len(targets), self.blocks_per_client
        if self.clients is not None:
            check_enough(samples, self.clients, each)
            sizes = even_sizes(samples, self.clients * each)
        else:
            assert self.block_size is not None  # __post_init__: one of the two is given
            check_enough(samples, each, self.block_size)
            blocks = samples // self.block_size // each * each
            sizes = np.full(blocks, self.block_size)
        indices, owners, blocks = consecutive(np.concatenate(class_pools(targets, classes, rng)), sizes)
        if each > 1:
            owners = (rng.permutation(blocks) // each)[owners]
        return Assignment(indices, owners, blocks // each)
