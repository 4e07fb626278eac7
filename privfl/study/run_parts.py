"""What the page of a run and the page of a study both tell of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privfl.errors import DataError
from privfl.study.clients import in_words, read_clients
from privfl.study.page import picture, save
from privfl.study.plots import clients_chart
from privfl.study.record import DAMAGED

CLIENTS = "Who holds what."


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file below ``path`` raises into one sentence."""
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, DataError):
            raise
        what = f"{error!s} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} cannot be reported: {what}; repeat the run, or restore the file") from error


def clients_section(folder: Path, figures: Path, note: str) -> dict[str, Any] | None:
    """The run's clients in words and as a picture, if they were recorded."""
    report = read_clients(folder)
    if report is None:
        return None
    chart = clients_chart(report)
    save(chart, figures / "clients.png")
    return {"sentence": f"{in_words(report)}{note}", "figures": [picture("clients", chart, CLIENTS)]}


def problems(summary: Mapping[str, Any]) -> list[str]:
    """Why the run failed, if it did, and its warnings."""
    failure = summary.get("failure")
    return [*([f"The run failed: {failure}."] if failure else []), *summary["warnings"]]
