"""Signed messages: what was sent is what is read, and nothing else is."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch

from privfl.deploy.messages import PURPOSE, SIGNATURE_BYTES, BadMessage, Message, as_bytes, as_tensor, opened
from privfl.privacy.secagg.primitives import SigningKey

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


@pytest.mark.parametrize("place", [0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES, -1])
def test_a_message_that_was_altered_anywhere_is_refused(place):
    data = bytearray(Message({"kind": "end"}).sealed(KEY))
    data[place] ^= 1
    with pytest.raises(BadMessage, match="not signed by its sender's key"):
        opened(bytes(data), KEY.public)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\3\4"])
def test_signed_bytes_that_are_no_message_are_refused(content):
    with pytest.raises(BadMessage, match="cannot be read"):
        opened(KEY.sign(PURPOSE + content) + content, KEY.public)


def test_an_archive_that_would_swell_is_refused():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.npy", bytes(1 << 20))
    content = buffer.getvalue()
    with pytest.raises(BadMessage, match="claims to hold more than it does"):
        opened(KEY.sign(PURPOSE + content) + content, KEY.public)
