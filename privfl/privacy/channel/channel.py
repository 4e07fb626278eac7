"""The channel: the chain of mechanisms that every upload passes, and what each upload then costs.

First what the chain does at the client, then the sum over the cohort, then what it does at the server. Three frozen
values, each of which knows more: settings that were checked (:class:`ChannelSpec`), for a run (:class:`RunChannel`), in
one of its rounds (:class:`RoundChannel`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.accounting.release import Release
from privfl.privacy.channel import link_noise
from privfl.privacy.channel.chain import Chain
from privfl.privacy.channel.client_side import Look, pass_links
from privfl.privacy.channel.costs import Charges
from privfl.privacy.channel.field import Field
from privfl.privacy.channel.own_noise import add_at_server, checked_cover
from privfl.privacy.channel.secure_encoding import SecureEncoding, longest
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.log import DoorLog
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.mechanism import ChannelRound, ChannelRun, Cover, Mechanism, ServerNoise, Tensors
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.mechanisms.secure_sum import SecureSum
from privfl.privacy.noise.source import NoiseSource, NoiseStream

MAX_ROUNDING_FACTOR = 1.01
"""How much more noise the rounding of a secure sum may ask for before it is refused."""


@dataclass(frozen=True)
class ChannelSpec:
    """A chain that can work on the ``fields`` of an algorithm's uploads.

    Args:
        chain: of the mechanisms.
        fields: of an upload.
        dpsgd: DP-SGD at the door.
        cohort_rate: < 1 if the cohort is a Poisson sample of the clients with secret coins, else 1.
        statistics: protect totals at the door.
        pooled: whether one client trains for all, of whose data each real client's is a part.

    Raises:
        ConfigError: the chain cannot work on these fields.
    """

    chain: Chain
    fields: tuple[Field, ...]
    dpsgd: DPSGD | None
    cohort_rate: float
    statistics: tuple[NoisyTotal, ...] = ()
    pooled: bool = False

    def __post_init__(self) -> None:
        self.chain.check_fields(self.fields, self.dpsgd)

    @classmethod
    def of(
        cls,
        links: Sequence[Mechanism],
        fields: Iterable[Field],
        dpsgd: DPSGD | None = None,
        cohort_rate: float = 1.0,
        statistics: Sequence[NoisyTotal] = (),
    ) -> ChannelSpec:
        """The channel of the chain ``links``.

        Raises:
            ConfigError: the links make no chain, or it cannot work on these fields.
        """
        return ChannelSpec(Chain.of(links), tuple(fields), dpsgd, cohort_rate, tuple(statistics))

    def for_run(self, size: int, expected: float, pattern: ParticipationPattern, hides_weights: bool) -> RunChannel:
        """This channel for a run with a model of ``size`` parameters and cohorts of the public size ``expected``.

        ``pattern`` says how clients return, ``hides_weights`` that they weigh their uploads themselves.

        Raises:
            ConfigError: the chain's noise does not go with them.
        """
        length = sum(_length(field, size) for field in self.fields[:1])
        bound = self.chain.bound({})
        longer = longest(bound, length) if self.chain.noise_on_sum and self.secure is not None else 1.0
        chain = self.chain.for_run(ChannelRun(length, expected, pattern, bound, longer, self.chain.clip))
        settings = {**_values(self), "chain": chain, "size": size, "expected": expected, "pattern": pattern}
        planned = math.inf if chain.noise is self.noise else bound
        channel = RunChannel(**settings, hides_weights=hides_weights, planned_bound=planned)
        if channel.usual.refusal:
            raise ConfigError(channel.usual.refusal)
        return channel

    @property
    def noise(self) -> Mechanism | None:
        """The link that adds noise to updates."""
        return self.chain.noise

    @property
    def secure(self) -> SecureSum | None:
        """The link that adds uploads up securely."""
        return self.chain.secure

    @property
    def sent(self) -> tuple[Field, ...]:
        """What leaves a client: the algorithm's fields, and what the chain needs to know."""
        return (*self.fields, *(Field(name, shape=(), weighted=False) for name in self.chain.side_values))

    @property
    def has_client_level_noise(self) -> bool:
        """Whether this channel adds client-level noise, so that weights and divisors must be public constants."""
        return self.noise is not None

    @property
    def covers_clients(self) -> bool:
        """Whether something covers all that one client holds, its update or a randomised report; then nothing may get
        from one client's training into another's."""
        return self.noise is not None or any(field.epsilon is not None for field in self.fields)

    @property
    def has_central_noise(self) -> bool:
        """Whether noise is added to sums at the server."""
        return self.noise_at_server or (self.noise is not None and self.noise.adds_at == "server")

    @property
    def protects(self) -> bool:
        """Whether anything is claimed of what clients send; then the order of a sum must not show in its rounding.

        A stacked cohort arrives in the order of its private sizes. Sums in float64 of numbers in float32 hide that:
        they are exact unless the numbers are 2²⁹ times apart.
        """
        return self.dpsgd is not None or self.noise is not None or self.reports

    @property
    def noise_at_server(self) -> bool:
        """Whether DP-SGD's noise is added to the sum of clipped gradients."""
        return self.dpsgd is not None and self.dpsgd.noise_at == "server"

    @property
    def amplified(self) -> bool:
        """Whether the claim for clients rests on the cohort's draw staying secret.

        A secure sum that is given up leaves the model as it was, which tells how many were drawn.
        """
        secret = self.cohort_rate < 1 and self.secure is None and self.chain.covered == ("public",)
        return secret and self.noise is not None and self.noise.amplified

    @property
    def reports(self) -> bool:
        """Whether anything besides gradients and updates leaves with noise: totals, or randomised fields."""
        return bool(self.statistics) or any(field.epsilon is not None for field in self.fields)

    @property
    def hides_failures(self) -> bool:
        """Whether nobody who reads what is published may learn how many uploads could not be used: noise on updates, on
        sums or on reports covers what a client sends, and not that it sends nothing."""
        return self.covers_clients or self.noise_at_server

    @property
    def zero_fills_failures(self) -> bool:
        """Whether a broken upload counts as zeros: its absence would be a signal that the noise does not cover."""
        return self.noise is not None and (self.noise.adds_at != "server" or self.secure is not None)


