"""Where a process of the suite was when it crashed or a test took too long, told at the end, where it is found.

pytest-xdist says that a process is down and which test it ran. Python says where each thread was, on that process's
stderr, which may be thousands of lines above the end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

LINES = 200
"""Of one process that are told."""
_FOLDER = "crashes"


class Crashes:
    """Collects what processes write when they crash; a plugin of pytest, in each of them and in the one that leads."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.folder = Path(self.worker[_FOLDER] if self.worker else tempfile.mkdtemp(prefix="privfl-crashes-"))
        if self.worker:
            with (self.folder / f"{self.worker['workerid']}.txt").open("wb") as file:
                # What pytest duplicated of stderr, for crashes and for tests that take too long, is this file from now.
                os.dup2(file.fileno(), config.stash[fault_handler_stderr_fd_key])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process that is about to start where to write to; the name of xdist's hook."""
        node.workerinput[_FOLDER] = str(self.folder)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where each thread was of every process that died."""
        for path in sorted(self.folder.glob("*.txt")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                terminalreporter.section(f"{path.stem} died")
                for line in lines[:LINES]:
                    terminalreporter.line(line)

    def pytest_unconfigure(self) -> None:
        """Remove the folder."""
        if self.worker is None:
            shutil.rmtree(self.folder, ignore_errors=True)
