"""The noise source: every privacy noise value, response coin and claimed sampling coin comes from here.

A :class:`NoiseSource` holds one root key, from the operating system or fixed for an experiment. It hands out
:class:`NoiseStream` objects by label; a stream is a ChaCha20 key stream (RFC 8439) under a child key that HKDF-SHA256
(RFC 5869) derives from the root key and the labels. Noise depends on (root key, labels) and on nothing else, so the
number of workers and the order of clients change nothing.

Releases are rounded to a grid *after* the noise is added. Sums of floating-point numbers keep low bits that tell which
value the noise was added to (Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS
2012). Rounding to a grid of about σ·2⁻²⁰ is post-processing that removes them: the steps of the noise are below the
grid by a factor of 2¹³ or more everywhere, also in the tail (where U is near 0, it gets 53 more bits), so every grid
point within its reach is reached from every input. This is an argument about resolution, not a proof of exactness as
for discrete samplers; it fails if the values exceed the noise by 2³², where float64 itself is coarser than the grid.
"""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from privfl.errors import ConfigError

if TYPE_CHECKING:  # secure aggregation draws its graph here, and a client of it needs no torch
    import torch

KEY_BYTES = 32
GRID_BITS = 20
_ZEROS = memoryview(bytes(1 << 21))  # the key stream is the encryption of zeros: as many as a compiled pass draws words
_UNIT = 2.0**-53
_REFINE_BELOW = 1 << 33  # a 53-bit word below this is a uniform number below 2⁻²⁰, which gets 53 more bits
_SMALLEST_SCALE = 2.0**-1000


