"""The cryptographic primitives of secure aggregation, each a thin wrapper around the ``cryptography`` package.

X25519 key agreement (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256-GCM (NIST SP 800-38D), Poly1305 (RFC 8439),
keyed BLAKE2b (RFC 7693), Ed25519 (RFC 8032). The wrappers fix the parameters and turn every failure into one of
:mod:`privfl.privacy.secagg.errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.poly1305 import Poly1305

from privfl.privacy.secagg.errors import BadCiphertext, BadKey, BadSignature

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
SIGNATURE_BYTES = 64
_FIELD = 2**255 - 19
_CACHED_KEYS = 4096  # verification keys, which are the same in every session: about 1 MiB if ever full


class AgreementKey:
    """One X25519 key pair; ``secret`` and ``public`` are 32 bytes each.

    Args:
        secret: 32 bytes from the operating system. Bits that X25519 fixes are fixed when the key is used.

    Raises:
        BadKey: the secret is not 32 bytes.
    """

    __slots__ = ("_private", "public", "secret")

    def __init__(self, secret: bytes) -> None:
        _check_length(secret, "secret key")
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.secret = secret
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The 32 bytes that only the owners of the two secret keys can compute (RFC 7748, section 6.1).

        They are not uniform: pass them through :func:`derive` before use.

        Raises:
            BadKey: the peer's key is not 32 bytes; is not in canonical form, so that one key could pass for two; or is
                a point of low order, so that everybody knows the result.
        """
        check_canonical(public)
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise BadKey(f"the public key {public.hex()} is a point of low order; leave its owner out.") from error


def check_canonical(public: bytes) -> None:
    """Return if the X25519 key ``public`` is written in its one canonical form (RFC 7748 accepts others).

    Raises:
        BadKey: it is not 32 bytes, or encodes a number of 2²⁵⁵ − 19 or more (the top bit included).
    """
    _check_length(public, "public key")
    if int.from_bytes(public, "little") >= _FIELD:
        raise BadKey(f"the public key {public.hex()} is not in canonical form; leave its owner out.")


def derive(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """``length`` bytes from ``secret`` by HKDF-SHA256 (RFC 5869); ``info`` separates uses of one secret."""
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


def authenticate(key: bytes, content: bytes) -> bytes:
    """The keyed BLAKE2b (RFC 7693, 16 bytes) of ``content``, which only owners of ``key`` (32 bytes) can tell."""
    return blake2b(content, digest_size=TAG_BYTES, key=key).digest()


def one_time_tag(key: bytes, content: bytes | memoryview) -> bytes:
    """The Poly1305 tag (16 bytes) of ``content``, the only one that ``key`` (32 bytes) serves.

    Raises:
        BadKey: the key is not 32 bytes.
    """
    _check_length(key, "one-time key")
    tag = Poly1305(key)
    tag.update(content)  # in one piece: blocks that begin inside of a piece take half as long again
    return tag.finalize()


def seal(key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
    """``plain`` under AES-256-GCM, 16 bytes longer; ``associated`` is authenticated but not sent.

    A nonce (12 bytes) must not be used twice with one key.

    Raises:
        BadKey: the key is not 32 bytes.
    """
    _check_length(key, "sealing key")
    return AESGCM(key).encrypt(nonce, plain, associated)


def unseal(key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    """What :func:`seal` sealed.

    Raises:
        BadCiphertext: the key, the nonce, the sealed bytes or the associated data are not those it was sealed with.
        BadKey: the key is not 32 bytes.
    """
    _check_length(key, "sealing key")
    try:
        return AESGCM(key).decrypt(nonce, sealed, associated)
    except (InvalidTag, ValueError) as error:
        raise BadCiphertext("a sealed message does not open; it was altered or is not meant for this use.") from error


def verification_key(signing_key: bytes) -> bytes:
    """The 32 public bytes that verify what the Ed25519 key ``signing_key`` (32 bytes) signs."""
    return SigningKey(signing_key).public


class SigningKey:
    """An Ed25519 key to sign with; ``public`` are the 32 bytes that verify what it signs.

    Args:
        secret: 32 bytes.

    Raises:
        BadKey: the secret is not 32 bytes.
    """

    __slots__ = ("_private", "public")

    def __init__(self, secret: bytes) -> None:
        _check_length(secret, "signing key")
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        """The signature (64 bytes) of ``content``."""
        return self._private.sign(content)


def verify(key: bytes, signature: bytes, content: bytes) -> None:
    """Return if ``signature`` is that of ``content`` under the verification key ``key``.

    Raises:
        BadSignature: it is not, or the key is none.
    """
    try:
        _public_key(key).verify(signature, content)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature("a signature does not verify; its message is not from whom it says.") from error


@dataclass(frozen=True)
class KeyOperations:
    """The two operations on public keys, which are most of what a session costs beside its masks.

    Every party of a deployment uses these. A process that plays all parties may do each once for all of them
    (:mod:`~privfl.privacy.secagg.rehearsal`); nobody else may, since what one party agrees on is secret to another.
    """

    agree: Callable[[AgreementKey, bytes], bytes] = AgreementKey.agree
    verify: Callable[[bytes, bytes, bytes], None] = verify


@lru_cache(_CACHED_KEYS)
def _public_key(key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(key)


def _check_length(key: bytes, what: str) -> None:
    if len(key) != KEY_BYTES:
        raise BadKey(f"a {what} has {len(key)} bytes; it must have {KEY_BYTES}.")
