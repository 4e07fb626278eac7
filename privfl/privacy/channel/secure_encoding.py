"""How the uploads of one round become the integers of a secure sum, and the sum numbers again.

With noise in shares the grid is chosen here too, because what the sum guarantees depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError
from privfl.privacy.channel.chain import Chain
from privfl.privacy.mechanisms.distributed import DistributedNoise
from privfl.privacy.mechanisms.distributed_sum import DistributedSum
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.secagg.encoding import Encoding, FieldRange, Values, Words, digest_of
from privfl.privacy.secagg.rounding import rounded_norm_bound

WEIGHT = "weight"
"""The client's weight, where the server must not know it."""
SMALL_COHORT = 4096
"""Cohorts up to which a clipping bound of 2¹⁸ steps leaves room in 32 bits for the sum and noise of usual size."""
COARSEST = 2.0**-10
"""The coarsest step at which uploads are rounded that no noise covers."""
LEVELS = 18
"""A clipping bound that noise is calibrated to is between 2¹⁷ and 2¹⁸ steps of the grid.

Finer steps gain nothing: rounding d numbers adds at most about d/2³⁶ of its square to a bound of 2¹⁷ steps or more,
0.15 % for a hundred million parameters. One grid for all cohorts lets different cohorts cost the same event.
"""


@dataclass(frozen=True)
class SecureEncoding:
    """The arithmetic of one secure sum; all its parties use the same one.

    Args:
        encoding: of the fields of an upload.
        max_norm: L2 bound of the field ``update``, if noise is calibrated to it; integers keep to it up to
            :attr:`lengthening`.
        noise: added to that field in shares, under ``terms``; both ``None`` without.
    """

    encoding: Encoding
    max_norm: float | None = None
    noise: DistributedNoise | None = None
    terms: DistributedSum | None = None

    @classmethod
    def for_round(
        cls,
        chain: Chain,
        lengths: Mapping[str, int],
        bound: float,
        cohort: int,
        *,
        noisy_gradients: bool,
        weights: bool,
    ) -> SecureEncoding:
        """The arithmetic for the fields of ``lengths`` that pass ``chain``, whose updates keep to ``bound``.

        ``noisy_gradients``: noise on the sum covers gradients; ``weights``: clients send their weights, too.

        Raises:
            ConfigError, PrivacyError: no sum over ``cohort`` clients is safe, or none holds its noise.
        """
        secure, noise = chain.secure, chain.noise
        assert secure is not None
        bits = secure.bits or (32 if chain.noise_on_sum and cohort <= SMALL_COHORT else 64)
        honest = secure.honest(cohort)
        if chain.shares is not None:
            return cls.with_shares(chain.shares, lengths["update"], bound, cohort, honest, bits)
        if chain.noise_on_sum:
            beside = [FieldRange(name, 1, most) for name, most in chain.side_values.items()]
            return cls.bounded(lengths["update"], bound, beside, cohort, bits)
        # Where noise covers what one sample moves, dropping its client for a large number would move the sum by more.
        outside: Literal["clip", "refuse"] = "clip" if noise is not None or noisy_gradients else "refuse"
        largest = (None if noise is None else noise.noisy_magnitude(bound)) or secure.largest
        ranges = [FieldRange(name, length, largest, outside=outside) for name, length in lengths.items()]
        if weights:
            ranges.append(FieldRange(WEIGHT, 1, secure.largest, outside="refuse"))
        found = cls.of(ranges, cohort, bits)
        if noise is None and not noisy_gradients and (step := max(found.encoding.steps)) > COARSEST:
            mend = "take SecureSum(bits=64)" if bits < 64 else "give a smaller SecureSum(largest=…)"
            raise ConfigError(
                f"{bits} bits round uploads of up to ±{largest:g} from {cohort} clients to steps of {step:g}; {mend}"
            )
        return found

    @classmethod
    def of(cls, fields: Sequence[FieldRange], cohort: int, bits: int) -> SecureEncoding:
        """The finest arithmetic for sums of ``fields`` over at most ``cohort`` clients in ``bits`` bits."""
        return cls(Encoding.for_cohort(fields, cohort, bits))

    @classmethod
    def bounded(
        cls, size: int, max_norm: float, others: Sequence[FieldRange], cohort: int, bits: int
    ) -> SecureEncoding:
        """The arithmetic for updates [size] of norm at most ``max_norm``, and ``others``, noised after the sum.

        Raises:
            ConfigError: the ring is too small for the cohort.
        """
        fields = (FieldRange("update", size, bound=max_norm), *others)
        steps = (grid(max_norm), *Encoding.for_cohort(others, cohort, bits).steps) if others else (grid(max_norm),)
        return cls(_encoding(fields, cohort, bits, steps), max_norm)

    @classmethod
    def with_shares(
        cls, noise: DistributedNoise, size: int, max_norm: float, cohort: int, honest: int, bits: int
    ) -> SecureEncoding:
        """The arithmetic for updates [size] of norm at most ``max_norm``, noised in shares.

        ``honest``: the fewest honest clients whose vectors are in a sum that is ever opened.

        Raises:
            ConfigError: the ring is too small for the cohort and its noise.
            PrivacyError: see :class:`~privfl.privacy.mechanisms.distributed.DistributedNoise`.
        """
        step = grid(max_norm)
        terms = DistributedSum(dimension=size, levels=max_norm / step, cohort=cohort, survivors=honest)
        field = FieldRange("update", size, bound=max_norm, noise=noise.reach(terms) * step)
        return cls(_encoding((field,), cohort, bits, (step,)), max_norm, noise, terms)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ for arithmetic that differs in anything; the session is bound to them."""
        return digest_of(self)

    @property
    def lengthening(self) -> float:
        """By what factor rounding may lengthen an update at most; noise must cover that too."""
        if self.max_norm is None:
            return 1.0
        return longest(self.max_norm, self.encoding.fields[0].length)

    def vector(self, values: Mapping[str, Values], rounding: NoiseStream, shares: NoiseStream) -> Words:
        """One client's fields as words; ``rounding`` and ``shares`` are this client's own streams of this round.

        Raises:
            BadVector: a number is not finite, or outside the range of its field.
        """
        norms = None if self.max_norm is None else {"update": self.max_norm}
        integers = self.encoding.to_integers(values, rounding, norms)
        if self.noise is not None and self.terms is not None:
            self.noise.add_share_(integers, shares, self.terms)
        return self.encoding.to_ring(integers)

    def sums(self, total: Words, count: int) -> dict[str, NDArray[np.float64]]:
        """The sums of ``count`` clients' fields, float64 [length] each.

        Raises:
            BadVector: a client has not kept to the encoding.
        """
        return self.encoding.decode(total, count)


def _encoding(fields: tuple[FieldRange, ...], cohort: int, bits: int, steps: tuple[float, ...]) -> Encoding:
    try:
        return Encoding(fields, cohort, bits, steps)
    except ConfigError as error:
        mend = "take SecureSum(bits=64)" if bits < 64 else "take a smaller cohort or less noise"
        raise ConfigError(f"{bits} bits do not hold a sum of {cohort} clients and its noise; {mend}") from error


def grid(max_norm: float) -> float:
    """The step, a power of two, for updates of norm at most ``max_norm``."""
    return math.ldexp(1.0, math.frexp(max_norm)[1] - LEVELS)


def longest(max_norm: float, size: int) -> float:
    """The longest that rounding to :func:`grid` can make an update [size] of norm ``max_norm``, over that norm."""
    levels = max_norm / grid(max_norm)
    return rounded_norm_bound(levels, size) / levels * (1 + 2.0**-30)
