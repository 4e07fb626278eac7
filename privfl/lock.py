"""A lock on a folder: one process at a time writes there, and another one is told who it is.

The lock itself is the operating system's, on the file ``run.lock``: it ends with its process, however that ends, so it
never has to be broken. Who holds it is written beside it, to ``holder.json``, which goes when the holder lets go; where
it is found by the next one, its holder died. It also tells the holder that the folder is still its own: a folder that
was removed, or removed and made anew by somebody else, does not hold the holder's token.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from privfl.errors import ConfigError, PrivflError
from privfl.files import cannot_write, make_folder, remove, write_whole

LOCK, HOLDER = "run.lock", "holder.json"
PATIENCE = 1.0
"""Seconds in which the holder may end, or write down who it is, before the other process is refused."""


@dataclass(frozen=True)
class Holder:
    """Who holds a folder.

    Args:
        pid: the process.
        host: the machine it runs on.
        since: when it took the folder, in ISO 8601 with the time zone.
        token: a random text, another one each time.
    """

    pid: int
    host: str
    since: str
    token: str

    @classmethod
    def this(cls) -> Self:
        """This process, now."""
        since = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
        return cls(os.getpid(), platform.node(), since, secrets.token_hex(16))

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Who wrote itself down in ``folder``; ``None`` if nobody did, or the file cannot be read."""
        try:
            told = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
            return cls(int(told["pid"]), str(told["host"]), str(told["since"]), str(told["token"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host or 'a nameless machine'}, since {self.since}"


class FolderLock:
    """The lock of ``folder``, which is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK, thread_local=False)
        self._holder: Holder | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder.

        Raises:
            ConfigError: another process holds it; the sentence names it.
            PrivflError: the disk refuses, or knows no locks.
        """
        self._take()
        try:
            yield
        finally:
            self._let_go()

    def clear(self) -> None:
        """Remove what a holder that died left behind; nothing happens where one is alive, or the disk refuses."""
        if self._holder is not None or not (self.folder / HOLDER).exists():
            return
        with suppress(OSError, Timeout, NotImplementedError), self._lock.acquire(timeout=0):
            remove(self.folder / HOLDER)

    def check(self) -> None:
        """See that the folder is still held.

        Raises:
            PrivflError: it was removed, or somebody else's now.
        """
        if self._holder is None:
            return
        now = Holder.of(self.folder)
        if now is not None and now.token == self._holder.token:
            return
        if now is not None:
            raise PrivflError(f"{self.folder} was taken over by {now}; this process writes nothing more there")
        what = "was removed" if not self.folder.is_dir() else f"lost its {HOLDER}"
        raise PrivflError(
            f"{self.folder} {what} while it was being written to, and nothing more is written there; start anew with "
            "another --out, and leave the folder alone while it is in use"
        )

    def _take(self) -> None:
        try:
            make_folder(self.folder)
            self._lock.acquire(timeout=PATIENCE, poll_interval=0.02)
        except Timeout as error:
            raise ConfigError(
                f"{self.folder} is in use by {self._named()}; wait for its end, stop it, or choose another folder"
            ) from error
        except NotImplementedError as error:
            raise PrivflError(
                f"the disk of {self.folder} has no file locks; choose a folder on another disk"
            ) from error
        except OSError as error:
            raise cannot_write(self.folder / LOCK, error) from error
        try:
            before, self._holder = Holder.of(self.folder), Holder.this()
            if before is not None:
                logging.getLogger(__name__).warning(
                    "%s was in use by %s, which died without letting go; this process takes over", self.folder, before
                )
            write_whole(self.folder / HOLDER, (json.dumps(asdict(self._holder)) + "\n").encode())
        except BaseException:
            self._let_go()
            raise

    def _named(self) -> str:
        holder, waited = Holder.of(self.folder), 0.0
        while holder is None and waited < PATIENCE:
            time.sleep(0.02)
            waited += 0.02
            holder = Holder.of(self.folder)
        return "another process, which has not said which it is" if holder is None else str(holder)

    def _let_go(self) -> None:
        own = Holder.of(self.folder)
        if own is not None and own == self._holder:
            with suppress(OSError):  # the next holder says that this one died, and no more
                remove(self.folder / HOLDER)
        self._holder = None
        with suppress(OSError):
            self._lock.release()
