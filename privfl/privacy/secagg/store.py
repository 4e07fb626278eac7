"""What a client must remember beyond one session: its signing key, the sessions it served, the sums it opened.

A client that forgets which sessions it has served signs a second list of survivors, or masks a second vector, for
whoever replays the session to it. So it writes down that it serves a session before it sends anything, and a client
that is made again for the same session is refused.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Collection
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from privfl.errors import DataError, PrivflError
from privfl.privacy.secagg.errors import SpentClient
from privfl.privacy.secagg.primitives import KEY_BYTES, verification_key

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRIVATE = 0o600


class Store(Protocol):
    """Where one client keeps what must outlive a session; each client has its own."""

    def serve(self, identity: bytes) -> None:
        """Note that the session is served from now on.

        Raises:
            SpentClient: it was served before.
        """

    def opened(self) -> Collection[frozenset[int]]:
        """The survivors of the sums that this client has helped to open."""

    def open(self, identity: bytes, survivors: Collection[int]) -> None:
        """Note that this client is about to help open the sum over ``survivors``."""


class MemoryStore:
    """A store that goes with the process: for simulations and tests. A client that can be restarted needs a file."""

    def __init__(self) -> None:
        self._served: set[bytes] = set()
        self._opened: dict[bytes, frozenset[int]] = {}

    def serve(self, identity: bytes) -> None:
        """See :meth:`Store.serve`."""
        if identity in self._served:
            raise _served_before(identity)
        self._served.add(identity)

    def opened(self) -> Collection[frozenset[int]]:
        """See :meth:`Store.opened`."""
        return self._opened.values()

    def open(self, identity: bytes, survivors: Collection[int]) -> None:
        """See :meth:`Store.open`."""
        self._opened[identity] = frozenset(survivors)


class FolderStore:
    """A store in a folder of its own, which only its owner can read; safe against a crash at any moment.

    ``signing_key`` holds the key, ``served/NAME`` is there once a session is served and ``opened/NAME`` once its sum is
    opened (its survivors, 4 bytes each); a file is made with its content on the disk, or not at all.

    Args:
        folder: made (with mode 700) if it is not there.

    Raises:
        PrivflError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _told(folder):
            for one in (folder, folder / "served", folder / "opened", folder / "drafts"):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)

    def signing_key(self) -> bytes:
        """The client's Ed25519 signing key, drawn and written on the first call.

        Raises:
            DataError: the file holds no key.
            PrivflError: it cannot be read or written.
        """
        path = self._folder / "signing_key"
        with _told(path):
            with suppress(FileExistsError):
                self._create(path, secrets.token_bytes(KEY_BYTES))
            key = path.read_bytes()
        if len(key) != KEY_BYTES:
            raise DataError(f"{path} has {len(key)} bytes, but a signing key has {KEY_BYTES}; put the right file back.")
        if not any(key):  # a file system may leave zeros after a power cut, and everybody could sign by them
            raise DataError(f"{path} holds zeros, which are no signing key; put the right file back.")
        return key

    def verification_key(self) -> bytes:
        """The public half of :meth:`signing_key`, which the other members need."""
        return verification_key(self.signing_key())

    def serve(self, identity: bytes) -> None:
        """See :meth:`Store.serve`."""
        path = self._folder / "served" / identity.hex()
        with _told(path):
            try:
                self._create(path, b"")
            except FileExistsError as error:
                raise _served_before(identity) from error

    def opened(self) -> Collection[frozenset[int]]:
        """See :meth:`Store.opened`."""
        with _told(self._folder):
            contents = [path.read_bytes() for path in sorted((self._folder / "opened").iterdir())]
        return [frozenset(struct.unpack(f"<{len(one) // 4}I", one)) for one in contents]

    def open(self, identity: bytes, survivors: Collection[int]) -> None:
        """See :meth:`Store.open`."""
        path = self._folder / "opened" / identity.hex()
        with _told(path):
            self._create(path, struct.pack(f"<{len(survivors)}I", *sorted(survivors)))

    def _create(self, path: Path, content: bytes) -> None:
        """Make a file that is not there yet: whole and on the disk, or not at all.

        Raises:
            FileExistsError: it is there; of several processes that make it at once, all but one meet this.
        """
        draft = self._folder / "drafts" / secrets.token_hex(16)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if content:  # of an empty file the name is all there is
                    os.fsync(file.fileno())
            os.link(draft, path)  # unlike a renaming, this fails if the name is taken
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the file system as one sentence."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise PrivflError(
            f"a client's store cannot be used: {path}: {error.strerror}; mend that, or choose another."
        ) from error


def _served_before(identity: bytes) -> SpentClient:
    return SpentClient(f"session {identity.hex()[:16]} was served before; start one with a new identity.")
