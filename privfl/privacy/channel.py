"""The channel: the chain of mechanisms that every upload passes, and what each upload then costs.

A chain is a tuple of mechanisms, applied in order: first what they do at the client, then the sum over the cohort, then
what they do at the server. Local and central noise are the same object with another ``at``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Cost, Observer, Release, pure_cost, unprotected
from privfl.privacy.door import DoorLog
from privfl.privacy.dpsgd import DPSGD
from privfl.privacy.noise import NoiseStream, round_to_grid
from privfl.privacy.noisy_total import NoisyTotal

Tensors = dict[str, Tensor]
POOLED = "whoever trains on pooled data holds the data"


@dataclass(frozen=True)
class Field:
    """One named tensor of an upload.

    Args:
        name: key in the upload.
        combine: ``"sum"``: the server needs only the sum over the cohort, so the field streams and can be aggregated
            securely; ``"each"``: it needs every client's value.
        shape: shape that the value must have; ``None`` is that of the parameters, ``()`` a scalar.
        weighted: whether the client's weight applies to it in a sum.
        epsilon: ε > 0 of a randomised report: the client clips its number to ``value_range``, adds Laplace noise of
            scale (high − low)/ε, and clips again. Guarantee: ε-DP for everything the client holds (substitution), for
            who sees the message, in every round anew.
        value_range: (low, high) of a randomised report, public constants.
        per_sample_scale: set if the field is a sum of per-sample gradients times this number, so that one sample whose
            gradient has norm C moves it by at most ``per_sample_scale``·C. Then noise may be added to the sum.
    """

    name: str
    combine: Literal["sum", "each"] = "sum"
    shape: tuple[int, ...] | None = None
    weighted: bool = True
    epsilon: float | None = None
    value_range: tuple[float, float] = (0.0, 1.0)
    per_sample_scale: float | None = None

    def __post_init__(self) -> None:
        low, high = self.value_range
        if self.epsilon is not None and self.shape != ():
            raise ConfigError(f"the field '{self.name}' is randomised but no single number; give it the shape ()")
        if self.epsilon is not None and not (0 < self.epsilon < math.inf and -math.inf < low < high < math.inf):
            raise ConfigError(
                f"the field '{self.name}' is randomised with epsilon {self.epsilon!r} in {self.value_range!r}; give a "
                "positive epsilon and a finite range (low, high)"
            )

    def randomise(self, value: Tensor, noise: NoiseStream) -> Tensor:
        """The report of ``value`` [] as it leaves the client; a value that is not finite counts as the range's low end.

        The noise is rounded to a grid before the second clipping, so that its low bits tell nothing.
        """
        assert self.epsilon is not None
        low, high = self.value_range
        true = float(value)
        clipped = min(max(true, low), high) if math.isfinite(true) else low
        scale = (high - low) / self.epsilon
        noisy = float(round_to_grid(clipped + noise.laplace(1, scale), scale)[0])
        return torch.full_like(value, min(max(noisy, low), high))


@dataclass(frozen=True)
class Clip:
    """Scale a client's update to L2 norm at most ``max_norm`` > 0, before its weight is applied.

    A bound, not yet protection: one client then moves the sum by at most ``max_norm`` (zero-out relation).
    """

    max_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ConfigError(f"Clip's max_norm is {self.max_norm!r}; give a positive number")

    def apply(self, update: Tensor) -> Tensor:
        """``update`` scaled in place; the norm is taken in float64 and the factor shrunk by 1e-6 to cover rounding."""
        norm = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        if norm > self.max_norm * (1 - 1e-6):
            update.mul_(self.max_norm * (1 - 1e-6) / norm)
        return update


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of standard deviation ``noise_multiplier`` × the bound of the :class:`Clip` before it.

    Guarantee: for one client whose data is zeroed out this is the Gaussian mechanism with that noise multiplier, for
    who sees the noisy value: with ``at="server"`` the sum is noised once, which protects against the public; with
    ``at="client"`` every client adds its own noise, which protects against the server too. For one example of a
    client the update may swing through twice the bound, so the row ``sample`` is accounted under replace-one.

    ==========================  ========================================================================
    edge case                   what happens
    ==========================  ========================================================================
    ``noise_multiplier = 0``    nothing is added; the claim is ε = ∞
    no ``Clip`` before it       refused: without a bound noise protects nothing
    a client's upload is NaN    it counts as zero in the sum; the public divisor does not change
    NaN, negative, infinite     :class:`~privfl.errors.ConfigError`
    ==========================  ========================================================================
    """

    noise_multiplier: float
    at: Literal["client", "server"] = "server"

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier < math.inf:
            raise ConfigError(f"GaussianNoise's noise_multiplier is {self.noise_multiplier!r}; give a number ≥ 0")
        if self.at not in ("client", "server"):
            raise ConfigError(f"GaussianNoise's at is '{self.at}'; choose 'client' or 'server'")


