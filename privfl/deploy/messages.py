"""Messages between server and clients: JSON and tensors, signed by whoever sends them.

Layout: signature (64 bytes), length of the description (4, little-endian), description, and the tensors' bytes one
after another. The description is JSON: ``meta``, and of every tensor its name, dtype, shape and SHA-256. Only purpose
and description are signed, which binds the rest: what a server sends to everybody is hashed once, and not for each.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.errors import PrivflError, brief
from privfl.privacy.secagg.errors import BadKey, BadSignature
from privfl.privacy.secagg.primitives import SigningKey, verify

PURPOSE = b"privfl federation, version 2\0"
"""Stands before all that is signed here, so that no signature serves another protocol (secure aggregation has its own
beginnings)."""
SIGNATURE_BYTES = 64
DTYPES = {
    str(one).removeprefix("torch."): one
    for one in (torch.float16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool)
}
"""What a tensor in a message may be."""
LONGEST_DESCRIPTION = 1 << 20
"""Bytes that a description may take: read as JSON, empty lists and tables take up 21 and 24 times as many."""
_LENGTH = struct.Struct("<I")
_START = SIGNATURE_BYTES + _LENGTH.size


class BadMessage(PrivflError):
    """A message is damaged, or not from whom it says."""


class Unsigned(BadMessage):
    """A message is not from whom it says, or not for whoever received it."""


class Parts:
    """Tensors as they travel, each made once however many messages it is in."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, list[Any], bytes]] = {}

    def of(self, tensor: Tensor) -> tuple[list[Any], bytes]:
        """Dtype, shape and SHA-256 of ``tensor``, and its bytes.

        Raises:
            BadMessage: its dtype is none of :data:`DTYPES`.
        """
        known = self._known.get(id(tensor))
        if known is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise BadMessage(f"a tensor of {dtype} cannot be sent; send one of {', '.join(DTYPES)}")
            content = tensor.detach().cpu().numpy().tobytes()
            about = [dtype, list(tensor.shape), _sha256(content)]
            known = self._known[id(tensor)] = tensor, about, content  # the tensor too, so that no other gets its id
        return known[1:]


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        meta: JSON; ``kind`` says what is wanted or answered.
        tensors: by name, of a dtype in :data:`DTYPES`.
    """

    meta: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def sealed(self, key: SigningKey, parts: Parts | None = None) -> bytes:
        """The message signed with ``key``; equal messages give equal bytes. ``parts`` serve several messages.

        Raises:
            BadMessage: a tensor's dtype is none of :data:`DTYPES`, or the description is too long.
        """
        made = parts or Parts()
        sent = {name: made.of(tensor) for name, tensor in self.tensors.items()}
        told = {"meta": dict(self.meta), "tensors": [[name, *about] for name, (about, _) in sent.items()]}
        description = json.dumps(told).encode()
        if len(description) > LONGEST_DESCRIPTION:
            raise BadMessage(
                f"a message's description takes {len(description)} bytes, and {LONGEST_DESCRIPTION} are the most; send "
                "what is long as a tensor"
            )
        front = key.sign(PURPOSE + description), _LENGTH.pack(len(description)), description
        return b"".join([*front, *(content for _, content in sent.values())])

    @property
    def kind(self) -> str:
        """What the message is; empty where it does not say so in a word."""
        kind = self.meta.get("kind")
        return kind if isinstance(kind, str) else ""


def opened(data: bytes, verify_key: bytes) -> Message:
    """The message in ``data``, which the owner of ``verify_key`` signed.

    Raises:
        Unsigned: it did not.
        BadMessage: the bytes are no message.
    """
    view = memoryview(data)
    description = _description(view)
    try:
        verify(verify_key, bytes(view[:SIGNATURE_BYTES]), PURPOSE + description)
    except (BadSignature, BadKey) as error:
        raise Unsigned(f"a message of {len(data)} bytes is not signed by its sender's key; it is not used") from error
    try:
        told = json.loads(description)
        if not isinstance(told["meta"], dict):
            raise ValueError("its description is no table")
        tensors, place = {}, _START + len(description)
        for name, dtype, shape, digest in told["tensors"]:
            size = _size(dtype, shape)
            content = view[place : place + size]
            if len(content) != size or _sha256(content) != digest:
                raise ValueError(f"its part '{name}' was cut or changed")
            tensors[str(name)] = _tensor(content, dtype, shape)
            place += size
        if place != len(view):
            raise ValueError("something follows its last part")
        return Message(told["meta"], tensors)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise BadMessage(f"a signed message cannot be read ({brief(str(error), 100)}); it is not used") from error


def digest(data: bytes) -> str:
    """64 hexadecimal digits that tell this message from others, of what is signed in it."""
    return _sha256(_description(memoryview(data)))


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor, to be sent beside others."""
    return torch.from_numpy(np.frombuffer(bytes(data), np.uint8).copy())


def as_bytes(tensor: Tensor) -> bytes:
    """What :func:`as_tensor` was given."""
    return tensor.numpy().tobytes()


def _description(view: memoryview) -> bytes:
    """What is signed in a message; nothing if it is not all there."""
    if len(view) < _START:
        return b""
    (length,) = _LENGTH.unpack_from(view, SIGNATURE_BYTES)
    whole = length <= min(len(view) - _START, LONGEST_DESCRIPTION)
    return bytes(view[_START : _START + length]) if whole else b""


def _size(dtype: str, shape: list[int]) -> int:
    if dtype not in DTYPES or not all(type(one) is int and one >= 0 for one in shape):
        raise ValueError(f"it holds {brief(f'{dtype} {shape}', 40)}")
    return math.prod(shape) * DTYPES[dtype].itemsize


def _tensor(content: memoryview, dtype: str, shape: list[int]) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype).copy().reshape(shape))


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()
