"""Downloading one file over HTTP so that a broken connection, or a killed process, costs nothing but time."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from privfl.errors import DataError


class Progress(Protocol):
    """What a progress bar must offer: the part of tqdm's interface that pooch uses."""

    total: float | None

    def update(self, n: int) -> object: ...
    def reset(self) -> object: ...
    def close(self) -> object: ...


class RichProgress:
    """A rich progress bar on standard error behind tqdm's interface; silent where there is no terminal."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Bar(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(title, total=None)

    @property
    def total(self) -> float | None:
        return self._bar.tasks[0].total

    @total.setter
    def total(self, value: float | None) -> None:
        self._bar.update(self._task, total=value)

    def update(self, n: int) -> None:
        self._bar.update(self._task, advance=n)

    def reset(self) -> None:
        self._bar.update(self._task, completed=0)

    def close(self) -> None:
        if not self._bar.disable:  # rich before 14.3 ends a disabled bar with an empty line
            self._bar.stop()

    def __enter__(self) -> RichProgress:
        if not self._bar.disable:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ResumableDownloader:
    """A downloader for pooch that keeps what it has in ``part`` and asks the server only for the rest.

    After a cut it goes on with an HTTP range request; a server that ignores ranges is read from the start. The
    attempts count anew whenever bytes have arrived. Bytes are stored as the server stores them (no transparent
    decompression), so the hash of the finished file is the published one.

    Args:
        part: where the unfinished file is kept, also over a restart of the program.
        progress: a tqdm-like progress bar.
        attempts: tries in a row that may bring nothing before giving up.
        wait: seconds before the second of these tries; doubled before each further one.
        timeout: seconds without a byte after which a connection counts as broken.
    """

    def __init__(
        self,
        part: Path,
        progress: Progress | None = None,
        *,
        attempts: int = 3,
        wait: float = 1.0,
        timeout: float = 30.0,
    ) -> None:
        self.part, self.progress = part, progress
        self.attempts, self.wait, self.timeout = attempts, wait, timeout

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> bool | None:
        """Download ``url`` into ``output_file``; pooch's downloader interface.

        Raises:
            DataError: the server cannot be reached, refuses, or keeps breaking off.
        """
        import requests
        from urllib3.exceptions import HTTPError

        if check_only:
            return requests.head(url, timeout=self.timeout, allow_redirects=True).ok
        failures = 0
        while True:
            before = self._have()
            try:
                self._read(url, before)
                break
            except (requests.ConnectionError, requests.Timeout, HTTPError, TimeoutError, ConnectionError) as error:
                failures = 0 if self._have() > before else failures + 1
                if failures >= self.attempts:
                    kept = f"; {self._have():,} bytes are kept, the next try goes on from there" if self._have() else ""
                    raise DataError(f"{url} could not be downloaded ({_reason(error)}){kept}.") from error
                if failures:
                    time.sleep(self.wait * 2 ** (failures - 1))
            except requests.RequestException as error:
                raise DataError(f"{url} could not be downloaded ({_reason(error)}).") from error
        shutil.move(self.part, output_file)
        return None

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _read(self, url: str, start: int) -> None:
        """One connection: append what the server sends to the part file, until its end."""
        import requests

        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            sent_range = response.headers.get("Content-Range", "")
            if response.status_code == 416:
                if sent_range == f"bytes */{start}":
                    return
                self.part.unlink(missing_ok=True)
                raise ConnectionError(f"the server has no bytes from {start}")
            response.raise_for_status()
            resumed = response.status_code == 206
            if resumed and not sent_range.startswith(f"bytes {start}-"):
                self.part.unlink(missing_ok=True)
                raise ConnectionError(f"the server was asked for the bytes from {start} and sent {sent_range}")
            if not resumed:
                start = 0
            length = response.headers.get("Content-Length")
            if self.progress is not None:
                self.progress.reset()
                self.progress.total = start + int(length) if length else None
                self.progress.update(start)
            received = 0
            with open(self.part, "ab" if resumed else "wb") as file:
                for chunk in response.raw.stream(1 << 16, decode_content=False):
                    file.write(chunk)
                    received += len(chunk)
                    if self.progress is not None:
                        self.progress.update(len(chunk))
                file.flush()
                os.fsync(file.fileno())
            if length and received < int(length):
                raise ConnectionError(f"the connection ended after {received:,} of {int(length):,} bytes")


def _reason(error: BaseException) -> str:
    """The innermost cause, in its own words and without addresses of objects."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    text = str(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
