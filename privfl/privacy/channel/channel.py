"""The channel: the chain of mechanisms that every upload passes, and what each upload then costs.

First what the chain does at the client, then the sum over the cohort, then what it does at the server. Local and
central noise are the same object with another ``at``; noise in shares is added by clients and covers their sum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Literal, Self

import torch
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from torch import Tensor

from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.release import OBSERVERS, Cost, Observer, Release, unprotected
from privfl.privacy.channel.chain import Chain, Mechanism
from privfl.privacy.channel.costs import Charges, Cover
from privfl.privacy.channel.field import Field
from privfl.privacy.channel.secure_encoding import Summation, longest
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.log import DoorLog
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.adaptive_clip import AdaptiveClip
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.clip import Clip
from privfl.privacy.mechanisms.correlated import CorrelatedPlan, Pattern
from privfl.privacy.mechanisms.distributed import SharedNoise
from privfl.privacy.mechanisms.gaussian import GaussianNoise
from privfl.privacy.mechanisms.tree import TreeNoise
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.privacy.secagg.encoding import FieldRange

Tensors = dict[str, Tensor]
UNCLIPPED = Field("unclipped", shape=(), weighted=False)
"""With adaptive clipping: the clients' bits, centred, which tell how many updates were within the bound."""
CLIP_NORM = "clip_norm"
"""Where the server keeps the bound that adaptive clipping has come to."""
WEIGHT = "weight"
"""In a secure sum: the client's weight, where the server must not know it."""
COARSE = 1.01
"""How much more noise the rounding of a secure sum may ask for before it is refused."""
FEW = 4096
"""Cohorts up to which a clipping bound of 2¹⁸ steps leaves room in 32 bits for the sum and noise of usual size."""
UNCOVERED = Cover(unprotected("no noise"), unprotected("no noise"), ())


