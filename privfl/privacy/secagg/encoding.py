"""Fixed-point numbers in a ring: how real vectors become words that a secure sum can add, and the sum real again.

Every field of an upload has a declared range ±bound. A value is divided by the field's step, rounded at random to one
of the two integers beside it so that its mean is the value, and taken modulo 2ᵇ. The step is the smallest power of two
with which the sum over the whole cohort stays within ±(2ᵇ⁻¹ − 1), so no sum can wrap, whoever drops out:

    cohort · ⌈bound / step⌉ + ⌈noise / step⌉ ≤ 2ᵇ⁻¹ − 1.

Steps are powers of two because then dividing by them and multiplying the sum by them is exact in binary floating point:
the rounding is the only error. For the sum over n clients whose values lie in the range, it has in every coordinate
mean zero and coins of its own, stays below n·step, and has a standard deviation of at most √n/2·step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.secagg.errors import BadVector
from privfl.privacy.secagg.rounding import round_within, stochastic_round

if TYPE_CHECKING:  # a client of secure aggregation needs no torch
    from torch import Tensor

Words = NDArray[np.uint32] | NDArray[np.uint64]
Values = Union["Tensor", NDArray[np.float32], NDArray[np.float64]]

_LARGEST_INTEGER = 2**52  # up to here a float64 holds an integer and a fraction of it exactly enough to round by
_SMALLEST_STEP_EXPONENT = -1000
_CHUNK = 1 << 15  # values per pass, so that the work space stays in a core's second-level cache


@dataclass(frozen=True)
class FieldRange:
    """One field of an upload and the range that is declared for it.

    Args:
        name: of the field.
        length: how many numbers it has.
        bound: every number of every client lies in [−bound, bound].
        noise: room kept for noise on the sum of the cohort, in the same units: its absolute value must not exceed this
            (choose it so that it does not except with a probability that the caller accounts for).
        outside: what happens to a number outside the range: ``"clip"`` it, or ``"refuse"`` the whole vector, so that
            the client counts as broken. A number that is not finite is refused always.

    Raises:
        ConfigError: the length is below 1, the bound not a positive number, the noise negative or not finite.
    """

    name: str
    length: int
    bound: float
    noise: float = 0.0
    outside: Literal["clip", "refuse"] = "clip"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"field '{self.name}' has length {self.length}; give 1 or more.")
        if not 0 < self.bound < math.inf:
            raise ConfigError(f"field '{self.name}' has bound {self.bound}; give a positive number.")
        if not 0 <= self.noise < math.inf:
            raise ConfigError(f"field '{self.name}' keeps room for noise up to {self.noise}; give a number ≥ 0.")
        if self.outside not in ("clip", "refuse"):
            raise ConfigError(f"field '{self.name}' has outside={self.outside!r}; give 'clip' or 'refuse'.")


@dataclass(frozen=True)
class Encoding:
    """Several fields in one vector over Z_{2^bits}; all parties of a session use the same one.

    Args:
        fields: in the order in which they lie in the vector.
        cohort: most clients whose vectors may be added.
        bits: b, 2 to 64; words are uint32 up to 32 bits, else uint64.
        steps: one for each field; :meth:`for_cohort` chooses the smallest.

    Raises:
        ConfigError: a name is repeated, the bits or the cohort are out of range, a step is not a power of two, or with
            these steps the sum of the cohort might wrap.
    """

    fields: tuple[FieldRange, ...]
    cohort: int
    bits: int
    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        _check(self.fields, self.cohort, self.bits)
        if len(self.steps) != len(self.fields):
            raise ConfigError(f"{len(self.fields)} fields have {len(self.steps)} steps; give one for each field.")
        for field, step in zip(self.fields, self.steps, strict=True):
            if not 0 < step < math.inf or math.frexp(step)[0] != 0.5:
                raise ConfigError(f"the step {step} of field '{field.name}' is no power of two; choose one.")
            if not _fits(field, step, self.cohort, self.bits):
                raise ConfigError(
                    f"a sum of {self.cohort} clients may wrap in {self.bits} bits with step {step} for field "
                    f"'{field.name}' within ±{field.bound}: take more bits (up to 64), or a larger step."
                )

    @classmethod
    def for_cohort(cls, fields: Sequence[FieldRange], cohort: int, bits: int = 32) -> Encoding:
        """The finest encoding whose sum over ``cohort`` clients cannot wrap in ``bits`` bits.

        Raises:
            ConfigError: a name is repeated, or the bits do not suffice for the cohort whatever the step.
        """
        _check(fields, cohort, bits)
        return cls(tuple(fields), cohort, bits, tuple(_finest(field, cohort, bits) for field in fields))

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each field lies in the vector."""
        ends = np.cumsum([0, *(field.length for field in self.fields)])
        return {
            field.name: slice(int(start), int(stop))
            for field, start, stop in zip(self.fields, ends[:-1], ends[1:], strict=True)
        }

    @cached_property
    def step(self) -> dict[str, float]:
        """Each field's step."""
        return {field.name: step for field, step in zip(self.fields, self.steps, strict=True)}

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ for encodings that differ in anything: their words must not be added."""
        return digest_of(self)

    @property
    def length(self) -> int:
        """Words in a vector."""
        return sum(field.length for field in self.fields)

    @property
    def word(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """The type of a vector's words, little endian."""
        return np.dtype("<u4") if self.bits <= 32 else np.dtype("<u8")

    def encode(
        self, values: Mapping[str, Values], stream: NoiseStream, norms: Mapping[str, float] | None = None
    ) -> Words:
        """One client's fields as a vector of words: :meth:`to_integers`, then :meth:`to_ring`."""
        return self.to_ring(self.to_integers(values, stream, norms))

    def to_integers(
        self, values: Mapping[str, Values], stream: NoiseStream, norms: Mapping[str, float] | None = None
    ) -> NDArray[np.int64]:
        """One client's fields in units of their steps, rounded at random to integers; signed, so noise can be added.

        Args:
            values: name → numbers, float32 or float64 of any shape with the field's length.
            stream: where the coins come from; the operating system's, or the rounding could be undone.
            norms: name → L2 bound, for fields whose sensitivity is an L2 norm: plain rounding can lengthen a vector by
                √length steps, so these are clipped to the bound and rounded by
                :func:`~privfl.privacy.secagg.rounding.round_within`.

        Returns:
            int64 [length].

        Raises:
            ConfigError: the fields are not those declared, or one has another length or type.
            BadVector: a number is not finite, or outside the range of a field that refuses.
        """
        norms = norms or {}
        if values.keys() != self.slices.keys() or not norms.keys() <= self.slices.keys():
            raise ConfigError(
                f"the fields are {sorted(values)}, those with a norm {sorted(norms)}, but the encoding is for "
                f"{sorted(self.slices)}."
            )
        out = np.empty(self.length, dtype=np.int64)
        for field, step in zip(self.fields, self.steps, strict=True):
            flat = _flat(field, values[field.name])
            target = out[self.slices[field.name]]
            norm = norms.get(field.name)
            if norm is None:
                for start in range(0, field.length, _CHUNK):
                    part = flat[start : start + _CHUNK]
                    target[start : start + _CHUNK] = stochastic_round(_scaled(field, part, step), stream)
            else:
                target[:] = round_within(_scaled(field, flat, step), norm / step, stream)
        return out

    def to_ring(self, integers: NDArray[np.int64]) -> Words:
        """Signed integers modulo 2^bits, as words."""
        words: NDArray[Any] = integers.astype(self.word)  # modulo 2³² or 2⁶⁴: two's complement
        words &= words.dtype.type((1 << self.bits) - 1)
        return words

    def decode(self, total: Words, count: int) -> dict[str, NDArray[np.float64]]:
        """The sums of ``count`` clients' fields from the sum of their vectors modulo 2^bits; name → float64 [length].

        Exact: the sum of the clients' integers times the step, as long as it has 53 significant bits.

        Raises:
            ConfigError: the sum is of another type or length, or ``count`` outside 0 … cohort.
            BadVector: a number of the sum is larger than ``count`` vectors and the noise can make it, so a client has
                not kept to the encoding.
        """
        if total.dtype != self.word or total.shape != (self.length,):
            raise ConfigError(
                f"the sum is {total.dtype}{list(total.shape)}, but the encoding is for {self.word}[{self.length}]."
            )
        if not 0 <= count <= self.cohort:
            raise ConfigError(f"the sum is over {count} clients, but the encoding is for 0 to {self.cohort}.")
        spare = 8 * self.word.itemsize - self.bits
        signed = (total << total.dtype.type(spare)).view(f"<i{self.word.itemsize}") >> spare
        sums = {}
        for field, step in zip(self.fields, self.steps, strict=True):
            part = signed[self.slices[field.name]]
            most = count * _per_client(field, step) + math.ceil(field.noise / step)
            if int(part.max()) > most or int(part.min()) < -most:
                raise BadVector(f"the sum of field '{field.name}' is larger than {count} clients can make it.")
            sums[field.name] = part.astype(np.float64) * step
        return sums


