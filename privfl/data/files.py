"""Where the files of a dataset are: the PRIVFL_DATA folder, the cache, or the official address; all checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privfl.errors import DataError


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        path: place inside a data folder, with forward slashes.
        size: bytes, where known.
        sha256: published hash, or None where none is known; then the contents are checked by counts and shapes.
        url: official address, or None where it cannot be downloaded.
        optional: the dataset can be read without it.
    """

    path: str
    size: int | None = None
    sha256: str | None = None
    url: str | None = None
    optional: bool = False

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Layout:
    """One format in which a dataset exists: its key, and the files that make it up."""

    format: str
    files: tuple[DataFile, ...]

    @property
    def required(self) -> tuple[DataFile, ...]:
        return tuple(file for file in self.files if not file.optional)

    @property
    def downloadable(self) -> bool:
        return all(file.url is not None for file in self.required)


@dataclass(frozen=True)
class Located:
    """A dataset's files as found: the layout, and the path of each file by file name."""

    layout: Layout
    paths: Mapping[str, Path]

    @property
    def format(self) -> str:
        return self.layout.format


def data_folder() -> Path | None:
    """The folder named by the environment variable PRIVFL_DATA, or None where it is not set.

    Raises:
        DataError: it names something that is not a folder.
    """
    value = os.environ.get("PRIVFL_DATA")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise DataError(f"PRIVFL_DATA names {folder}, which is not a folder; correct the variable or unset it.")
    return folder


def cache_folder() -> Path:
    """Where downloads are kept: pooch's cache folder of this user for privfl."""
    import pooch

    return Path(pooch.os_cache("privfl"))


def locate(name: str, layouts: Sequence[Layout]) -> Located:
    """The files of dataset ``name``, verified: from PRIVFL_DATA, else the cache, else downloaded into the cache.

    Raises:
        DataError: a file is incomplete or not the published one, or cannot be had.
    """
    folder = data_folder()
    if folder is not None:
        found = _complete(folder, layouts)
        if found is not None:
            for file in found.layout.files:
                if file.name in found.paths:
                    verify(name, found.paths[file.name], file, f"replace it{_source(file)}")
            return found
        _refuse_partial(name, folder, layouts)
    downloadable = [layout for layout in layouts if layout.downloadable]
    cache = cache_folder()
    cached = _complete(cache, layouts)
    if cached is not None and cached.layout not in downloadable:
        for file in cached.layout.required:
            verify(name, cached.paths[file.name], file, f"replace it{_source(file)}")
        return cached
    if not downloadable:
        wanted = " or ".join(" with ".join(file.path for file in layout.required) for layout in layouts)
        raise DataError(f"{name} has no download; set PRIVFL_DATA to a folder that holds {wanted}")
    layout = cached.layout if cached is not None else downloadable[0]
    return Located(layout, {file.name: _fetch(name, cache, file) for file in layout.required})


def verify(name: str, path: Path, file: DataFile, mend: str) -> None:
    """Compare size and SHA-256 of ``path`` with what is published; each state of a file is hashed once.

    Raises:
        DataError: they differ.
    """
    if path.is_dir():
        return
    state = path.stat()
    if file.size is not None and state.st_size != file.size:
        fault = "is cut short" if state.st_size < file.size else "is too long"
        raise DataError(f"{name}: {path} {fault}, {state.st_size:,} bytes where {file.size:,} are published; {mend}.")
    if file.sha256 is None:
        return
    key = (str(path), state.st_size, state.st_mtime_ns)
    if key not in _hashes:
        with open(path, "rb") as stream:
            _hashes[key] = hashlib.file_digest(stream, "sha256").hexdigest()
    if _hashes[key] != file.sha256:
        raise DataError(f"{name}: {path} has sha256 {_hashes[key]} where {file.sha256} is published; {mend}.")


_hashes: dict[tuple[str, int, int], str] = {}


def _source(file: DataFile) -> str:
    return f" by a fresh copy from {file.url}" if file.url else " by a fresh copy from where you got it"


def _complete(folder: Path, layouts: Sequence[Layout]) -> Located | None:
    """The first layout whose required files are all in ``folder``."""
    for layout in layouts:
        paths = {file.name: folder / file.path for file in layout.files if (folder / file.path).exists()}
        if all(file.name in paths for file in layout.required):
            return Located(layout, paths)
    return None


def _refuse_partial(name: str, folder: Path, layouts: Sequence[Layout]) -> None:
    for layout in layouts:
        missing = [file for file in layout.required if not (folder / file.path).exists()]
        if len(missing) < len(layout.required):
            sources = "".join(f" from {file.url}" for file in missing[:1] if file.url)
            raise DataError(
                f"{name}: {folder} holds some of its files but not {', '.join(file.path for file in missing)}; "
                f"put it there{sources}, or remove the others to have the dataset downloaded."
            )


def _is_published(name: str, path: Path, file: DataFile) -> bool:
    try:
        verify(name, path, file, "")
    except (DataError, FileNotFoundError):
        return False
    return True


def _fetch(name: str, cache: Path, file: DataFile) -> Path:
    """``file`` in the cache, downloaded or resumed where it is absent or not the published one."""
    import logging

    import pooch
    from filelock import FileLock

    from privfl.data.download import ResumableDownloader, RichProgress

    assert file.url is not None
    path = cache / file.path
    if _is_published(name, path, file):
        return path
    part = path.with_name(path.name + ".part")
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{part}.lock"):
            if _is_published(name, path, file):  # another process was faster
                return path
            with RichProgress(file.name) as progress:
                known = None if file.sha256 is None else f"sha256:{file.sha256}"
                downloader = ResumableDownloader(part, progress)
                pooch.retrieve(file.url, known, fname=path.name, path=path.parent, downloader=downloader)
    except DataError as error:
        raise DataError(
            f"{name} needs {file.path}, and {str(error).rstrip('.')}; connect to the network and try again, "
            "or set PRIVFL_DATA to a folder that holds the file."
        ) from error
    except ValueError as error:
        raise DataError(
            f"{name}: what {file.url} sent is not the published file ({error}); try again later."
        ) from error
    except OSError as error:
        raise DataError(
            f"{name}: {path} could not be written ({error}); mend the cache folder or set PRIVFL_DATA."
        ) from error
    return path
