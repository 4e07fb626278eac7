"""Partitions with drawn label laws and sizes: Dirichlet, and the long-tail (rho, tau) split of GRP-FED."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
from privfl.errors import ConfigError
from privfl.validation import check_count, check_number

Skew = Literal["label", "label-balanced", "size", "both"]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label or size skew drawn from a symmetric Dirichlet law; small ``alpha`` means strong skew. All samples are used.

    * ``skew="label"``: each class is shared out among the clients by p ~ Dir(alpha · 1_clients) (Yurochkin et al.,
      ICML 2019); sizes vary as they fall out.
    * ``skew="label-balanced"``: equal sizes; each client aims at a label law q ~ Dir(alpha · 1_classes) (Hsu et al.,
      arXiv 1909.06335, whose α is ``classes`` times this one, because they spread α over a prior).
    * ``skew="size"``: client sizes ∝ Dir(size_alpha · 1_clients), iid labels.
    * ``skew="both"``: sizes as in ``size`` and label laws as in ``label-balanced``, independent of each other.

    ``size_alpha`` (default ``alpha``) belongs to the last two only. Label laws that clients aim at are bent as far as
    the supply of each class demands; the report shows by how much. A client that ``label`` leaves with fewer than
    ``min_size`` samples is topped up with random samples of the others, in proportion to what they can spare: the usual
    redraw until all are large enough does not end for small ``alpha``.

    Args:
        clients: number of clients, ≥ 1.
        alpha: concentration of the label distribution, > 0; the smaller, the more skewed.
        skew: what is skewed: ``label``, ``label-balanced``, ``size`` or ``both``, as above.
        size_alpha: concentration of the sizes, > 0; ``None`` takes ``alpha``.
        min_size: samples that every client has at least, ≥ 1.
    """

    clients: int
    alpha: float
    skew: Skew = "label"
    size_alpha: float | None = None
    min_size: int = 1

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_number("alpha", self.alpha, 0, above=True)
        if self.size_alpha is not None:
            check_number("size_alpha", self.size_alpha, 0, above=True)
            if self.skew not in ("size", "both"):
                raise ConfigError(
                    f"size_alpha is {self.size_alpha} and skew '{self.skew}' draws no sizes; leave it out, or set skew "
                    "to size or both"
                )
        check_count("min_size", self.min_size)

    def profiles(self, classes: int, rng: np.random.Generator) -> np.ndarray | None:
        """The label law each client aims at under ``label-balanced`` and ``both``; see :meth:`Partition.profiles`."""
        if self.skew not in ("label-balanced", "both"):
            return None
        return rng.dirichlet(np.full(classes, float(self.alpha)), self.clients)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        samples = len(targets)
        check_enough(samples, self.clients, self.min_size)
        if self.skew == "label":
            return _top_up(self._share_classes(targets, classes, rng), self.min_size, rng)
        profiles = self.profiles(classes, rng)
        if self.skew == "label-balanced":
            sizes = even_sizes(samples, self.clients)
        else:
            alpha = self.alpha if self.size_alpha is None else self.size_alpha
            weights = rng.dirichlet(np.full(self.clients, float(alpha)))
            sizes = proportional_sizes(weights, samples, self.min_size, exhaust=True)
        if profiles is None:
            return consecutive(rng.permutation(samples), sizes)
        return _deal(targets, sizes, profiles, rng)

    def _share_classes(self, targets: np.ndarray, classes: int, rng: np.random.Generator) -> Assignment:
        pools = class_pools(targets, classes, rng)
        concentration = np.full(self.clients, float(self.alpha))
        owners = []
        for pool in pools:
            cuts = np.rint(np.cumsum(rng.dirichlet(concentration)) * len(pool)).astype(np.int64)
            cuts[-1] = len(pool)
            owners.append(np.repeat(np.arange(self.clients), np.diff(cuts, prepend=0)))
        return Assignment(np.concatenate(pools), np.concatenate(owners), self.clients)


