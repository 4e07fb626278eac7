"""Arrays and JSON in one file: a NumPy archive, read without pickle, that tells damage from another version.

``meta`` holds the JSON with the format's number and, for each array, the SHA-256 of its part of the file; ``digest``
holds the SHA-256 of ``meta``. Every part is compared with its digest before anything in it is looked at. The digests
tell damage and edits, not forgeries: whoever can write the file can write digests that fit.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.errors import DataError
from privfl.files import UNREADABLE

FORMAT = 1
_ONE_AT_A_TIME = Lock()
"""NumPy reads what an array is by means of Python's syntax trees, of which Python 3.11 makes one at a time: of two
threads that do so at once, one may fail."""


def encode_archive(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """``meta`` and ``arrays`` as the content of a file; equal ones give equal bytes."""
    parts = {name: _member(array) for name, array in arrays.items()}
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    told = json.dumps({"format": FORMAT, "arrays": digests, "meta": meta}).encode()
    first = {"meta": told, "digest": hashlib.sha256(told).digest()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in first.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), _member(np.frombuffer(content, np.uint8)))
        for name, part in parts.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), part)
    return buffer.getvalue()


class Archive:
    """An archive that is open for reading: ``meta``, and the ``names`` of its arrays, which are read when asked for."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        told = _array(self._file.read("meta.npy")).tobytes()
        if "digest.npy" not in self._file.namelist():
            raise _OtherVersion("it holds no digest, as archives of earlier versions of privfl")
        if _array(self._file.read("digest.npy")).tobytes() != hashlib.sha256(told).digest():
            raise ValueError("its description was changed since it was written")
        described = json.loads(told)
        if described["format"] != FORMAT:
            raise _OtherVersion(f"it has format {described['format']}, and this version of privfl reads {FORMAT}")
        self.meta: dict[str, Any] = described["meta"]
        self._digests: dict[str, str] = described["arrays"]
        self.names = tuple(self._digests)

    def __getitem__(self, name: str) -> Tensor:
        """The array ``name`` as a tensor."""
        content = self._file.read(f"{name}.npy")
        if hashlib.sha256(content).hexdigest() != self._digests[name]:
            raise ValueError(f"its part '{name}' was changed since it was written")
        return torch.from_numpy(_array(content))


class _OtherVersion(Exception):
    """An archive in a format that this version does not read."""


@contextmanager
def open_archive(path: Path, mend: str) -> Iterator[Archive]:
    """The archive in the file ``path``.

    Raises:
        DataError: it is damaged, was changed, or is of another version; also where its arrays are read inside. The
            sentence ends with ``mend``.
    """
    try:
        with zipfile.ZipFile(path) as file:
            yield Archive(file)
    except _OtherVersion as error:
        raise DataError(f"cannot read {path}: {error}; {mend}") from error
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        told = f"its part {error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DataError(f"cannot read {path}, which is damaged or was changed: {told}; {mend}") from error


def _member(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def _array(content: bytes) -> NDArray[Any]:
    with _ONE_AT_A_TIME:
        return np.asarray(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))
