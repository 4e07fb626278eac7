"""What all tests share: one thread per process, and the folder of local datasets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from privfl.engine import choice

os.environ.setdefault("MPLBACKEND", "Agg")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _short_runs_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine ``engine="auto"`` could measure one of two runs that a test compares bit by bit."""
    monkeypatch.setattr(choice, "SHORT_RUN_SECONDS", 60.0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder that PRIVFL_DATA names; tests that need its files are skipped where there is none."""
    name = os.environ.get("PRIVFL_DATA", "")
    if not name or not Path(name).is_dir():
        pytest.skip("PRIVFL_DATA names no folder with datasets, so what reads real files is not tested here.")
    return Path(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which blocks of the documentation were not run, and why; also when tests ran in other processes."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    notes = [text for report in reports for name, text in report.user_properties if name == "not run"]
    if notes:
        terminalreporter.section("blocks of the documentation that were not run")
        for note in sorted(notes):
            terminalreporter.line(str(note))