class Channel:
    """The chain for the uploads of an algorithm, and the releases that follow from it.

    A channel as built serves for checks; :meth:`for_run` and :meth:`in_round` add what a round depends on.
    """

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
        self.chain = Chain.of(chain)
        self.chain.check_fields(self.fields, dpsgd)
        self.noise, self.secure = self.chain.noise, self.chain.secure
        clip = self.chain.clip
        self.adaptive = clip if isinstance(clip, AdaptiveClip) else None
        self.clip = Clip(clip.initial_norm) if isinstance(clip, AdaptiveClip) else clip
        self.number, self.size, self.asked, self.expected = 0, 0, 0, 1.0
        self.hides_weights = False
        self.refusal = ""
        self.summation: Summation | None = None
        self.plan: CorrelatedPlan | None = None
        self.charges = self._charges()

    def for_run(self, size: int, expected: float, pattern: Pattern, hides_weights: bool) -> Self:
        """This channel for a run with a model of ``size`` parameters and cohorts of the public size ``expected``.

        ``pattern`` says how clients return, ``hides_weights`` that they weigh their uploads themselves.

        Raises:
            ConfigError: the chain's noise does not go with them.
        """
        channel = copy.copy(self)
        channel.size, channel.expected, channel.hides_weights = size, expected, hides_weights
        if self.adaptive is not None and isinstance(self.noise, GaussianNoise):
            self.adaptive.update_multiplier(self.noise.noise_multiplier, expected)
        if isinstance(self.noise, TreeNoise | BandedNoise):
            assert self.clip is not None
            longer = 1.0 if self.secure is None else longest(self.clip.max_norm, channel.update_length)
            channel.plan = self.noise.plan(pattern, self.clip.max_norm * longer)
            channel.charges = channel._charges()
        usual = channel.in_round(0, math.floor(expected), {})
        if usual.refusal:
            raise ConfigError(usual.refusal)
        return channel

    def in_round(self, number: int, asked: int, server: Tensors) -> Self:
        """This channel in round ``number``, in which ``asked`` clients take part."""
        channel = copy.copy(self)
        channel.number, channel.asked = number, asked
        if self.adaptive is not None and CLIP_NORM in server:
            channel.clip = Clip(float(server[CLIP_NORM]))
        if self.secure is not None:
            try:
                channel.summation = channel._summation(asked)
                if self.dpsgd is not None and self.dpsgd.noise_at == "server":
                    channel.check_rounding(self.dpsgd)
            except (ConfigError, PrivacyError) as error:
                channel.refusal = f"no secure sum over {asked} clients: {error}"
        channel.charges = channel._charges()
        return channel

    def survey(self, fields: Iterable[Field]) -> Channel:
        """The channel of a survey on the same cohort: sums that are secure here are secure there."""
        chain = () if self.secure is None else (self.secure,)
        asked = Channel(chain, fields, self.dpsgd, self.cohort_rate, self.statistics)
        asked.size, asked.expected = self.size, self.expected
        return asked.in_round(self.number, self.asked, {}) if self.asked else asked

    @property
    def sent(self) -> tuple[Field, ...]:
        """What leaves a client: the algorithm's fields, and what the chain needs to know."""
        return self.fields if self.adaptive is None else (*self.fields, UNCLIPPED)

    def check_rounding(self, dpsgd: DPSGD) -> None:
        """Refuse a secure sum whose rounding outweighs the gradient of a sample, which noise is calibrated to."""
        for field in self.fields:
            if (factor := self._rounding(field, dpsgd)) > COARSE:
                raise ConfigError(
                    f"rounding '{field.name}' for a secure sum would take {100 * (factor - 1):.3g} % more noise; take "
                    "SecureSum(bits=64), or a smaller SecureSum(largest=…)"
                )

    def told(self, received: Tensors) -> Tensors:
        """All that clients are told before they train: the broadcast, and the bound if it moves."""
        if self.adaptive is None or self.clip is None:
            return received
        return {**received, CLIP_NORM: received["parameters"].new_tensor(self.clip.max_norm)}

    @property
    def hides_clients(self) -> bool:
        """Whether this channel adds client-level noise, so that weights and divisors must be public constants."""
        return self.noise is not None

    @property
    def noises_sums(self) -> bool:
        """Whether noise is added to sums at the server."""
        at_server = self.noise is not None and not self.chain.at_client()
        return at_server or (self.dpsgd is not None and self.dpsgd.noise_at == "server")

    @property
    def reports(self) -> bool:
        """Whether anything besides gradients and updates leaves with noise: totals, or randomised fields."""
        return bool(self.statistics) or any(field.epsilon is not None for field in self.fields)

    @property
    def repairs(self) -> bool:
        """Whether a broken upload counts as zeros: its absence would be a signal that the noise does not cover."""
        return self.noise is not None and (self.chain.at_client() or self.secure is not None)

    def at_client(self, upload: Tensors, noise: NoiseStream, *, like: Tensor, broken: bool) -> Tensors:
        """The client's side: bound, then noise of its own; a ``broken`` upload counts as zeros.

        Noise in shares is added later, to the integers of the secure sum.
        """
        if broken:
            shape = self.fields[0].shape
            upload = {"update": torch.zeros_like(like) if shape is None else like.new_zeros(shape)}
        if self.adaptive is not None and self.clip is not None:
            bit = self.adaptive.apply(upload["update"], self.clip.max_norm)
            upload = {**upload, UNCLIPPED.name: like.new_tensor(0.0 if broken else bit)}
        elif self.clip is not None:
            self.clip.apply(upload["update"])
            if isinstance(self.noise, GaussianNoise) and self.noise.at == "client":
                noise.add_gaussian_(upload["update"], self.noise.noise_multiplier * self.clip.max_norm)
        for field in self.fields:
            if field.epsilon is not None:
                upload = {**upload, field.name: field.randomise(upload[field.name], noise)}
        return upload

    def at_server(self, total: Tensors, source: NoiseSource, label: str = "", reached: float | None = None) -> Tensors:
        """The server's side: noise on the sums, if it is added here. Changes ``total`` in place.

        With adaptive clipping the sum of bits becomes the next bound, :data:`CLIP_NORM`; ``reached`` is the public
        (expected) cohort among the clients that can be reached. ``label`` tells the phases of a round apart.
        """
        noise = source.stream("server" + label, self.number)
        if isinstance(self.noise, GaussianNoise) and self.clip is not None and self.noise.at == "server":
            multiplier = self.noise.noise_multiplier
            if self.adaptive is not None:
                multiplier = self.adaptive.update_multiplier(multiplier, self.expected)
            longer = 1.0 if self.summation is None else self.summation.lengthening
            noise.add_gaussian_(total["update"], multiplier * self.clip.max_norm * longer)
        if self.adaptive is not None and self.clip is not None:
            bits = total.pop(UNCLIPPED.name).double().reshape(1)
            if self.noise is not None:
                noise.add_gaussian_(bits, self.adaptive.count_deviation(self.expected))
            cohort = self.expected if reached is None else reached
            total[CLIP_NORM] = bits.new_tensor(self.adaptive.next_norm(self.clip.max_norm, float(bits), cohort))
        if self.plan is not None:
            self.plan.add_(total["update"], self.number, source)
        if self.dpsgd is not None and self.dpsgd.noise_at == "server":
            for field in self.fields:
                assert field.per_sample_scale is not None
                deviation = self.dpsgd.noise(0) * self.dpsgd.max_grad_norm * field.per_sample_scale
                noise.add_gaussian_(total[field.name], deviation * self._rounding(field, self.dpsgd))
        return total

    def releases(
        self, log: DoorLog, *, server_holds_data: bool = False, remembered: bool = False
    ) -> list[tuple[Release, int]]:
        """What one client's uploads of one round cost, given what passed its ``log``.

        ``remembered``: the client keeps something that a later upload may hold, so that what passed the door counts
        even if this phase sends nothing, or nothing but randomised reports.
        """
        if self.refusal:
            return []
        return self.charges.releases(log, server_holds_data=server_holds_data, remembered=remembered)

    def spectator_releases(self) -> list[Release]:
        """What one round costs *every* available client, chosen or not: the amplified claim of a Poisson cohort."""
        return self.charges.spectator_releases()

    def _charges(self) -> Charges:
        reports = tuple(field.epsilon for field in self.fields if field.epsilon is not None)
        others = len(reports) < len(self.fields)
        return Charges(reports, others, self.dpsgd, self._cover(), self.secure is not None)

    def _cover(self) -> Cover | None:
        """What this round's noise on updates costs, and before whom."""
        if self.noise is None:
            return None
        if isinstance(self.noise, SharedNoise):
            if self.summation is None or self.summation.terms is None or self.noise.noise_multiplier == 0:
                return UNCOVERED
            terms = self.summation.terms
            return Cover(self.noise.cost(terms, "client"), self.noise.cost(terms, "sample"), OBSERVERS)
        if self.noise.noise_multiplier == 0:
            return UNCOVERED
        if not isinstance(self.noise, GaussianNoise):
            return UNCOVERED if self.plan is None else _gaussian_cover(self.plan.participation_event(self.number))
        event = GaussianDpEvent(self.noise.noise_multiplier)
        if self.noise.at == "client":
            return _gaussian_cover(event, OBSERVERS)
        # A secure sum that is given up leaves the model as it was, which tells how many were drawn.
        secret = self.cohort_rate < 1 and self.secure is None
        amplified = PoissonSampledDpEvent(self.cohort_rate, event) if secret else None
        return _gaussian_cover(event, amplified=amplified)

    def _summation(self, asked: int) -> Summation:
        """The arithmetic of this round's secure sum."""
        assert self.secure is not None
        bounded = self.noise is not None and not (isinstance(self.noise, GaussianNoise) and self.noise.at == "client")
        bits = self.secure.bits or (32 if bounded and asked <= FEW else 64)
        honest = self.secure.honest(asked)
        if bounded:
            assert self.clip is not None
            if isinstance(self.noise, SharedNoise):
                return Summation.with_shares(self.noise, self.update_length, self.clip.max_norm, asked, honest, bits)
            bits_sent = () if self.adaptive is None else (FieldRange(UNCLIPPED.name, 1, 0.5),)
            return Summation.bounded(self.update_length, self.clip.max_norm, bits_sent, asked, bits)
        # Where noise covers what one sample moves, dropping its client for a large number would move the sum by more.
        covered = self.noise is not None or (self.dpsgd is not None and self.dpsgd.noise_at == "server")
        outside: Literal["clip", "refuse"] = "clip" if covered else "refuse"
        largest = self.secure.largest
        if isinstance(self.noise, GaussianNoise) and self.clip is not None:
            # Every client's own noise, which hardly ever exceeds twelve deviations.
            largest = self.clip.max_norm * (1 + 12 * self.noise.noise_multiplier)
        ranges = [FieldRange(field.name, self._length(field), largest, outside=outside) for field in self.sent]
        if self.hides_weights:
            ranges.append(FieldRange(WEIGHT, 1, self.secure.largest, outside="refuse"))
        return Summation.of(ranges, asked, bits)

    def _rounding(self, field: Field, dpsgd: DPSGD) -> float:
        """By what factor the rounding of a secure sum widens what one sample's gradient may move a field by.

        With the same coins two values are rounded apart by at most a step more than they are, in each number.
        """
        if self.summation is None or field.per_sample_scale is None:
            return 1.0
        step = self.summation.encoding.step[field.name]
        return 1 + math.sqrt(self._length(field)) * step / (dpsgd.max_grad_norm * field.per_sample_scale)

    @property
    def update_length(self) -> int:
        """How many numbers the one field has that noise goes on; fewer than the model if clients send a part of it."""
        return self._length(self.fields[0])

    def _length(self, field: Field) -> int:
        return self.size if field.shape is None else math.prod(field.shape)


def _gaussian_cover(
    event: DpEvent, observers: tuple[Observer, ...] = ("public",), amplified: DpEvent | None = None
) -> Cover:
    """Gaussian noise on a bounded update; one example of a client may swing it through twice the bound."""
    return Cover(Cost(event), Cost(event, NeighboringRelation.REPLACE_ONE), observers, amplified)
