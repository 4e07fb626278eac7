"""Partitions in which a client holds a few classes only: pathological and clustered (ReBaFL, arXiv 2303.06314)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privfl.data.partitions.base import Assignment, Partition, check_enough, class_pools
from privfl.errors import ConfigError
from privfl.validation import check_count, check_number

Reuse = Literal["wrap", "forbid"]
"""What happens when clients ask for more of a class than there is: samples are shared, or the clients get less."""


@dataclass(frozen=True)
class Pathological(Partition):
    """Each client draws ``classes_per_client`` classes uniformly and gets equally many samples of each.

    ``samples_per_client`` defaults to samples // clients. A class for which clients ask more than there is:

    * ``reuse="wrap"`` (the released code): its samples are dealt out again from the start, so that clients *share*
      samples, though no client gets one twice; the partition is then not disjoint, and the report counts how many
      samples are shared.
    * ``reuse="forbid"``: the clients that drew it share what there is evenly and end up smaller. Always disjoint.

    ``iid_fraction`` of each client's data is drawn from all classes instead, disjoint from everything else (0.2 in the
    released code's default, 0 in the paper). For blocks of label-sorted data see :class:`LabelSorted`.

    Args:
        clients: number of clients, ≥ 1.
        classes_per_client: classes that each client draws, ≥ 1.
        samples_per_client: samples of each client, ≥ 1; ``None`` shares out all there are.
        reuse: ``wrap`` lets clients share samples of a scarce class, ``forbid`` makes them smaller.
        iid_fraction: share of a client's samples that is drawn from all classes, in [0, 1].
    """

    clients: int
    classes_per_client: int = 2
    samples_per_client: int | None = None
    reuse: Reuse = "wrap"
    iid_fraction: float = 0.0

    def __post_init__(self) -> None:
        check_count("classes_per_client", self.classes_per_client)
        _check(self.clients, self.samples_per_client, self.iid_fraction)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        numbers = np.full(self.clients, self.classes_per_client)
        return _deal(targets, classes, rng, numbers, self.samples_per_client, self.reuse, self.iid_fraction)


@dataclass(frozen=True)
class Clustered(Partition):
    """As :class:`Pathological`, with the number of classes of client i given by its cluster, i mod ``clusters``.

    The classes themselves are drawn for each client. The defaults are the paper's; its arrival probabilities are
    ``PerCluster((0.5, 0.5, 0.3, 0.3, 0.2))`` of :mod:`privfl.federation.availability`.

    Args:
        clients: number of clients, ≥ 1.
        clusters: number of clusters, ≥ 1; client i belongs to cluster i mod ``clusters``.
        classes_per_client: classes that a client of each cluster draws, one number for each cluster.
        samples_per_client: samples of each client, ≥ 1; ``None`` shares out all there are.
        reuse: ``wrap`` lets clients share samples of a scarce class, ``forbid`` makes them smaller.
        iid_fraction: share of a client's samples that is drawn from all classes, in [0, 1].
    """

    clients: int = 20
    clusters: int = 5
    classes_per_client: tuple[int, ...] = (2, 2, 3, 3, 5)
    samples_per_client: int | None = None
    reuse: Reuse = "wrap"
    iid_fraction: float = 0.0

    def __post_init__(self) -> None:
        check_count("clusters", self.clusters)
        if len(self.classes_per_client) != self.clusters:
            raise ConfigError(
                f"classes_per_client has {len(self.classes_per_client)} entries for {self.clusters} clusters; give one "
                "per cluster"
            )
        for number in self.classes_per_client:
            check_count("classes_per_client", number)
        _check(self.clients, self.samples_per_client, self.iid_fraction)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        numbers = np.resize(self.classes_per_client, self.clients)
        return _deal(targets, classes, rng, numbers, self.samples_per_client, self.reuse, self.iid_fraction)


def _check(clients: int, samples_per_client: int | None, iid_fraction: float) -> None:
    check_count("clients", clients)
    if samples_per_client is not None:
        check_count("samples_per_client", samples_per_client)
    check_number("iid_fraction", iid_fraction, 0, 1)


def _deal(
    targets: np.ndarray,
    classes: int,
    rng: np.random.Generator,
    numbers: np.ndarray,
    samples_per_client: int | None,
    reuse: Reuse,
    iid_fraction: float,
) -> Assignment:
    """Client i gets ``numbers[i]`` classes; see :class:`Pathological` for the other arguments."""
    samples, clients = len(targets), len(numbers)
    check_enough(samples, clients)
    size = samples // clients if samples_per_client is None else samples_per_client
    mixed = round(iid_fraction * size)
    if mixed * clients > samples:
        raise ConfigError(
            f"{clients} clients with {mixed} iid samples each need {mixed * clients} samples and the dataset has "
            f"{samples}; lower samples_per_client or iid_fraction"
        )
    order = rng.permutation(samples)
    iid, rest = order[: mixed * clients], order[mixed * clients :]
    indices, owners = [iid], [np.repeat(np.arange(clients), mixed)]
    if mixed < size:
        demand = _demand(np.unique(targets), classes, numbers, size - mixed, rng)
        for label, pool in enumerate(class_pools(targets[rest], classes, rng)):
            wanted = demand[:, label]
            if reuse == "wrap" and wanted.max() > len(pool):
                raise ConfigError(
                    f"a client asks for {int(wanted.max())} samples of class {label}, which has {len(pool)}: lower "
                    "samples_per_client or raise classes_per_client"
                )
            total = int(wanted.sum())
            if reuse == "forbid" and total > len(pool):
                wanted = np.diff(np.cumsum(wanted) * len(pool) // total, prepend=0)
                total = len(pool)
            indices.append(rest[pool[np.arange(total) % max(len(pool), 1)]])
            owners.append(np.repeat(np.arange(clients), wanted))
    return Assignment(np.concatenate(indices), np.concatenate(owners), clients)


def _demand(present: np.ndarray, classes: int, numbers: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """How many samples of each class each client asks for, int64 (clients, classes); each row sums to ``size``."""
    most = int(numbers.max())
    if most > len(present):
        raise ConfigError(f"classes_per_client is {most} and the dataset has {len(present)} classes; lower it")
    if most > size:
        raise ConfigError(
            f"classes_per_client is {most} and a client has {size} class-bound examples; lower it, or use fewer clients"
        )
    drawn = present[np.argsort(rng.random((len(numbers), len(present))), axis=1)[:, :most]]
    rank = np.arange(most)
    wanted = size // numbers[:, None] + (rank < size % numbers[:, None])
    wanted[rank >= numbers[:, None]] = 0
    demand = np.zeros((len(numbers), classes), dtype=np.int64)
    np.put_along_axis(demand, drawn, wanted, axis=1)
    return demand
