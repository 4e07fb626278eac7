"""What the catalog says about one dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from privfl.data.files import Layout
from privfl.errors import DataError


@dataclass(frozen=True)
class DatasetInfo:
    """One dataset of the catalog.

    Attributes:
        name: the name that ``load_dataset`` takes.
        title: its full name.
        task: what is predicted from what.
        inputs: row shape and dtype with default options.
        classes: number of classes with default options.
        rows: training and test rows with default options; ``None`` where they are as many as the user prepared.
        client_id: the natural client and how many there are, or None.
        licence: as its source states it.
        citation: whom to cite.
        notes: how the arrays differ from the published files.
        loader: ``module:function`` inside ``privfl.data``.
        layouts: the formats it can be read in, the preferred one first; none for data that needs no file.
        mean, std: public constants per channel that inputs are normalised by, after the division that ``notes`` name.
        counts: published counts that files without a published hash are checked against.
    """

    name: str
    title: str
    task: str
    inputs: str
    classes: int
    rows: tuple[int, int] | None
    client_id: str | None
    licence: str
    citation: str
    notes: str
    loader: str
    layouts: tuple[Layout, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def downloads(self) -> tuple[tuple[str, str | None], ...]:
        """The official addresses that ``fetch`` uses, each with its SHA-256 where one is published."""
        layout = next((layout for layout in self.layouts if layout.downloadable), None)
        return tuple((str(file.url), file.sha256) for file in layout.required) if layout else ()

    def check_counts(self, **found: int) -> None:
        """Compare counts with the published ones, for files whose hash nobody has published.

        Raises:
            DataError: they differ.
        """
        for what, published in self.counts.items():
            if found[what] != published:
                raise DataError(
                    f"{self.name}: {found[what]:,} {what} were read where {published:,} are published; the files are "
                    "not the published ones or incomplete, delete them and fetch them again."
                )