Mechanism = Clip | GaussianNoise


class Channel:
    """The chain for the field ``update`` of an algorithm's uploads, and the releases that follow from it."""

    def __init__(
        self,
        chain: Sequence[Mechanism],
        fields: Iterable[Field],
        dpsgd: DPSGD | None,
        cohort_rate: float,
        statistics: Sequence[NoisyTotal] = (),
    ) -> None:
        """``statistics`` protect totals at the door.

        ``cohort_rate`` < 1 if the cohort is a Poisson sample of the clients with secret coins, else 1.

        Raises:
            ConfigError: the chain cannot work on these fields.
        """
        self.fields = tuple(fields)
        self.dpsgd = dpsgd
        self.cohort_rate = cohort_rate
        self.statistics = tuple(statistics)
        self.clip = next((mechanism for mechanism in chain if isinstance(mechanism, Clip)), None)
        noises = [mechanism for mechanism in chain if isinstance(mechanism, GaussianNoise)]
        self.noise = noises[0] if noises else None
        if len(noises) > 1 or sum(isinstance(mechanism, Clip) for mechanism in chain) > 1:
            raise ConfigError("privacy.update holds a mechanism twice; give at most one Clip and one GaussianNoise")
        if self.noise is not None and (
            self.clip is None or list(chain).index(self.clip) > list(chain).index(self.noise)
        ):
            raise ConfigError("privacy.update adds GaussianNoise without a Clip before it; put Clip(max_norm) first")
        if self.noise is not None and dpsgd is not None and dpsgd.noise_at == "server":
            raise ConfigError("noise is added to the sum twice; use either DPSGD(noise_at='server') or GaussianNoise")
        if chain and [field.name for field in self.fields] != ["update"]:
            names = ", ".join(field.name for field in self.fields) or "nothing"
            raise ConfigError(
                f"privacy.update needs an algorithm that uploads one field 'update'; this one sends {names}"
            )
        apart = [field.name for field in self.fields if field.combine == "each"]
        if apart and (self.noise is not None or (dpsgd is not None and dpsgd.noise_at == "server")):
            raise ConfigError(
                f"the server needs every client's '{apart[0]}', and noise is calibrated for their sum; leave the noise "
                "out, or use an algorithm that needs sums only (`privfl list algorithms`)"
            )
        if dpsgd is not None and dpsgd.noise_at == "server":
            unbounded = [field.name for field in self.fields if field.per_sample_scale is None]
            if unbounded:
                raise ConfigError(
                    f"DPSGD(noise_at='server') needs uploads that are sums of per-sample gradients; '{unbounded[0]}' "
                    "is none: use fedsampling, or noise_at='client'"
                )

    @property
    def hides_clients(self) -> bool:
        """Whether this channel adds client-level noise, so that weights and divisors must be public constants."""
        return self.noise is not None

    @property
    def reports(self) -> bool:
        """Whether anything besides gradients and updates leaves with noise: totals, or randomised fields."""
        return bool(self.statistics) or any(field.epsilon is not None for field in self.fields)

    @property
    def repairs(self) -> bool:
        """Whether a broken upload becomes zeros plus noise: with noise at the client its absence would be a signal."""
        return self.noise is not None and self.noise.at == "client"

    def at_client(self, upload: Tensors, noise: NoiseStream, *, like: Tensor, broken: bool) -> Tensors:
        """The client's side: bound, then noise if it is added here; a ``broken`` upload counts as zeros."""
        if broken:
            shape = self.fields[0].shape
            upload = {"update": torch.zeros_like(like) if shape is None else like.new_zeros(shape)}
        if self.clip is not None:
            self.clip.apply(upload["update"])
            if self.noise is not None and self.noise.at == "client":
                noise.add_gaussian_(upload["update"], self.noise.noise_multiplier * self.clip.max_norm)
        for field in self.fields:
            if field.epsilon is not None:
                upload = {**upload, field.name: field.randomise(upload[field.name], noise)}
        return upload

    def at_server(self, total: Tensors, noise: NoiseStream) -> Tensors:
        """The server's side: noise on the sums, if it is added here. Changes ``total`` in place."""
        if self.noise is not None and self.clip is not None and self.noise.at == "server":
            noise.add_gaussian_(total["update"], self.noise.noise_multiplier * self.clip.max_norm)
        if self.dpsgd is not None and self.dpsgd.noise_at == "server":
            for field in self.fields:
                assert field.per_sample_scale is not None
                deviation = self.dpsgd.noise(0) * self.dpsgd.max_grad_norm * field.per_sample_scale
                noise.add_gaussian_(total[field.name], deviation)
        return total

    def releases(
        self, log: DoorLog, *, server_holds_data: bool = False, remembered: bool = False
    ) -> list[tuple[Release, int]]:
        """What one client's uploads of one round cost, given what passed its ``log``.

        ``remembered``: the client keeps something that a later upload may hold, so that what passed the door counts
        even if this phase sends nothing, or nothing but randomised reports.
        """
        randomised = [pure_cost(field.epsilon) for field in self.fields if field.epsilon is not None]
        bare = unprotected(POOLED)
        counted = [
            (Release.of("update", {(unit, observer): bare if server_holds_data and observer == "server" else cost}), 1)
            for cost in randomised
            for unit in UNITS
            for observer in OBSERVERS
        ]
        if len(randomised) == len(self.fields) and not remembered:
            return counted
        for unit in UNITS:
            for observer in OBSERVERS:
                if server_holds_data and observer == "server":
                    costs = [(bare, 1)]
                else:
                    costs = self._sample_costs(log, observer) if unit == "sample" else self._client_costs(observer)
                counted += [(Release.of("update", {(unit, observer): cost}), count) for cost, count in costs]
        return counted

    def spectator_releases(self) -> list[Release]:
        """What one round costs *every* available client, chosen or not: the amplified claim of a Poisson cohort."""
        if self.noise is None or self.cohort_rate >= 1 or self.noise.at == "client" or not self._sees_noise("public"):
            return []
        event = PoissonSampledDpEvent(self.cohort_rate, GaussianDpEvent(self.noise.noise_multiplier))
        return [Release.of("update", {("client", "public"): Cost(event)})]

    def _sees_noise(self, observer: Observer) -> bool:
        noisy = self.noise is not None and self.noise.noise_multiplier > 0
        return noisy and self.noise is not None and (observer == "public" or self.noise.at == "client")

    def _sample_costs(self, log: DoorLog, observer: Observer) -> list[tuple[Cost, int]]:
        reasons = list(log.bare)
        if log.clipped and self.dpsgd is not None and self.dpsgd.noise(0) == 0:
            reasons.append("gradients are clipped but the noise multiplier is 0")
        elif log.clipped and observer == "server":
            reasons.append("clipped gradients reach the server bare; the noise is added to their sum")
        if not reasons:
            assert self.dpsgd is not None or not log.clipped
            costs = [(Cost(event), count) for event, count in log.noisy.items()]
            for rate, count in log.clipped.items():
                assert self.dpsgd is not None
                costs.append((Cost(self.dpsgd.event(self.dpsgd.noise(0), rate)), count))
            return costs
        if self._sees_noise(observer):
            assert self.noise is not None
            event: DpEvent = GaussianDpEvent(self.noise.noise_multiplier)
            return [(Cost(event, NeighboringRelation.REPLACE_ONE), 1)]
        return [(unprotected(reason), 1) for reason in reasons]

    def _client_costs(self, observer: Observer) -> list[tuple[Cost, int]]:
        if not self._sees_noise(observer):
            why = "updates carry no noise that covers everything one client holds"
            if self.noise is not None:
                why = "every client's update reaches the server bare; the noise is added to their sum"
            return [(unprotected(why), 1)]
        assert self.noise is not None
        if observer == "public" and self.spectator_releases():
            return []
        return [(Cost(GaussianDpEvent(self.noise.noise_multiplier)), 1)]
