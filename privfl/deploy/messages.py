"""Messages between server and clients: arrays and JSON in one archive, signed by whoever sends them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.errors import PrivflError, brief
from privfl.privacy.secagg.errors import BadKey, BadSignature
from privfl.privacy.secagg.primitives import SigningKey, verify
from privfl.simulation.archive import UNREADABLE, Archive, encode_archive

PURPOSE = b"privfl federation, version 1\0"
"""Stands before all that is signed here, so that no signature serves another protocol (secure aggregation has its own
beginnings)."""
SIGNATURE_BYTES = 64


class BadMessage(PrivflError):
    """A message is damaged, or not from whom it says."""


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        meta: JSON; ``kind`` says what is wanted or answered.
        tensors: by name.
    """

    meta: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def sealed(self, key: SigningKey) -> bytes:
        """The message signed with ``key``; equal messages give equal bytes."""
        arrays: dict[str, NDArray[Any]] = {
            f"tensor/{name}": value.detach().cpu().numpy() for name, value in self.tensors.items()
        }
        content = encode_archive(dict(self.meta), arrays)
        return key.sign(PURPOSE + content) + content

    @property
    def kind(self) -> str:
        """What the message is."""
        return str(self.meta.get("kind"))


def opened(data: bytes, verify_key: bytes) -> Message:
    """The message in ``data``, which the owner of ``verify_key`` signed.

    Raises:
        BadMessage: it did not, or the bytes are no message.
    """
    signature, content = bytes(data[:SIGNATURE_BYTES]), bytes(data[SIGNATURE_BYTES:])
    try:
        verify(verify_key, signature, PURPOSE + content)
    except (BadSignature, BadKey) as error:
        raise BadMessage(f"a message of {len(data)} bytes is not signed by its sender's key; it is not used") from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if sum(part.file_size for part in file.infolist()) > len(content):  # nothing is ever compressed here
                raise ValueError("it claims to hold more than it does")
            archive = Archive(file)
            if not isinstance(archive.meta, dict):
                raise ValueError("its description is no table")
            return Message(archive.meta, {name.removeprefix("tensor/"): archive[name] for name in archive.names})
    except UNREADABLE as error:
        raise BadMessage(f"a signed message cannot be read ({brief(str(error), 100)}); it is not used") from error
    except Exception as error:  # another version's archive has an error of its own
        raise BadMessage(f"a signed message is of another version ({brief(str(error), 100)})") from error


def digest(data: bytes) -> str:
    """SHA-256 in 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor, to be sent beside others."""
    return torch.from_numpy(np.frombuffer(bytes(data), np.uint8).copy())


def as_bytes(tensor: Tensor) -> bytes:
    """What :func:`as_tensor` was given."""
    return tensor.numpy().tobytes()
