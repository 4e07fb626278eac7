"""Who is at a run: locks of the operating system, which end with their process, however that ends."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout


def lock_of(folder: Path) -> FileLock:
    """The lock of the run in ``folder``; it lies beside it, and whoever trains, attacks or audits the run holds it."""
    return FileLock(folder.with_name(f"{folder.name}.lock"))


def in_use(folder: Path) -> bool:
    """Whether a process is at the run in ``folder``."""
    if not folder.parent.is_dir():
        return False
    lock = lock_of(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
