"""DP-SGD: clip every sample's gradient, add Gaussian noise, divide by a public number.

The sampler, the clipper, the noise and the event for the ledger come from this one object, so they cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from privfl.errors import ConfigError, PrivacyError
from privfl.validation import Settings, check_bound, check_noise, check_rate

PerClient = float | tuple[float, ...]
PerSample = Literal["auto", "layers", "vmap", "opacus"]


@dataclass(frozen=True)
class DPSGD(Settings):
    """Differentially private gradients at the door (Abadi et al. 2016), with Poisson batches.

    Guarantee: one gradient releases Σ_i clip(g_i, C) + N(0, (z·C)²·I), divided by a public number, over a batch that
    holds each sample independently with the public rate q. For one example added or removed this is the
    q-Poisson-subsampled Gaussian mechanism with noise multiplier z; the ledger composes every step of every round.

    Args:
        noise_multiplier: z ≥ 0, the noise's standard deviation divided by C; one number, or one for each client.
        target_epsilon: ε > 0 of the *whole run* for one example at the privacy settings' δ, the size response included;
            z is then found before training. One number, or one for each client.
        max_grad_norm: C > 0, L2 bound of one sample's gradient.
        sample_rate: q in (0, 1], *public*, of local batches; one number, or one for each client. Never derived from
            the private size of a client. FedSampling brings its own rate.
        noise_at: ``"client"``: every client adds its own noise, so the server sees nothing bare. ``"server"``: clients
            only clip, and noise is added once to the sum, for algorithms whose upload is one sum of per-sample
            gradients (FedSampling); then the claim holds for who sees the model, not for the server.
        per_sample: how per-sample gradients are formed; results agree up to rounding, and the claim is the same.
            ``"auto"`` takes the fastest way that serves the model: ``"layers"``, rules for each type of layer, or
            ``"vmap"``, any model that ``torch.func`` can transform. A model or loss that is not privfl's own, nor made
            of PyTorch's layers alone, sees one row at a time in both. ``"opacus"`` takes the hooks of Opacus'
            ``GradSampleModule``, which see whole batches: slow, with clients trained one by one, refused for such
            models and losses, and the reference to compare with.

    ==================================  =================================================================
    edge case                           what happens
    ==================================  =================================================================
    ``noise_multiplier = 0``            gradients are clipped; the claim is ε = ∞
    empty Poisson batch                 a step of pure noise; no loss is reported
    non-finite per-sample gradient      counts as zero; the sensitivity stays C
    ``sample_rate = 1``                 every sample in every batch; no amplification is claimed
    NaN, negative or infinite z, C, q   :class:`~privfl.errors.ConfigError`
    ==================================  =================================================================
    """

    noise_multiplier: PerClient | None = None
    target_epsilon: PerClient | None = None
    max_grad_norm: float = 1.0
    sample_rate: PerClient = 0.1
    noise_at: Literal["client", "server"] = "client"
    per_sample: PerSample = "auto"

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ConfigError("DPSGD needs exactly one of noise_multiplier and target_epsilon; give one of them")
        for multiplier in _each(self.noise_multiplier):
            check_noise("DPSGD's noise_multiplier", multiplier)
        _check("target_epsilon", self.target_epsilon, 0.0, math.inf)
        check_bound("DPSGD's max_grad_norm", self.max_grad_norm)
        for rate in _each(self.sample_rate):
            check_rate("DPSGD's sample_rate", rate)
        if self.noise_at == "server" and isinstance(self.noise_multiplier or self.target_epsilon, tuple):
            raise ConfigError(
                "DPSGD with noise_at='server' adds one noise for all clients; give one number, not a list"
            )

    def check_clients(self, clients: int) -> None:
        """Raise a :class:`ConfigError` if a per-client list does not have ``clients`` entries."""
        for name in ("noise_multiplier", "target_epsilon", "sample_rate"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != clients:
                raise ConfigError(f"DPSGD's {name} lists {len(value)} values for {clients} clients; give one for each")

    def noise(self, client: int) -> float:
        """The noise multiplier of ``client``."""
        if self.noise_multiplier is None:
            raise PrivacyError("DPSGD's target_epsilon has not been turned into a noise multiplier yet")
        return _pick(self.noise_multiplier, client)

    def rate(self, client: int) -> float:
        """The public sampling rate of ``client``'s local batches."""
        return _pick(self.sample_rate, client)

    def event(self, noise_multiplier: float, rate: float) -> DpEvent:
        """What one noisy gradient at ``rate`` costs under add-or-remove-one-example."""
        gaussian = GaussianDpEvent(noise_multiplier)
        return gaussian if rate >= 1 else PoissonSampledDpEvent(rate, gaussian)


def _pick(value: PerClient, client: int) -> float:
    return float(value[client] if isinstance(value, tuple) else value)


def _each(value: PerClient | None) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _check(
    name: str,
    value: PerClient | None,
    low: float,
    high: float,
) -> None:
    for item in _each(value):
        if not low < item < high:
            raise ConfigError(f"DPSGD's {name} is {item!r}; give a number in ({low:g}, {high:g})")