def digest_of(settings: Any) -> bytes:
    """32 bytes that differ for settings (numbers, strings, tuples or dataclasses of such) that differ in anything."""
    return sha256(_described(settings).encode()).digest()


def _described(value: Any) -> str:
    if isinstance(value, float):
        return float(value).hex()  # whatever subclass of float it is
    if is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in dataclass_fields(value))
        return f"{type(value).__name__}({','.join(f'{name}={_described(part)}' for name, part in parts)})"
    if isinstance(value, tuple):
        return f"({','.join(map(_described, value))})"
    return repr(value)


def _check(fields: Sequence[FieldRange], cohort: int, bits: int) -> None:
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"the fields to encode are {names}: give at least one, each with a name of its own.")
    if not 2 <= bits <= 64:
        raise ConfigError(f"the ring has {bits} bits: give 2 to 64.")
    if cohort < 1:
        raise ConfigError(f"the cohort has {cohort} clients: give 1 or more.")


def _per_client(field: FieldRange, step: float) -> int:
    """⌈bound / step⌉, the largest integer that a number in the range can be rounded to; the division is exact."""
    return math.ceil(field.bound / step)


def _fits(field: FieldRange, step: float, cohort: int, bits: int) -> bool:
    largest = _per_client(field, step)
    room = 2 ** (bits - 1) - 1
    return largest <= _LARGEST_INTEGER and cohort * largest + math.ceil(field.noise / step) <= room


