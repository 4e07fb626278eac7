"""What a finished run leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from privfl.privacy.accounting.statement import Statement
from privfl.run_directory import Metrics


@dataclass(frozen=True)
class Run:
    """What a finished run leaves: the model, its metrics round by round, and what may be claimed."""

    parameters: Tensor
    metrics: list[Metrics]
    statement: Statement
    summary: dict[str, Any]
    path: Path | None = None

    def report(self, path: Path | str) -> None:
        """Write the run as one self-contained HTML page."""
        from privfl.study.report import write_report  # the study room lies above: looked up only when asked

        write_report(self, Path(path))
