"""The data room: datasets, ready-made and a user's own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privfl.data.catalog import datasets, fetch, info, load_dataset
    from privfl.data.dataset import Dataset

__all__ = ["Dataset", "datasets", "fetch", "info", "load_dataset"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that listing the catalog does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'dataset' if name == 'Dataset' else 'catalog'}"), name)