@dataclass(frozen=True, kw_only=True)
class RunChannel(ChannelSpec):
    """The channel of one run; its chain holds what the mechanisms have planned.

    Args:
        size: parameters of the model.
        expected: public (expected) size of a cohort.
        pattern: in which rounds one client may take part.
        hides_weights: clients weigh their uploads themselves, and only the sum of the weights is opened.
        max_upload_norm: no field of an upload may be longer, in L2 norm; ∞ lets everything pass.
        planned_bound: the bound that noise was planned for, if it was planned over the run's rounds: no later bound is
            larger, whatever the link that states it makes of what the server has come to.
    """

    size: int
    expected: float
    pattern: ParticipationPattern
    hides_weights: bool
    max_upload_norm: float = math.inf
    planned_bound: float = math.inf

    @property
    def measured(self) -> tuple[Field, ...]:
        """The fields whose norm decides whether an upload is used.

        Not where noise is sized for what one client, or one example, may add to the sum: an upload that is dropped for
        its length would move the sum by more than that. There the chain's bound, or the clipping at the door, keeps
        uploads short.
        """
        if self.noise is not None or self.noise_at_server or math.isinf(self.max_upload_norm):
            return ()
        return tuple(field for field in self.fields if field.epsilon is None)

    def in_round(self, number: int, asked: int, server: Tensors, told: float | None = None) -> RoundChannel:
        """This channel in round ``number``, in which ``asked`` clients take part; ``server`` is the server's state.

        ``told``: the bound of this round as a client hears it that does not know this state.

        Raises:
            ConfigError: no noise can be sized for the bound of this round.
        """
        bound, encoding, refusal = min(self.chain.bound(server, told), self.planned_bound), None, ""
        if self.secure is not None:
            lengths = {field.name: _length(field, self.size) for field in self.sent}
            try:
                encoding = SecureEncoding.for_round(
                    self.chain, lengths, bound, asked, noisy_gradients=self.noise_at_server, weights=self.hides_weights
                )
                self._check_rounding(encoding)
            except (ConfigError, PrivacyError) as error:
                refusal = f"no secure sum over {asked} clients: {error}"
        round = ChannelRound(
            length=sum(_length(field, self.size) for field in self.fields[:1]),
            expected=self.expected,
            pattern=self.pattern,
            bound=bound,
            lengthening=1.0 if encoding is None else encoding.lengthening,
            clip=self.chain.clip,
            number=number,
            noised=self.noise is not None,
            secret_rate=self.cohort_rate if self.amplified else 1.0,
            shares=None if encoding is None else encoding.terms,
            reachable=self.expected,
        )
        reports = tuple(field.epsilon for field in self.fields if field.epsilon is not None)
        charges = Charges(
            reports,
            len(reports) < len(self.fields),
            self.dpsgd,
            self._cover(round),
            self.chain.covered,
            self.secure is not None,
            self.chain.uncovered_gradients() if self.noise_at_server else "",
        )
        return RoundChannel(
            **_values(self), asked=asked, round=round, secure_encoding=encoding, refusal=refusal, charges=charges
        )

    @property
    def usual(self) -> RoundChannel:
        """This channel in the first round, if as many clients take part as is expected."""
        return self.in_round(0, math.floor(self.expected), {})

    def _cover(self, round: ChannelRound) -> Cover | None:
        """What this round's noise on updates costs; what the chain does not claim costs ∞."""
        if self.noise is None:
            return None
        if self.chain.unclaimed:
            return Cover.nothing(self.chain.unclaimed)
        cover = checked_cover(self.noise, round)
        if self.pooled:  # whose part is left out, the update of the whole stays, and may be any other
            cover = replace(cover, client=cover.sample)
        return cover if self.amplified else replace(cover, amplified=None)

    def _check_rounding(self, encoding: SecureEncoding) -> None:
        """Refuse a secure sum whose rounding outweighs the gradient of a sample, which noise is calibrated to."""
        for field in self.fields:
            if (factor := self._rounding(field, encoding)) > MAX_ROUNDING_FACTOR:
                raise ConfigError(
                    f"rounding '{field.name}' for a secure sum would take {100 * (factor - 1):.3g} % more noise; take "
                    "SecureSum(bits=64), or a smaller SecureSum(largest=…)"
                )

    def _rounding(self, field: Field, encoding: SecureEncoding | None) -> float:
        """By what factor the rounding of a secure sum widens what one sample's gradient may move a field by.

        With the same coins two values are rounded apart by at most a step more than they are, in each number.
        """
        if encoding is None or self.dpsgd is None or not self.noise_at_server or field.per_sample_scale is None:
            return 1.0
        step = encoding.encoding.step[field.name]
        return 1 + math.sqrt(_length(field, self.size)) * step / (self.dpsgd.max_grad_norm * field.per_sample_scale)


