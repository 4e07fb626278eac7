"""The key of a run's privacy noise on disk: there from before the first message until the run has ended.

noise.key        the key as hexadecimal text, readable by its owner only
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privfl.errors import ConfigError, DataError
from privfl.files import erase, refuse_link, write_whole
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource

NAME = "noise.key"


class KeyFile:
    """The key of the run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NAME
        self._beside = folder / f"{NAME}.part"
        self.waiting: NoiseSource | None = None
        """The source whose key is going to be the run's; on disk there is none, or that of before."""

    @property
    def there(self) -> bool:
        """Whether a key, or what an interruption left of one, is on disk."""
        return any(path.is_symlink() or path.exists() for path in (self.path, self._beside))

    def store(self, source: NoiseSource) -> None:
        """Keep the key of ``source``.

        Raises:
            DataError: a symbolic link is in its place.
            PrivflError: the disk is full or refuses.
        """
        refuse_link(self.path)
        write_whole(self.path, source.key.hex().encode(), mode=0o600, folders=False)

    def erase(self) -> None:
        """Forget the key: from now on nobody can repeat the noise.

        Raises:
            DataError: a symbolic link is in its place.
            PrivflError: the disk refuses.
        """
        for path in (self._beside, self.path):
            erase(path)

    def source_of(self, record: Mapping[str, Any] | None, source: NoiseSource) -> NoiseSource:
        """The source of the run that goes on, which is the one that it began with.

        Args:
            record: what ``fingerprint.json`` says of the key; ``None`` if it is missing.
            source: the fixed key, or one that was drawn just now.

        Raises:
            ConfigError: the key is gone, or another one.
            DataError: it cannot be read.
        """
        began = None if record is None else record["key"]
        if began is not None and began["fixed"] != source.reproducible:
            kinds = "a fixed noise_key" if began["fixed"] else "a key from the operating system"
            raise ConfigError(
                f"{self.folder} holds a run that began with {kinds}; set privacy.noise_key as it was, or choose "
                "another --out"
            )
        if not source.reproducible:
            source = NoiseSource(self._stored(), reproducible=False)
        if began is not None and began["check"] != source.check:
            what = "privacy.noise_key" if source.reproducible else str(self.path)
            raise ConfigError(f"{what} is not the key that the run began with; restore it, or choose another --out")
        return source

    def _stored(self) -> bytes:
        refuse_link(self.path)
        if self.waiting is not None:
            return self.waiting.key
        try:
            key = bytes.fromhex(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.path} is gone, and what was sent since the checkpoint cannot be repeated under the same "
                "noise without it; restore it, or start anew with another --out"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {self.path} ({error}); restore it, or choose another --out") from error
        if len(key) != KEY_BYTES:
            raise DataError(
                f"{self.path} holds {len(key)} bytes where a key has {KEY_BYTES}; restore it, or choose another --out"
            )
        return key