@dataclass(frozen=True)
class NoiseSource:
    """The root of all privacy noise of a run.

    Args:
        key: 32 secret bytes; whoever knows them can subtract the noise. Kept out of ``repr``; store it only in the
            run's own checkpoint. A resumed run repeats the noise of the round it repeats, which is harmless exactly
            because it repeats the same computation; :meth:`for_run` sees to it that another one has other noise.
        reproducible: True if the key was chosen rather than drawn from the operating system. The statement then says
            that the run must not be released.

    Raises:
        ConfigError: the key is not 32 bytes.
    """

    key: bytes = field(repr=False)
    reproducible: bool

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != KEY_BYTES:
            size = f"{len(self.key)} bytes" if isinstance(self.key, bytes) else f"a {type(self.key).__name__}"
            raise ConfigError(
                f"the noise key must be {KEY_BYTES} bytes, but it is {size}: pass 32 bytes or an integer."
            )

    @classmethod
    def from_os(cls) -> NoiseSource:
        """A source keyed by the operating system: the only kind whose results may be released."""
        return cls(secrets.token_bytes(KEY_BYTES), reproducible=False)

    @classmethod
    def from_key(cls, key: bytes | int) -> NoiseSource:
        """A source with a fixed key (32 bytes, or an integer in [0, 2²⁵⁶)), to reproduce an experiment's noise."""
        if isinstance(key, bytes):
            return cls(key, reproducible=True)
        number = operator.index(key)
        if not 0 <= number < 1 << (8 * KEY_BYTES):
            raise ConfigError(
                f"the noise key {number} is outside [0, 2^256): choose a non-negative integer below 2^256."
            )
        return cls(number.to_bytes(KEY_BYTES, "big"), reproducible=True)

    def for_run(self, fingerprint: bytes) -> NoiseSource:
        """The source of the run that ``fingerprint`` tells apart: another run under the same key has other noise."""
        kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=fingerprint, info=b"privfl run")
        return NoiseSource(kdf.derive(self.key), self.reproducible)

    def apart(self, *labels: int | str) -> NoiseSource:
        """A source whose keys follow from ``labels`` and this one's, for who must not learn what this one gives."""
        return NoiseSource(self.stream("apart", *labels).words(KEY_BYTES // 8).tobytes(), self.reproducible)

    @property
    def check(self) -> str:
        """Text by which a stored key is known to be the same; it tells nothing of a key that was drawn at random."""
        return HKDF(algorithm=SHA256(), length=16, salt=None, info=b"privfl check").derive(self.key).hex()

    def state(self) -> dict[str, Any]:
        """The source as JSON-able values, for a checkpoint. It contains the secret key."""
        return {"key": self.key.hex(), "reproducible": self.reproducible}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NoiseSource:
        """The source that :meth:`state` described; it continues an interrupted run."""
        return cls(bytes.fromhex(state["key"]), bool(state["reproducible"]))

    def stream(self, *labels: int | str) -> NoiseStream:
        """The stream of (root key, labels), for instance ``stream("update", round, client)``.

        The same labels give the same stream, from its start. The caller sees to it that no two uses share their
        labels: noise that is used twice can be subtracted. ``1`` and ``"1"`` are different labels, and so are
        ``("ab", "c")`` and ``("a", "bc")``.

        Raises:
            ConfigError: no label is given, or a label is neither an integer nor a string.
        """
        if not labels:
            raise ConfigError(
                "a noise stream needs at least one label: name its use, for instance stream('update', 3)."
            )
        info = b"privfl noise" + _encoded(labels)
        return NoiseStream(lambda: HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self.key))


def _encoded(labels: Sequence[int | str]) -> bytes:
    return b"".join(map(_encode_label, labels))


def _encode_label(label: int | str) -> bytes:
    """Type, length and content: a code in which no sequence of labels is a prefix of another reading."""
    if isinstance(label, str):
        kind, content = b"s", label.encode()
    else:
        try:
            kind, content = b"i", str(operator.index(label)).encode()
        except TypeError:
            raise ConfigError(
                f"the noise label {label!r} is a {type(label).__name__}: use integers and strings."
            ) from None
    return kind + len(content).to_bytes(4, "big") + content


def _cipher(key: bytes, block: int, nonce: int) -> CipherContext:
    """The key stream of ``key`` from ``block`` on, under a nonce whose last word is ``nonce``."""
    start = block.to_bytes(4, "little") + bytes(8) + nonce.to_bytes(4, "little")
    return Cipher(ChaCha20(key, start), mode=None).encryptor()


def _overwrite(words: NDArray[Any], cipher: CipherContext) -> None:
    """Fill ``words`` [n], which lie in one piece, with the next bytes of the key stream."""
    target = words.view(np.uint8).data
    for start in range(0, len(target), len(_ZEROS)):
        part = target[start : start + len(_ZEROS)]
        cipher.update_into(_ZEROS[: len(part)], part)


class NoiseStream:
    """Random numbers from the ChaCha20 key stream of one key (counter from 0); for one thread at a time.

    Normal numbers have nonces of their own, so that the position of each is known whatever was drawn before; all else
    comes from the zero nonce. Values are fixed by the key and the sequence of calls, bit by bit for the integer and
    uniform methods, and up to the last places of ``log``, ``sin`` and ``cos`` between processors for the others.

    Args:
        key: 32 bytes, used for this stream alone; or what derives them, which is asked once somebody draws: every
            client of a round gets streams, and in many runs nobody draws from them.
    """

    def __init__(self, key: bytes | Callable[[], bytes]) -> None:
        self._given = key
        self._word = 0
        self._pair_block = 0
        self._pair_ciphers: tuple[int, CipherContext, CipherContext] | None = None

    @cached_property
    def key(self) -> bytes:
        """The key of this stream."""
        return self._given() if callable(self._given) else self._given

    def apart(self, *labels: int | str) -> NoiseStream:
        """A stream whose key follows from this one's and ``labels``, for who must not learn what this one gives.

        It holds its key alone, and nothing that leads back here.

        Raises:
            ConfigError: a label is neither an integer nor a string.
        """
        info = b"privfl noise apart" + _encoded(labels)
        return NoiseStream(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self.key))

    @cached_property
    def _cipher(self) -> CipherContext:
        cipher = _cipher(self.key, self._word // 8, 0)
        cipher.update(bytes(8 * (self._word % 8)))
        return cipher

    def words(self, n: int) -> NDArray[np.uint64]:
        """The next ``n`` 64-bit words of the key stream (little endian), uint64."""
        if n < 0:
            raise ConfigError(f"the number of random values is {n}: it must not be negative.")
        out = np.empty(n, dtype="<u8")
        _overwrite(out, self._cipher)
        self._word += n
        return out

    def skip_words(self, n: int) -> int:
        """Pass over the next ``n`` words, which somebody else makes; the number of the first."""
        first = self._word
        self._word += n
        self.__dict__.pop("_cipher", None)
        return first

    def skip_pairs(self, blocks: int) -> int:
        """Pass over the words of pairs of normal numbers in ``blocks`` blocks of 8; the number of the first block."""
        first = self._pair_block
        self._pair_block += blocks
        if self._pair_block > 1 << 31:
            raise ConfigError("a noise stream gives at most 2^35 normal numbers; give each use a stream of its own")
        return first

    def pair_words(self, radius: NDArray[np.int64], angle: NDArray[np.int64]) -> int:
        """Overwrite ``radius`` and ``angle``, of equal length and whole blocks, with the next words of pairs.

        Returns the number of the first block. These words have key streams of their own (nonces 1 and 2).
        """
        first = self.skip_pairs(len(radius) // 8)
        if self._pair_ciphers is None or self._pair_ciphers[0] != first:
            self._pair_ciphers = first, _cipher(self.key, first, 1), _cipher(self.key, first, 2)
        _, of_radius, of_angle = self._pair_ciphers
        _overwrite(radius, of_radius)
        _overwrite(angle, of_angle)
        self._pair_ciphers = self._pair_block, of_radius, of_angle
        return first

    def fine_words(self, block: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The third words of the pairs at ``places``, counted from ``block`` on, which few pairs need (nonce 3)."""
        found = [_cipher(self.key, block + int(place) // 8, 3).update(bytes(64)) for place in places]
        words = [np.frombuffer(one, "<i8")[place % 8] for one, place in zip(found, places, strict=True)]
        return np.array(words, dtype=np.int64)

    def uniform(self, n: int) -> NDArray[np.float64]:
        """``n`` numbers uniform on the multiples of 2⁻⁵³ in [0, 1)."""
        words = self.words(n)
        words >>= np.uint64(11)
        return words.view(np.int64).astype(np.float64) * _UNIT

    def bernoulli(self, p: float | NDArray[np.float64], n: int) -> NDArray[np.bool_]:
        """``n`` coins that are True with probability ``p`` (one for all, or one each), rounded up by less than 2⁻⁶⁴.

        Rounding up means that a randomiser which *lies* on True never lies less often than it claims.

        Raises:
            ConfigError: a probability is outside [0, 1] or NaN.
        """
        if isinstance(p, float) and 0 <= p < 1:  # the common case, without the detours that arrays of p need
            return self.words(n) < np.uint64(math.ceil(math.ldexp(p, 64)))
        threshold = np.ceil(np.ldexp(np.asarray(p, dtype=np.float64), 64))
        if not np.all((threshold >= 0) & (threshold <= 2.0**64) & (np.asarray(p) >= 0)):
            raise ConfigError(f"the probability {p} is outside [0, 1]: choose one inside.")
        certain = threshold == 2.0**64
        coins: NDArray[np.bool_] = (self.words(n) < np.where(certain, 0.0, threshold).astype(np.uint64)) | certain
        return coins

    def integers(self, low: int, high: int, n: int) -> NDArray[np.int64]:
        """``n`` integers exactly uniform on {low, …, high}, both ends included, by rejection of 64-bit words.

        Raises:
            ConfigError: ``low`` exceeds ``high``, or an end is outside the range of int64.
        """
        if not -(2**63) <= low <= high < 2**63:
            raise ConfigError(
                f"no integers from {low} to {high} as int64: give two ends in order within [-2^63, 2^63)."
            )
        span = high - low + 1
        words = self.words(n)
        if span == 1 << 64:
            return words.view(np.int64)
        last = np.uint64((1 << 64) - 1 - (1 << 64) % span)  # words up to here cover every residue equally often
        while (rejected := np.flatnonzero(words > last)).size:
            words[rejected] = self.words(rejected.size)
        words %= np.uint64(span)
        words += np.uint64(low % (1 << 64))  # two's complement: wraps to the right int64
        return words.view(np.int64)

    def poisson_sample(self, n: int, rate: float) -> NDArray[np.int64]:
        """The indices (int64, ascending) of a Poisson sample: each of ``n`` rows is in with probability ``rate``."""
        return np.flatnonzero(self.bernoulli(rate, n)).astype(np.int64, copy=False)

    def normal(self, n: int) -> NDArray[np.float64]:
        """``n`` standard normal numbers in float64, by Box and Muller (1958); the tail reaches 12 σ."""
        from privfl.privacy.noise import gaussian

        return gaussian.normal(self, n)

    def laplace(self, n: int, scale: float) -> NDArray[np.float64]:
        """``n`` Laplace numbers of mean 0 and variance 2·scale² in float64, not rounded to a grid.

        Raises:
            ConfigError: ``scale`` is negative, infinite or NaN.
        """
        _check_scale("Laplace scale", scale)
        words = self.words(n)
        negative = (words & np.uint64(1)).astype(np.bool_)  # uniform numbers use the upper 53 bits only
        words >>= np.uint64(11)
        noise: NDArray[np.float64] = _log_uniform([self], words.view(np.int64).astype(np.float64)[None])[0]
        noise *= np.where(negative, scale, -scale)
        return noise

    def add_gaussian_(self, tensor: torch.Tensor, standard_deviation: float) -> torch.Tensor:
        """Add N(0, standard_deviation²) to every element in place, and round the sum to the grid.

        The sum is formed in float64, rounded to a multiple of g = 2^(⌊log₂ standard_deviation⌋ − 20), and then cast to
        the tensor's type (float32 holds these multiples exactly up to 8 standard deviations). Noise and rounding are
        computed on the CPU, so the result has the same bits on every device.

        Args:
            tensor: float32 or float64, contiguous, on any device.
            standard_deviation: of the noise; 0 leaves the tensor as it is.

        Returns:
            The same tensor.

        Raises:
            ConfigError: the standard deviation is negative, infinite, NaN or below 2⁻¹⁰⁰⁰ but not 0, or the tensor is
                of another type or not contiguous. The tensor is then untouched.
        """
        if not tensor.is_contiguous():
            raise ConfigError("noise cannot be added to a tensor that is not contiguous: call .contiguous() first.")
        add_gaussian_rows_([self], tensor.detach().view(1, -1), [standard_deviation])
        return tensor


def add_gaussian_rows_(streams: Sequence[NoiseStream], rows: torch.Tensor, deviations: Sequence[float]) -> torch.Tensor:
    """Add to every row its own stream's noise, in place and on the grid: many small releases for the price of a large.

    Row i of ``rows`` [n, size] gets, bit for bit, what ``streams[i].add_gaussian_(rows[i], deviations[i])`` gives it.

    Raises:
        ConfigError: a standard deviation is negative, infinite, NaN or below 2⁻¹⁰⁰⁰ but not 0, or the rows are neither
            float32 nor float64. The rows are then untouched.
    """
    import torch

    from privfl.devices import to_device

    for deviation in deviations:
        _check_scale("standard deviation of the noise", deviation)
    if rows.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"noise cannot be added to a tensor of {rows.dtype}: convert it to float32 or float64.")
    from privfl.privacy.noise import gaussian  # needs torch, as only those do who add noise to tensors

    noisy = [place for place, deviation in enumerate(deviations) if deviation != 0]
    chosen, scales = [streams[place] for place in noisy], [deviations[place] for place in noisy]
    grids = [release_grid(scale) for scale in scales]
    if rows.shape[1] == 0 or not noisy:
        return rows
    if len(noisy) == len(streams):
        gaussian.add_rows_(chosen, rows, scales, grids)
        return rows
    places = to_device(torch.tensor(noisy), rows.device)
    some = rows[places]
    gaussian.add_rows_(chosen, some, scales, grids)
    return rows.index_copy_(0, places, some)


def _log_uniform(streams: Sequence[NoiseStream], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(U) for U uniform on (0, 1) from 53-bit numbers ``u`` [streams, n] (consumed), refined to 106 bits near 0."""
    if u.size and u.min() < _REFINE_BELOW:
        for stream, row in zip(streams, u, strict=True):
            small = np.flatnonzero(row < _REFINE_BELOW)
            if small.size:
                row[small] += stream.uniform(small.size) + _UNIT
    u *= _UNIT
    return np.log(u, out=u)


def release_grid(scale: float) -> float:
    """The grid for a release with noise of this scale: 2^(⌊log₂ scale⌋ − 20), between scale·2⁻²¹ and scale·2⁻²⁰.

    >>> release_grid(1.5) == 2**-20
    True
    """
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - GRID_BITS)


def round_to_grid(values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """``values`` rounded to multiples of :func:`release_grid`; unchanged for scale 0 (no noise, nothing to hide)."""
    if scale == 0:
        return values
    grid = release_grid(scale)
    return np.rint(values / grid) * grid


def _check_scale(name: str, scale: float) -> None:
    if not (scale == 0 or _SMALLEST_SCALE <= scale < math.inf):
        raise ConfigError(f"the {name} is {scale}: it must be 0 (no noise) or a finite number from 2^-1000 upwards.")
