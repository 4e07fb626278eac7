"""A clipping bound that follows a quantile of the clients' norms, estimated under privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import GaussianDpEvent
from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.clip import norm, scale_to_norm
from privfl.privacy.mechanisms.mechanism import ChannelRound, Kind, Mechanism, ServerNoise, Tensors
from privfl.privacy.noise.source import NoiseStream
from privfl.validation import check_bound, check_number

CLIP_NORM = "clip_norm"
"""Where the server keeps the bound that it has come to."""
UNCLIPPED = "unclipped"
"""The clients' bits, centred, which tell how many updates were within the bound."""

_FARTHEST = 1e6
"""The bound stays within this factor of the first one, on either side, whatever the noise does."""


@dataclass(frozen=True)
class AdaptiveClip(Mechanism):
    """Clip to a bound C_t that moves towards a quantile of the norms (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    Each client sends its clipped update and the bit ½ if its norm was at most C_t, else −½. The server adds noise to
    both sums, estimates the fraction b̃ of clients that were not clipped, and sets C_{t+1} = C_t·exp(−η(b̃ − γ)).

    Guarantee: for one client whose contribution is left out, who adds neither an update nor a bit, both sums together
    are one Gaussian mechanism with the noise multiplier z of the round: the bit, worth at most ½, is covered by noise
    of standard deviation σ_b, the update by :meth:`update_multiplier` × C_t, which is a little more than z·C_t:
    1/z² = 1/z_Δ² + 1/(2σ_b)². Later bounds are made of released numbers only. For one example of a client both halves
    may swing twice as far: account under replace-one. Bits are not amplified or charged apart from updates, unless
    they are sent apart: see :meth:`events`.

    Unlike the paper, the bound stays within a factor of 10⁶ of the first one, so that noise cannot let it vanish.

    Args:
        initial_norm: C_0 > 0.
        target_quantile: γ in [0, 1], the fraction of clients that should not be clipped.
        learning_rate: η > 0.
        count_noise: σ_b > 0, standard deviation of the noise on the sum of bits; ``None`` takes a twentieth of the
            public (expected) cohort, as the paper does.

    ====================================  ==================================================================
    edge case                             what happens
    ====================================  ==================================================================
    noise multiplier z = 0                nothing is added to updates; the claim is ε = ∞
    2σ_b ≤ z                              refused: the bits alone would cost more than the round may
    an update that is not finite          to be dropped before, or to count as a zero update with no bit
    a round without any client            the bit noise alone moves the bound, as if half were clipped
    noise that is correlated over rounds  not with this: it needs one bound for the whole run
    NaN, negative, infinite               :class:`~privfl.errors.ConfigError`
    ====================================  ==================================================================
    """

    kind: ClassVar[Kind] = "bound"
    side_values: ClassVar[Mapping[str, float]] = {UNCLIPPED: 0.5}
    server_state: ClassVar[tuple[str, ...]] = (CLIP_NORM,)

    initial_norm: float
    target_quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        check_bound("AdaptiveClip's initial_norm", self.initial_norm, 1e-19, 1e19)  # it moves by up to 10⁶
        check_number("AdaptiveClip's target_quantile", self.target_quantile, 0, 1)
        check_number("AdaptiveClip's learning_rate", self.learning_rate, 0, above=True)
        if self.count_noise is not None:
            check_number("AdaptiveClip's count_noise", self.count_noise, 0, above=True)

    def norm_bound(self, server: Tensors) -> float:
        """C_t: what the server has come to, or the first bound."""
        return float(server[CLIP_NORM]) if CLIP_NORM in server else self.initial_norm

    def broadcast(self, round: ChannelRound) -> Mapping[str, float]:
        """C_t, which clients clip to."""
        return {CLIP_NORM: round.bound}

    def side_report(self, update: Tensor, round: ChannelRound) -> Mapping[str, float]:
        """The bit: ½ if the norm of ``update`` is at most C_t, else −½."""
        return {UNCLIPPED: 0.5 if norm(update) <= round.bound else -0.5}

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """``update`` scaled in place to norm at most C_t."""
        return scale_to_norm(update, round.bound)

    def at_server(self, total: Tensors, noise: ServerNoise, round: ChannelRound) -> None:
        """The next bound from the sum of the bits, which gets noise of its own if the chain adds any."""
        bits = total.pop(UNCLIPPED).double().reshape(1)
        if round.noised:
            noise.stream.add_gaussian_(bits, self.count_deviation(round.expected))
        total[CLIP_NORM] = bits.new_tensor(self.next_norm(round.bound, float(bits), round.reachable))

    def count_deviation(self, cohort: float) -> float:
        """σ_b: standard deviation of the noise on the sum of bits of a ``cohort`` of public (expected) size > 0."""
        return cohort / 20 if self.count_noise is None else self.count_noise

    def update_multiplier(self, noise_multiplier: float, cohort: float) -> float:
        """z_Δ: the noise on the sum of updates over C_t, such that updates and bits cost ``noise_multiplier`` together.

        Raises:
            ConfigError: the noise on the bits is too small.
        """
        return split_noise(noise_multiplier, self.count_deviation(cohort))

    def events(self, noise_multiplier: float, cohort: float) -> tuple[GaussianDpEvent, GaussianDpEvent]:
        """What the noisy updates and the noisy bits of one round cost, as two events.

        They compose to ``GaussianDpEvent(noise_multiplier)``, which is what their joint release costs.
        """
        deviation = self.count_deviation(cohort)
        return GaussianDpEvent(split_noise(noise_multiplier, deviation)), GaussianDpEvent(2 * deviation)

    def next_norm(self, norm: float, bits: float, cohort: float) -> float:
        """C_{t+1} after the *noisy* sum ``bits`` of a cohort of public (expected) size ``cohort`` under C_t = ``norm``.

        The bits are centred, so that the estimate is ½ + ``bits``/``cohort``.
        """
        unclipped = 0.5 + bits / cohort
        exponent = math.log(norm) - self.learning_rate * (unclipped - self.target_quantile)
        low, high = math.log(self.initial_norm / _FARTHEST), math.log(self.initial_norm * _FARTHEST)
        return math.exp(min(max(exponent, low), high))


def split_noise(noise_multiplier: float, count_deviation: float) -> float:
    """z_Δ = (z⁻² − (2σ_b)⁻²)^(−½) for z = ``noise_multiplier``, σ_b = ``count_deviation`` (Andrew et al., theorem 1).

    A Gaussian mechanism with multiplier z_Δ and one with 2σ_b, a bit being worth ½, compose to one with z.

    >>> round(split_noise(1.0, 5.0), 6)
    1.005038

    Raises:
        ConfigError: 2σ_b ≤ z: noise on bits alone costs as much as both may.
    """
    check_number("the noise multiplier of adaptive clipping", noise_multiplier, 0)
    if noise_multiplier == 0:
        return 0.0
    if not 2 * count_deviation > noise_multiplier:
        raise ConfigError(
            f"AdaptiveClip adds noise {count_deviation:.4g} to its count, which alone costs more than the noise "
            f"multiplier {noise_multiplier:.4g} allows; give a count_noise well above {noise_multiplier / 2:.4g}"
        )
    return float((noise_multiplier**-2 - (2 * count_deviation) ** -2) ** -0.5)
