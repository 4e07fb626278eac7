"""The data room's front desk: which datasets there are, and loading one by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privfl.data.entries import ENTRIES
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located, locate
from privfl.data.further_entries import FURTHER_ENTRIES
from privfl.errors import unknown
from privfl.validation import checked

if TYPE_CHECKING:
    from privfl.data.dataset import Dataset

_ALL = (*ENTRIES, *FURTHER_ENTRIES)
_ALIASES = {"mqp": "medical-questions"}


def datasets() -> tuple[DatasetInfo, ...]:
    """All datasets of the catalog."""
    return _ALL


def info(name: str) -> DatasetInfo:
    """The catalog entry of a dataset.

    Raises:
        ConfigError: no dataset has this name.
    """
    wanted = _ALIASES.get(name, name)
    for entry in _ALL:
        if entry.name == wanted:
            return entry
    raise unknown("dataset", name, [entry.name for entry in _ALL])


def options(name: str) -> dict[str, Any]:
    """The options of ``load_dataset`` for this dataset, with their defaults."""
    parameters = inspect.signature(_loader(info(name))).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"}


@checked
def load_dataset(name: str = "digits", *, seed: int = 0, **chosen: Any) -> Dataset:
    """Load a dataset of the catalog.

    Its files are taken from the folder named by PRIVFL_DATA where that is set and holds them, else from the cache,
    else downloaded there from the official address; what is read is checked against published hashes or counts.

    Args:
        name: see ``datasets()``.
        seed: root seed of the hold-out, where the dataset has no published test part.
        **chosen: the dataset's own options, see ``options(name)`` and its loader.

    Raises:
        ConfigError: unknown dataset or option, or an impossible value.
        DataError: files that are absent, incomplete, altered, or not what they should be.
    """
    entry = info(name)
    valid = options(name)
    for key in chosen:
        if key not in valid:
            raise unknown(f"option of {entry.name}", key, valid or ["(none)"])
    dataset = _loader(entry)(entry, _locate(entry), seed=seed, **chosen)
    object.__setattr__(dataset, "published", True)  # a copy would have all its values checked once more
    return dataset


def fetch(name: str) -> list[Path]:
    """Make sure that a dataset's files are here, downloading what is not; a broken download is resumed.

    Files without a published hash are read once, which checks their counts and shapes.

    Returns:
        The files, verified; none for a dataset that needs no file.

    Raises:
        ConfigError: unknown dataset.
        DataError: a file cannot be had, or is not what it should be.
    """
    entry = info(name)
    located = _locate(entry)
    if located is None:
        return []
    if any(file.sha256 is None for file in located.layout.required):
        load_dataset(entry.name)
    return list(located.paths.values())


def _locate(entry: DatasetInfo) -> Located | None:
    return locate(entry.name, entry.layouts) if entry.layouts else None


def _loader(entry: DatasetInfo) -> Callable[..., Dataset]:
    module, function = entry.loader.split(":")
    loader: Callable[..., Dataset] = getattr(import_module(f"privfl.data.{module}"), function)
    return loader