@dataclass(frozen=True)
class LongTail(Partition):
    """Sizes that fall off with ``rho`` over clients, class shares that fall off with ``tau`` over a random class order.

    The (ρ, τ) imbalance of GRP-FED (arXiv 2108.13858), which names the two parameters and gives no formula. Sizes of
    clients m = 0 … M−1 are ∝ (m+1)^−ρ (``size_mode="zipf"``), ρ^m (``"geometric"``) or ρ^(10·m/(M−1))
    (``"longtail"``), rounded down, never below ``min_size``, never increasing with m. The class at place k of the
    client's own random order has share ∝ τ^k (``class_mode="geometric"``) or (k+1)^−τ (``"zipf"``). The sizes use up
    nearly all samples, so these shares are bent as far as the supply of each class demands; the report shows by how
    much. Neutral values: equal sizes at ρ = 0 (zipf) or 1 (the others), uniform classes at τ = 1 (geometric) or
    0 (zipf).

    Args:
        clients: number of clients, ≥ 1.
        rho: ρ, how fast sizes fall off; ≥ 0 (zipf) or in [0, 1] (the others).
        tau: τ, how fast a client's class shares fall off; ≥ 0 (zipf) or in [0, 1] (geometric).
        size_mode: formula of the sizes: ``zipf``, ``geometric`` or ``longtail``.
        class_mode: formula of the class shares: ``geometric`` or ``zipf``.
        min_size: samples that every client has at least, ≥ 1.
    """

    clients: int
    rho: float = 0.7
    tau: float = 0.5
    size_mode: Literal["zipf", "geometric", "longtail"] = "zipf"
    class_mode: Literal["geometric", "zipf"] = "geometric"
    min_size: int = 20

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_number(f"rho (size_mode '{self.size_mode}')", self.rho, 0, np.inf if self.size_mode == "zipf" else 1)
        check_number(f"tau (class_mode '{self.class_mode}')", self.tau, 0, np.inf if self.class_mode == "zipf" else 1)
        check_count("min_size", self.min_size)

    def profiles(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """The label law each client aims at; see :meth:`Partition.profiles`."""
        place = np.arange(classes)
        law = float(self.tau) ** place if self.class_mode == "geometric" else (place + 1.0) ** -self.tau
        return rng.permuted(np.tile(law / law.sum(), (self.clients, 1)), axis=1)

    def assign(
        self, targets: np.ndarray, classes: int, rng: np.random.Generator, clients: np.ndarray | None
    ) -> Assignment:
        check_enough(len(targets), self.clients, self.min_size)
        profiles = self.profiles(classes, rng)
        place = np.arange(self.clients)
        if self.size_mode == "zipf":
            weights = (place + 1.0) ** -self.rho
        else:
            weights = float(self.rho) ** (
                place if self.size_mode == "geometric" else 10 * place / max(self.clients - 1, 1)
            )
        return _deal(targets, proportional_sizes(weights, len(targets), self.min_size, exhaust=False), profiles, rng)


def _deal(targets: np.ndarray, sizes: np.ndarray, profiles: np.ndarray, rng: np.random.Generator) -> Assignment:
    """Give client i ``sizes[i]`` samples whose labels follow ``profiles[i]`` as closely as the supply allows."""
    clients, classes = profiles.shape
    pools = class_pools(targets, classes, rng)
    counts = _fit(sizes, profiles, np.array([len(pool) for pool in pools]))
    used = counts.sum(axis=0)
    rest = rng.permutation(np.concatenate([pool[taken:] for pool, taken in zip(pools, used, strict=True)]))
    missing = np.repeat(np.arange(clients), sizes - counts.sum(axis=1))
    indices = [pool[:taken] for pool, taken in zip(pools, used, strict=True)]
    owners = [np.repeat(np.arange(clients), column) for column in counts.T]
    return Assignment(np.concatenate([*indices, rest[: len(missing)]]), np.concatenate([*owners, missing]), clients)


def _fit(sizes: np.ndarray, profiles: np.ndarray, supply: np.ndarray) -> np.ndarray:
    """Whole counts (clients, classes) near ``sizes · profiles``: rows sum to at most ``sizes``, columns to ``supply``.

    Iterative proportional fitting (20 sweeps; columns are only scaled down), then largest-remainder rounding per row;
    where that asks for more of a class than there is, those that were rounded up by most lose it again.
    """
    share = sizes[:, None] * profiles
    for sweep in range(21):
        if sweep:
            share *= _ratio(sizes, share.sum(axis=1))[:, None]
        share *= np.minimum(_ratio(supply, share.sum(axis=0)), 1)
    whole = np.floor(share + 1e-9)
    remainder = share - whole
    place = np.argsort(np.argsort(-remainder, axis=1, kind="stable"), axis=1, kind="stable")
    raised = (place < (sizes - whole.sum(axis=1))[:, None]) & (share > 0)
    for label in np.flatnonzero((whole + raised).sum(axis=0) > supply):
        risers = np.flatnonzero(raised[:, label])
        excess = int(whole[:, label].sum() + len(risers) - supply[label])
        raised[risers[np.argsort(remainder[risers, label], kind="stable")[:excess]], label] = False
    return np.asarray(whole + raised, dtype=np.int64)


def _ratio(wanted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """wanted / actual, and 1 where there is nothing to scale."""
    return np.asarray(np.divide(wanted, actual, out=np.ones(len(actual)), where=actual > 0))


def _top_up(assignment: Assignment, minimum: int, rng: np.random.Generator) -> Assignment:
    """Move random samples from clients that can spare them to those with fewer than ``minimum``."""
    indices, owners, clients = assignment
    sizes = np.bincount(owners, minlength=clients)
    need = np.maximum(minimum - sizes, 0)
    if not need.any():
        return assignment
    spare = np.maximum(sizes - minimum, 0)
    cuts = np.cumsum(spare) * int(need.sum()) // int(spare.sum())  # exact, and never more than a client can spare
    give = np.diff(cuts, prepend=0)
    order = rng.permutation(len(owners))
    order = order[np.argsort(owners[order], kind="stable")]
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = rng.permutation(order[place < give[owners[order]]])
    owners = owners.copy()
    owners[moved] = np.repeat(np.arange(clients), need)
    return Assignment(indices, owners, clients)