@dataclass(frozen=True, kw_only=True)
class RoundChannel(RunChannel):
    """The channel of one round.

    Args:
        asked: clients that take part.
        round: what the mechanisms may know of it.
        secure_encoding: the arithmetic of its secure sum, if there is one.
        refusal: why there is none, although there should be.
        charges: its prices.
    """

    asked: int
    round: ChannelRound
    secure_encoding: SecureEncoding | None
    refusal: str
    charges: Charges

    @classmethod
    def bare(
        cls, fields: Iterable[Field], dpsgd: DPSGD | None = None, statistics: Sequence[NoisyTotal] = ()
    ) -> RoundChannel:
        """A channel that lets ``fields`` pass as they are: for an engine that trains outside of a run."""
        spec = ChannelSpec.of((), fields, dpsgd, statistics=statistics)
        return spec.for_run(1, 1.0, ParticipationPattern(1, 1, 1), False).usual

    def survey(self, fields: Iterable[Field]) -> RoundChannel:
        """The channel of a survey on the same cohort: sums that are secure here are secure there."""
        chain = Chain(tuple(link for link in self.chain.links if link.kind == "sum"))
        settings = {**_values(self, RunChannel), "chain": chain, "fields": tuple(fields), "hides_weights": False}
        return RunChannel(**settings).in_round(self.round.number, self.asked, {})

    def broadcast_to_clients(self, received: Tensors) -> Tensors:
        """All that clients are told before they train: the broadcast, and what the mechanisms tell them."""
        like = received["parameters"]
        told = {name: value for link in self.chain.links for name, value in link.broadcast(self.round).items()}
        return {**received, **{name: like.new_tensor(value) for name, value in told.items()}}

    def at_client(
        self, upload: Tensors, noise: NoiseStream, *, like: Tensor, broken: bool, look: Look | None = None
    ) -> Tensors:
        """The client's side: what the links do to the update, then reports; a ``broken`` upload counts as zeros.

        Raises:
            BrokenUpload: a mechanism made something of the update that cannot be added up.
        """
        if broken:
            shape = self.fields[0].shape
            upload = {"update": torch.zeros_like(like) if shape is None else like.new_zeros(shape)}
        if any(link.kind != "sum" for link in self.chain.links):
            update, beside = pass_links(self.chain, upload["update"], noise, self.round, look, broken=broken)
            upload = {**upload, "update": update, **{name: like.new_tensor(value) for name, value in beside.items()}}
        for field in self.fields:
            if field.epsilon is not None:
                upload = {**upload, field.name: field.randomise(upload[field.name], noise)}
        return upload

    def at_server(
        self, total: Tensors, source: NoiseSource, label: str = "", reachable: float | None = None
    ) -> Tensors:
        """The server's side: noise on the sums, if it is added here, then what the other links do with them.

        Changes ``total`` in place, and leaves what later rounds need in it under the names of the chain's
        ``server_state``. ``reachable`` is the public (expected) cohort among the clients that can be reached; ``label``
        tells the phases of a round apart.
        """
        noise = ServerNoise(source.stream("server" + label, self.round.number), source)
        round = self.round if reachable is None else replace(self.round, reachable=reachable)
        if self.noise is not None:
            add_at_server(self.noise, total, link_noise.of_noise(self.noise, noise, label, round.number), round)
        if self.dpsgd is not None and self.noise_at_server:
            for field in self.fields:
                assert field.per_sample_scale is not None
                deviation = self.dpsgd.noise(0) * self.dpsgd.max_grad_norm * field.per_sample_scale
                noise.stream.add_gaussian_(total[field.name], deviation * self._rounding(field, self.secure_encoding))
        others = [
            (link, link_noise.at_server(place, link, noise, label, round.number))
            for place, link in enumerate(self.chain.links)
            if link.kind in ("bound", "transform") and not link_noise.idle_at_server(link)
        ]
        for link, own in others:
            if link.kind == "bound":  # takes out what was sent beside the updates, before others see the sums
                link.at_server(total, own, round)
        for name in self.chain.side_values:
            total.pop(name, None)
        for link, own in reversed(others):
            if link.kind == "transform":
                link.at_server(total, own, round)
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

    def poisson_cohort_releases(self) -> list[Release]:
        """What one round costs *every* available client, chosen or not: the amplified claim of a Poisson cohort."""
        return self.charges.poisson_cohort_releases()


def _values(channel: ChannelSpec, kind: type[ChannelSpec] | None = None) -> dict[str, Any]:
    """The fields of ``channel``, or those of them that a ``kind`` of it has."""
    return {field.name: getattr(channel, field.name) for field in fields(kind or channel)}


def _length(field: Field, size: int) -> int:
    """How many numbers ``field`` has for a model of ``size`` parameters."""
    return size if field.shape is None else math.prod(field.shape)
