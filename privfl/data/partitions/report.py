"""What came out of a partition: sizes, label skew, distances, and a picture of clients against classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.special import entr

from privfl.data.partitions.base import check_targets
from privfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTED = 1000
"""Up to this many clients, a summary lists every client's value and a figure shows every client."""

QUANTILES = {"min": 0.0, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """The facts of one partition; every array has one entry (or row) per client.

    ``held`` is int64 (clients, classes), sparse: how many samples of a class a client has. ``label_entropy`` is in
    nats, from 0 (one class) to ln(classes). ``distance_to_pool`` is the total-variation distance, in [0, 1], of a
    client's label law to that of all clients' data together, ``distance_to_profile`` that to the law the client aimed
    at (``None`` where the rule has no such aim). ``available`` counts the samples of the dataset, ``distinct`` those
    that some client holds, ``shared`` those that more than one client holds.
    """

    held: sparse.csr_array
    label_entropy: np.ndarray
    distance_to_pool: np.ndarray
    distance_to_profile: np.ndarray | None
    available: int
    distinct: int
    shared: int

    @property
    def counts(self) -> np.ndarray:
        """The samples of each client and class, int64 (clients, classes), zeros included, which may be gigabytes."""
        return np.asarray(self.held.toarray())

    @property
    def sizes(self) -> np.ndarray:
        """The number of samples of each client, int64."""
        return np.asarray(self.held.sum(axis=1))

    def summary(self) -> dict[str, Any]:
        """Plain numbers for a log (JSON-able): mean and quantiles, and each client's value for up to 1000 clients."""
        sizes = self.sizes
        facts: dict[str, Any] = {
            "clients": len(sizes),
            "classes": self.held.shape[1],
            "samples_available": self.available,
            "samples_used": self.distinct,
            "samples_shared": self.shared,
            "size_ratio": float(sizes.max() / sizes.min()),
            "sizes": _spread(sizes),
            "label_entropy_nats": _spread(self.label_entropy),
            "distance_to_pool": _spread(self.distance_to_pool),
        }
        if self.distance_to_profile is not None:
            facts["distance_to_profile"] = _spread(self.distance_to_profile)
        return facts

    def figure(self, class_names: Sequence[str] | None = None, title: str | None = None) -> Figure:
        """A heat map of each client's class shares (rows are clients) with the client sizes as bars beside it.

        Colours follow the square root of the share, so that small ones can be told from none. Above 1000 clients, every
        n-th one is shown, and the picture says so. The figure belongs to no window system: save it with
        ``figure.savefig(path)``. Raises :class:`ConfigError` if ``class_names`` does not name every class.
        """
        from matplotlib.colors import PowerNorm  # here, because most runs draw nothing and matplotlib starts slowly
        from matplotlib.figure import Figure

        clients, classes = self.held.shape
        if class_names is not None and len(class_names) != classes:
            raise ConfigError(f"class_names has {len(class_names)} entries for {classes} classes; name every class")
        stride = -(-clients // LISTED)
        shown = np.arange(0, clients, stride)
        counts = self.held[shown].toarray()
        sizes = counts.sum(axis=1)

        height = float(np.clip(1.6 + 0.16 * len(shown), 3.0, 8.0))
        width = float(np.clip(3.6 + 0.32 * classes, 5.5, 11.0))
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=(width - 2.2, 1.3))
        image = heat.imshow(
            counts / sizes[:, None], aspect="auto", interpolation="nearest", cmap="Blues", norm=PowerNorm(0.5, 0, 1)
        )
        step = max(1, -(-classes // 25))
        ticks = np.arange(0, classes, step)
        names = [str(label) for label in ticks] if class_names is None else [class_names[label] for label in ticks]
        crowded = max(map(len, names)) > 3
        turned = {"rotation": 45, "ha": "right"} if crowded else {"rotation": 0, "ha": "center"}
        heat.set_xticks(ticks, names, parse_math=False, **turned)  # whoever brings the data names classes and the rest
        rows = np.arange(0, len(shown), next(step for step in (1, 2, 5, 10, 20, 50, 100) if len(shown) <= 12 * step))
        heat.set_yticks(rows, [str(client) for client in shown[rows]])
        heat.set(xlabel="class", ylabel="client")
        if len(shown) <= 60:
            heat.set_yticks(np.arange(1, len(shown)) - 0.5, minor=True)
            heat.set_xticks(np.arange(1, classes) - 0.5, minor=True)
            heat.grid(which="minor", color="white", linewidth=0.6)
            heat.tick_params(which="minor", length=0)
        bars.barh(np.arange(len(shown)), sizes, height=0.8 if len(shown) <= 60 else 1.0, color="#4c5a6b", linewidth=0)
        bars.set(xlabel="samples", xlim=(0, sizes.max() * 1.05))
        bars.tick_params(axis="y", which="both", left=False, labelleft=False)
        bars.spines[["top", "right"]].set_visible(False)
        bars.locator_params(axis="x", nbins=3)
        figure.colorbar(image, ax=bars, label="share of the client's samples", fraction=0.12, aspect=30)
        note = f" (one in {stride} of {clients} clients)" if stride > 1 else ""
        if title or note:
            figure.suptitle(f"{title or ''}{note}".strip(), fontsize=11, parse_math=False)
        return figure


def describe(
    parts: Sequence[np.ndarray], targets: np.ndarray, classes: int, profiles: np.ndarray | None = None
) -> PartitionReport:
    """The report on ``parts``, the index arrays that :meth:`Partition.split` returned for ``targets``.

    ``profiles`` is what :meth:`Partition.profiles` returns for a generator in the state that the split was given.
    Raises :class:`DataError` if ``targets`` are malformed, if ``parts`` has no client, an empty client or an index
    outside the dataset, or if ``profiles`` does not have shape (clients, classes).
    """
    targets = check_targets(targets, classes)
    sizes = np.array([len(part) for part in parts])
    if not len(sizes) or not sizes.all():
        raise DataError(f"{int((sizes == 0).sum())} of {len(sizes)} clients have no sample: drop them.")
    clients, samples = len(sizes), len(targets)
    flat = np.concatenate(parts)
    if flat.min() < 0 or flat.max() >= samples:
        raise DataError(f"parts index samples {flat.min()} to {flat.max()}: the dataset has 0 to {samples - 1}.")
    owners = np.repeat(np.arange(clients), sizes)
    ones, places = np.ones(len(flat), dtype=np.int64), (owners, targets[flat])
    held = sparse.csr_array((ones, places), shape=(clients, classes))
    held.sum_duplicates()
    if profiles is not None and profiles.shape != held.shape:
        raise DataError(f"profiles have shape {profiles.shape}; give one row for each client, shape {held.shape}")
    rows, labels = held.nonzero()
    shares = held.data / sizes[rows]
    pool = np.asarray(held.sum(axis=0)) / len(flat)

    def apart(reference: np.ndarray) -> np.ndarray:
        """Total variation from ``reference`` [pairs]; what either lacks of a whole is not in common."""
        return np.clip(1 - np.bincount(rows, np.minimum(shares, reference), minlength=clients), 0.0, 1.0)

    holders = np.bincount(flat, minlength=samples)
    return PartitionReport(
        held=held,
        label_entropy=np.bincount(rows, entr(shares), minlength=clients),
        distance_to_pool=apart(pool[labels]),
        distance_to_profile=None if profiles is None else apart(profiles[rows, labels]),
        available=samples,
        distinct=int((holders > 0).sum()),
        shared=int((holders > 1).sum()),
    )


def _spread(values: np.ndarray) -> dict[str, Any]:
    facts: dict[str, Any] = {"mean": float(values.mean())}
    facts |= dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))
    if len(values) <= LISTED:
        facts["values"] = values.tolist()
    return facts
