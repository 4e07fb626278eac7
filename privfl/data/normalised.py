"""Which names stand for data that the catalog normalises by public constants."""

from __future__ import annotations

from privfl.data.entries import ENTRIES
from privfl.data.further_entries import FURTHER_ENTRIES

NORMALISED = frozenset(entry.name for entry in (*ENTRIES, *FURTHER_ENTRIES) if entry.mean)
"""Datasets of images and signals; data of one's own by one of these names would be read by constants of others."""
