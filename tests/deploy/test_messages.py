"""Signed messages: what was sent is what is read, and nothing else is."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from privfl.deploy.messages import (
    _LENGTH,
    LONGEST_DESCRIPTION,
    PURPOSE,
    SIGNATURE_BYTES,
    BadMessage,
    Message,
    Parts,
    as_bytes,
    as_tensor,
    digest,
    opened,
)
from privfl.privacy.secagg.primitives import SigningKey
from privfl.simulation.archive import encode_archive, open_archive

KEY = SigningKey(bytes(range(32)))


def test_a_message_arrives_as_it_was_sent_and_equal_messages_are_equal_bytes():
    message = Message(
        {"kind": "train", "bound": float("inf")}, {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)}
    )
    data = message.sealed(KEY)
    assert data == message.sealed(KEY)
    found = opened(data, KEY.public)
    assert found.meta == message.meta
    assert all(torch.equal(found.tensors[name], value) for name, value in message.tensors.items())
    assert as_bytes(as_tensor(b"\0privfl")) == b"\0privfl"


@pytest.mark.parametrize("place", [0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES, SIGNATURE_BYTES + 4, -1])
def test_a_message_that_was_altered_anywhere_is_refused(place):
    data = bytearray(Message({"kind": "end"}).sealed(KEY))
    data[place] ^= 1
    with pytest.raises(BadMessage, match="not signed by its sender's key"):
        opened(bytes(data), KEY.public)


@pytest.mark.parametrize("altered", [lambda data: data[:-1], lambda data: data[:-1] + b"1", lambda data: data + b"0"])
def test_a_tensor_that_was_altered_is_refused(altered):
    with pytest.raises(BadMessage, match="cannot be read"):
        opened(altered(Message({"kind": "end"}, {"a": torch.ones(3)}).sealed(KEY)), KEY.public)


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"no table",
        b"[]",
        b"[" * 100_000,
        b'{"meta": [], "tensors": []}',
        b'{"meta": {}, "tensors": [["a", "object", [1], ""]]}',
        b'{"meta": {}, "tensors": [["a", "uint8", [-1], ""]]}',
        b'{"meta": {}, "tensors": [["a", "uint8", [1e3], ""]]}',
        b'{"meta": {}, "tensors": [["a", "uint8", [1' + b"0" * 400 + b'], ""]]}',
    ],
)
def test_signed_bytes_that_are_no_message_are_refused(description):
    data = KEY.sign(PURPOSE + description) + len(description).to_bytes(4, "little") + description
    with pytest.raises(BadMessage, match="cannot be read"):
        opened(data, KEY.public)


def test_what_goes_to_everybody_is_made_once_and_a_dtype_that_nobody_could_read_is_not_sent():
    parts, tensor = Parts(), torch.ones(3)
    one, other = (Message({"to": client}, {"a": tensor}).sealed(KEY, parts) for client in range(2))
    assert opened(one, KEY.public).tensors["a"].equal(opened(other, KEY.public).tensors["a"])
    assert parts.of(tensor)[1] is parts.of(tensor)[1]
    assert digest(one) != digest(other)
    with pytest.raises(BadMessage, match="a tensor of complex64 cannot be sent"):
        Message({}, {"a": torch.ones(1, dtype=torch.complex64)}).sealed(KEY)


def test_many_threads_read_at_once(tmp_path):
    """NumPy's own reader fails here now and then: Python 3.11 makes one syntax tree at a time."""
    message = Message({"kind": "train"}, {"a": torch.ones(3)}).sealed(KEY)
    (tmp_path / "kept.npz").write_bytes(encode_archive({}, {"a": np.ones(3)}))

    def read(depth):
        if depth:
            return read(depth - 1)
        with open_archive(tmp_path / "kept.npz", "") as archive:
            return opened(message, KEY.public).tensors["a"], archive["a"]

    usual, switches = gc.get_threshold(), [lambda phase, about: time.sleep(1e-5)]
    gc.callbacks.extend(switches)
    gc.set_threshold(7)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(read, [place % 8 for place in range(400)]))
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(switches[0])
    assert all(torch.equal(one, torch.ones(3)) and len(other) == 3 for one, other in found)


def test_a_description_that_would_fill_memory_is_neither_read_nor_sent():
    """Read as JSON it takes more than twenty times its bytes, and a model's numbers are tensors anyway."""
    with pytest.raises(BadMessage, match=r"description takes \d+ bytes, and 1048576 are the most"):
        Message({"kind": "x" * LONGEST_DESCRIPTION}).sealed(KEY)
    description = ('{"meta": {}, "tensors": [' + "[]," * (LONGEST_DESCRIPTION // 3) + "[]]}").encode()
    sent = KEY.sign(PURPOSE + description) + _LENGTH.pack(len(description)) + description
    with pytest.raises(BadMessage, match="is not signed by its sender's key"):
        opened(sent, KEY.public)


@pytest.mark.parametrize("kind", [7, None, ["deep"], {"a": 1}])
def test_a_kind_that_is_no_word_is_none(kind):
    assert Message({"kind": kind}).kind == ""