def _finest(field: FieldRange, cohort: int, bits: int) -> float:
    if cohort + (field.noise > 0) > 2 ** (bits - 1) - 1:
        raise ConfigError(f"{bits} bits do not hold a sum over {cohort} clients: take more bits (up to 64).")
    exponent = max(math.frexp(field.bound)[1] - 53, _SMALLEST_STEP_EXPONENT)
    if not math.isfinite(float(cohort) * field.bound + field.noise):
        raise ConfigError(
            f"the sum of field '{field.name}' within ±{field.bound:g} over {cohort} clients exceeds the largest "
            "float64: give a smaller bound."
        )
    while not _fits(field, math.ldexp(1.0, exponent), cohort, bits):
        exponent += 1
    return math.ldexp(1.0, exponent)


def _flat(field: FieldRange, values: Values) -> NDArray[Any]:
    array = np.asarray(values) if isinstance(values, np.ndarray) else values.detach().cpu().numpy()
    if array.dtype not in (np.float32, np.float64) or array.size != field.length:
        raise ConfigError(
            f"field '{field.name}' is {array.dtype} with {array.size} numbers: give {field.length} of float32 or 64."
        )
    return array.reshape(-1)


def _scaled(field: FieldRange, values: NDArray[Any], step: float) -> NDArray[np.float64]:
    """``values`` / ``step`` in float64, exact, within ±bound/step."""
    scaled = values.astype(np.float64)
    scaled *= 1 / step
    limit = field.bound / step
    largest = max(-scaled.min(), scaled.max())
    if not largest <= limit:
        if not math.isfinite(largest):
            raise BadVector(f"field '{field.name}' holds a number that is not finite.")
        if field.outside == "refuse":  # the value itself is private, so the sentence does not tell it
            raise BadVector(f"field '{field.name}' holds a number outside its range of ±{field.bound}.")
        np.clip(scaled, -limit, limit, out=scaled)
    return scaled
