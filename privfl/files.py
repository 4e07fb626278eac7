"""Files that hold the old or the new content whenever the machine stops, and JSON that carries its own digest.

A file is written beside its place, forced to disk and moved; then its folder is forced to disk too, so that a power cut
does not bring the old name back. Windows does not let a folder be forced to disk: its file system logs names itself.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from privfl.errors import ConfigError, DataError, PrivflError

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    TypeError,
    AttributeError,
    IndexError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What reading a damaged archive of NumPy's may raise, headers that are no Python, the recursion of JSON and unknown
compressions included."""
DIGEST = "digest"
"""The key under which a JSON file holds the SHA-256 of its name and all its other keys."""
MEND = "restore it, or repeat what wrote it"
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def write_whole(path: Path, content: bytes, *, mode: int = 0o644, folders: bool = True, durable: bool = True) -> None:
    """Write ``content`` so that ``path`` holds either the old or the new content, whenever the machine stops.

    Args:
        mode: permissions of a file that is not there yet.
        folders: make the folders that are missing.
        durable: wait for the disk; without, that holds when the process stops, and a machine without power may leave
            anything.

    Raises:
        PrivflError: the disk is full or refuses; the old content is intact.
    """
    beside = path.with_name(path.name + ".part")
    try:
        if folders:
            make_folder(path.parent)
        descriptor = _open_anew(beside, mode)
        try:
            _write_all(descriptor, content)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)
        if durable:
            sync_folder(path.parent)
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        with suppress(OSError, ValueError):  # whatever stopped the writing is what the user needs to know
            os.unlink(beside)
        raise cannot_write(path, error) from error


def append(path: Path, text: str, *, durable: bool = False) -> None:
    """Append ``text`` to ``path`` in one piece; ``durable`` waits for the disk.

    Raises:
        PrivflError: the disk is full or refuses.
    """
    new = durable and not path.exists()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _PLAIN, 0o644)
        try:
            _write_all(descriptor, text.encode())
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def erase(path: Path) -> None:
    """Overwrite ``path`` with zeros, force them to disk, and remove it; what is not there is left alone.

    The zeros replace the content in place. Disks and file systems that write elsewhere (solid-state disks, snapshots,
    journals of data, backups) may keep the old content out of reach of any program.

    Raises:
        DataError: it is a symbolic link, so that the zeros would meet another file.
        PrivflError: the disk refuses.
    """
    refuse_link(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | _PLAIN)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        try:
            _write_all(descriptor, bytes(os.fstat(descriptor).st_size))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        remove(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove(path: Path) -> None:
    """Remove the file ``path``, also from a disk that loses power next; what is not there is left alone.

    Raises:
        OSError: the disk refuses.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
        sync_folder(path.parent)


def refuse_link(path: Path) -> None:
    """Refuse a ``path`` that leads elsewhere.

    Raises:
        DataError: it is a symbolic link.
    """
    if path.is_symlink():
        raise DataError(
            f"{path} is a symbolic link, and what is written or erased there would be another file; remove the link, "
            "or choose another --out"
        )


def make_folder(path: Path) -> None:
    """Make the folder ``path`` and those above it, and force their names to disk.

    Raises:
        OSError: the disk refuses, or a file is in the way.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing or not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Force the names in the folder ``path`` to disk.

    Raises:
        OSError: the disk refuses.
    """
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any], *, folders: bool = True, indent: int | None = 2) -> None:
    """Write ``content`` with its digest, so that :func:`read_json` tells whether it was changed since.

    Args:
        indent: of what people read; ``None`` takes one line and a tenth of the time.

    Raises:
        PrivflError: the disk is full or refuses.
    """
    told = {**content, DIGEST: _digest(path.name, content)}
    write_whole(path, (json.dumps(told, indent=indent, allow_nan=False) + "\n").encode(), folders=folders)


def read_json(path: Path, mend: str = MEND) -> dict[str, Any]:
    """What :func:`write_json` wrote to ``path``, without the digest.

    Raises:
        DataError: the file is missing, damaged, or was changed since; the sentence ends with ``mend``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop(DIGEST, None) if isinstance(content, dict) else None
        found = _digest(path.name, content)
    except (OSError, ValueError, RecursionError) as error:
        told = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is damaged: {error}"
        raise DataError(f"{path} {told}; {mend}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: it holds no JSON object; {mend}")
    if digest is None:
        raise DataError(f"{path} is damaged, or of an earlier version of privfl: it holds no digest; {mend}")
    if digest != found:
        raise DataError(f"{path} is damaged or was changed since it was written; {mend}")
    return content


def read_lines(path: Path) -> list[Any]:
    """The complete JSON lines of ``path``; a last line that was cut short is left out.

    Raises:
        DataError: something is there that cannot be read.
    """
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; remove it, or choose another --out") from error
    lines = []
    for line in content.splitlines():
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return lines


def sha256(path: Path) -> str:
    """The SHA-256 of the file ``path`` as hexadecimal text.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {MEND}") from error


class CannotWrite(PrivflError):
    """A disk refuses a file; ``what`` says which and why, and the mend is that of a run that can be resumed.

    Callers that have no ``--resume`` say another one, by :func:`then`.

    Args:
        path: of the file.
        error: what the system said.
    """

    def __init__(self, path: Path, error: OSError | ValueError) -> None:
        self.full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None))
        self.what = f"cannot write {said_path(path)}: {_reason(error)}; what was saved before is intact"
        mend = "make room and resume with --resume"
        if not self.full:
            mend = "mend that and resume with --resume, or choose another --out"
        super().__init__(f"{self.what}, {mend}")


@contextmanager
def then(mend: str = "repeat the command") -> Iterator[None]:
    """Say ``mend`` after what is to be done about a disk that refuses, in place of ``--resume``.

    Raises:
        PrivflError: the disk refused.
    """
    try:
        yield
    except CannotWrite as error:
        raise PrivflError(f"{error.what}, {'make room' if error.full else 'mend that'} and {mend}") from error


def cannot_write(path: Path, error: OSError | ValueError) -> PrivflError:
    """The sentence for a disk that refuses ``path``."""
    return CannotWrite(path, error)


def usable_folder(path: Path | str) -> Path:
    """``path``, if a folder can be there.

    Raises:
        ConfigError: a file is in its place or on the way to it, the name is too long or holds a NUL, or the folder
            cannot be looked into.
    """
    folder = Path(path)
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        blocked = not stat.S_ISDIR(os.stat(there).st_mode)
        with suppress(FileNotFoundError, NotADirectoryError):  # it is yet to be made, or there is no place for it
            os.lstat(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the folder {said_path(folder)} cannot be used: {_reason(error)}; choose another one"
        ) from error
    if blocked:
        raise ConfigError(f"the folder {said_path(folder)} cannot be made: a file is in its way; choose another one")
    return folder


def said_path(path: Path) -> str:
    """``path`` as a sentence can hold it: on one line, and cut short in the middle where it is very long."""
    text = str(path) if str(path).isprintable() else repr(str(path))
    return text if len(text) <= 200 else f"{text[:90]}…{text[-90:]}"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _digest(name: str, content: Any) -> str:
    """Of ``content`` in a file called ``name``, so that two files that trade their places are noticed."""
    return hashlib.sha256(json.dumps([name, content], sort_keys=True, allow_nan=False).encode()).hexdigest()


def _open_anew(path: Path, mode: int) -> int:
    """A descriptor of a new file; one that an interruption left there, with whatever permissions, goes first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
