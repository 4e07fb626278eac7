"""The wrappers reproduce the published vectors, and turn every failure into a named error."""

import json
from pathlib import Path

import numpy as np
import pytest

from privfl.privacy.secagg.errors import BadCiphertext, BadKey, BadSignature
from privfl.privacy.secagg.masks import add_many
from privfl.privacy.secagg.primitives import (
    AgreementKey,
    SigningKey,
    derive,
    one_time_tag,
    seal,
    unseal,
    verification_key,
    verify,
)

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "crypto.json").read_text())
VECTORS = {row["name"]: row for row in ORACLES["crypto_vectors"]["rows"]}
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    2**255 - 20,
    2**255 - 19,
]
"""Numbers of points of small order on Curve25519 or its twist: 0, 1, one of order 8, and p − 1, p."""


def of(name, *keys):
    """The inputs of a vector and what is expected, as bytes."""
    row = VECTORS[name]
    return [bytes.fromhex(row["input"][key]) for key in keys] + [bytes.fromhex(row["expected"])]


def test_x25519_agrees_with_rfc_7748():
    scalar, point, expected = of("X25519 scalar mult #1", "scalar", "u")
    assert AgreementKey(scalar).agree(point) == expected
    secret, expected = of("X25519 DH alice pub", "a")
    assert AgreementKey(secret).public == expected
    secret, expected = of("X25519 DH bob pub", "b")
    assert AgreementKey(secret).public == expected
    alice, bob, expected = of("X25519 DH shared", "a", "B")
    assert AgreementKey(alice).agree(bob) == expected
    assert AgreementKey(secret).agree(AgreementKey(alice).public) == expected


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_point_of_low_order_is_refused(point):
    """Their agreement is all zeros whatever the secret, so everybody would know it (RFC 7748, section 6.1)."""
    with pytest.raises(BadKey, match="low order" if point < 2**255 - 19 else "canonical"):
        AgreementKey(bytes(range(32))).agree(point.to_bytes(32, "little"))


def test_hkdf_agrees_with_rfc_5869():
    expected = bytes.fromhex(VECTORS["HKDF-SHA256 case 1"]["expected"])
    assert derive(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42) == expected
    expected = bytes.fromhex(VECTORS["HKDF-SHA256 case 3 (zero salt/info)"]["expected"])
    assert derive(b"\x0b" * 22, b"", b"", 42) == expected


@pytest.mark.parametrize("row", ORACLES["aes_256_gcm"]["rows"], ids=lambda row: row["name"])
def test_sealing_agrees_with_the_specification_of_gcm(row):
    key, nonce, plain, associated = (bytes.fromhex(row["input"][name]) for name in ("key", "nonce", "pt", "aad"))
    sealed = seal(key, nonce, plain, associated)
    assert sealed.hex() == row["expected"]
    assert unseal(key, nonce, sealed, associated) == plain


def test_a_mask_is_the_key_stream_of_rfc_8439_from_block_0_on():
    blocks = "".join(row["expected"] for row in ORACLES["chacha20"]["rows"])
    mask = np.zeros(32, np.uint32)
    add_many(mask, [(bytes(32), 1)])
    assert mask.astype("<u4").tobytes().hex() == blocks


def test_ed25519_agrees_with_rfc_8032():
    secret, public = of("Ed25519 TEST1 pub", "sk")
    assert verification_key(secret) == public
    (signature,) = of("Ed25519 TEST1 sig")
    assert SigningKey(secret).sign(b"") == signature
    verify(public, signature, b"")


def test_one_time_tags_agree_with_the_specification_of_poly1305():
    """RFC 8439, section 2.5.2."""
    key = bytes.fromhex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b")
    tag = "a8061dc1305136c6c22b8baf0c0127a9"
    assert one_time_tag(key, b"Cryptographic Forum Research Group").hex() == tag
    assert one_time_tag(key, memoryview(b"Cryptographic Forum Research Group")).hex() == tag
    with pytest.raises(BadKey):
        one_time_tag(key[:-1], b"")


def test_nothing_opens_what_was_altered_or_sealed_for_another_use():
    key, nonce = bytes(range(32)), bytes(12)
    sealed = seal(key, nonce, b"two shares", b"from 1 to 2")
    for place in range(len(sealed)):
        with pytest.raises(BadCiphertext):
            unseal(key, nonce, sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :], b"from 1 to 2")
    for wrong in (
        (bytes(32), nonce, sealed, b"from 1 to 2"),
        (key, b"\x01" + bytes(11), sealed, b"from 1 to 2"),
        (key, nonce, sealed, b"from 2 to 1"),
        (key, nonce, sealed[:-1], b"from 1 to 2"),
        (key, nonce, b"", b"from 1 to 2"),
    ):
        with pytest.raises(BadCiphertext):
            unseal(*wrong)


def test_a_signature_holds_for_its_message_and_signer_only():
    mine, other = bytes(range(32)), bytes(range(1, 33))
    signature = SigningKey(mine).sign(b"survivors 1, 2, 3")
    for key, given, content in (
        (verification_key(other), signature, b"survivors 1, 2, 3"),
        (verification_key(mine), signature, b"survivors 1, 2"),
        (verification_key(mine), signature[:-1], b"survivors 1, 2, 3"),
        (verification_key(mine), bytes(64), b"survivors 1, 2, 3"),
        (b"short", signature, b"survivors 1, 2, 3"),
    ):
        with pytest.raises(BadSignature):
            verify(key, given, content)


@pytest.mark.parametrize("length", [0, 4, 16, 31, 33])
def test_keys_of_another_length_are_refused(length):
    """Among them 4 bytes: no seed or key has 32 bits."""
    key = b"\x01" * length
    for use in (
        lambda: AgreementKey(key),
        lambda: AgreementKey(bytes(range(32))).agree(key),
        lambda: seal(key, bytes(12), b"", b""),
        lambda: unseal(key, bytes(12), bytes(16), b""),
        lambda: SigningKey(key),
        lambda: verification_key(key),
    ):
        with pytest.raises(BadKey, match=f"{length} bytes"):
            use()
