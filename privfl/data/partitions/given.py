"""A partition whose client sizes are given: as a list, or as those of another dataset's own clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfl.data.catalog import info, load_dataset
from privfl.data.partitions.base import Assignment, Partition, consecutive
from privfl.errors import ConfigError
from privfl.validation import check_count


@dataclass(frozen=True)
class GivenSizes(Partition):
    """Clients of given sizes with iid labels: ``sizes``, or those of the natural clients of the catalog's ``dataset``.

    FedSampling (Qi et al., IJCAI 2023) divides Amazon reviews by user; ``GivenSizes(dataset="amazon-toys")`` gives the
    clients of any dataset the sizes of those users: their numbers of *training* rows, which leave out what the catalog
    holds out. With ``clients`` that many of the sizes are drawn without replacement, otherwise all are used in their
    order. Samples are dealt at random; those that no size asks for are left out.

    Args:
        sizes: numbers of samples ≥ 1, one for each client.
        dataset: name in the catalog; give exactly one of ``sizes`` and ``dataset``.
        clients: how many of the sizes to draw.

    Raises:
        ConfigError: not exactly one source, a size below 1, more clients than sizes, a dataset without client ids, or
            sizes that ask for more samples than there are.
    """

    needs_classes: ClassVar[bool] = False
    sizes: tuple[int, ...] = ()
    dataset: str | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        if (len(self.sizes) == 0) == (self.dataset is None):
            raise ConfigError(
                f"given-sizes has {len(self.sizes)} sizes and dataset={self.dataset!r}; give exactly one of the two"
            )
        for size in self.sizes:
            check_count("a client's size", size)
        if self.dataset is not None:
            info(self.dataset)
        if self.clients is not None:
            check_count("clients", self.clients)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        sizes = np.array(self.sizes, dtype=np.int64) if self.dataset is None else _natural_sizes(self.dataset)
        if self.clients is not None:
            if self.clients > len(sizes):
                raise ConfigError(f"clients is {self.clients} and there are {len(sizes)} sizes to draw from; lower it")
            sizes = rng.choice(sizes, self.clients, replace=False)
        if sizes.sum() > len(targets):
            raise ConfigError(
                f"{len(sizes)} clients of the given sizes need {sizes.sum()} samples and the dataset has "
                f"{len(targets)}; draw fewer with clients"
            )
        return consecutive(rng.permutation(len(targets)), sizes)


def _natural_sizes(name: str) -> np.ndarray:
    """The number of training rows of every natural client of a dataset in the catalog, int64 (clients,)."""
    owners = load_dataset(name).clients
    if owners is None:
        raise ConfigError(f"dataset '{name}' has no clients of its own to take sizes from; name one that has")
    return np.unique(owners.numpy(), return_counts=True)[1].astype(np.int64)
