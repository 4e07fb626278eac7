"""Gaussian noise on updates: once on their sum, or by every client on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dp_accounting import GaussianDpEvent
from torch import Tensor

from privfl.privacy.mechanisms.mechanism import (
    AddsAt,
    ChannelRound,
    ChannelRun,
    Cover,
    Kind,
    Mechanism,
    ServerNoise,
    Tensors,
)
from privfl.privacy.noise.source import NoiseStream
from privfl.validation import check_noise


@dataclass(frozen=True)
class GaussianNoise(Mechanism):
    """Gaussian noise of standard deviation ``noise_multiplier`` × the bound of the :class:`Clip` before it.

    Guarantee: for one client whose contribution is left out this is the Gaussian mechanism with that noise multiplier,
    for who sees the noisy value: with ``at="server"`` the sum is noised once, which protects against the public; with
    ``at="client"`` every client adds its own noise, which protects against the server too (what is left out then is its
    update: it sends noise alone). For one example of a
    client the update may swing through twice the bound, so the row ``sample`` is accounted under replace-one.

    ==========================  ========================================================================
    edge case                   what happens
    ==========================  ========================================================================
    ``noise_multiplier = 0``    nothing is added; the claim is ε = ∞
    no ``Clip`` before it       refused: without a bound noise protects nothing
    a client's upload is NaN    it counts as zero in the sum; the public divisor does not change
    NaN, negative, infinite     :class:`~privfl.errors.ConfigError`
    ==========================  ========================================================================

    Args:
        noise_multiplier: z ≥ 0, the standard deviation of the noise divided by the clipping bound. It takes no target
            ε; `privfl account noise` finds the z that meets one.
        at: who adds it: the ``server``, once to the sum, or every ``client`` to its own update.
    """

    kind: ClassVar[Kind] = "noise"
    splits_noise: ClassVar[bool] = True

    noise_multiplier: float
    at: Literal["client", "server"] = "server"

    def __post_init__(self) -> None:
        check_noise("GaussianNoise's noise_multiplier", self.noise_multiplier)

    @property
    def adds_at(self) -> AddsAt:
        """Where ``at`` says."""
        return self.at

    @property
    def amplified(self) -> bool:
        """Only on the sum: the server sees who takes part."""
        return self.at == "server" and self.noise_multiplier > 0

    def for_run(self, run: ChannelRun) -> GaussianNoise:
        """This noise, if it suffices for what a moving bound sends."""
        run.update_multiplier(self.noise_multiplier)
        return self

    def noisy_magnitude(self, bound: float) -> float:
        """Twelve deviations beyond the bound."""
        return bound * (1 + 12 * self.noise_multiplier)

    def at_client(self, update: Tensor, noise: NoiseStream, round: ChannelRound) -> Tensor:
        """Add every client's own noise."""
        if self.at == "client":
            noise.add_gaussian_(update, self.noise_multiplier * round.bound)
        return update

    def at_server(self, total: Tensors, noise: ServerNoise, round: ChannelRound) -> None:
        """Add noise to the sum, which rounding for a secure sum may have lengthened."""
        if self.at == "server":
            multiplier = round.update_multiplier(self.noise_multiplier)
            noise.stream.add_gaussian_(total["update"], multiplier * round.bound * round.lengthening)

    def cover(self, round: ChannelRound) -> Cover:
        """The Gaussian mechanism."""
        if self.noise_multiplier == 0:
            return Cover.nothing("the noise multiplier of GaussianNoise is 0")
        return Cover.gaussian(GaussianDpEvent(self.noise_multiplier), round.secret_rate if self.amplified else 1.0)
