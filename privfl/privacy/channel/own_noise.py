"""Noise from outside, tried on public numbers before a run: that it is there, comes from its key, and is not too small.

What a class states of its noise is its author's word. Some of it is seen by looking, and a mistake that is easily made
shows: noise that is written to a copy, that a generator of one's own draws in every run alike, or that is scaled twice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import fields, replace

import torch
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SampledWithReplacementDpEvent,
)
from torch import Tensor

from privfl.errors import ConfigError, brief
from privfl.plain_tensors import plain
from privfl.privacy.accounting.release import Cost
from privfl.privacy.channel.scrutiny import doubt_by_place, dtype_of, made_of
from privfl.privacy.mechanisms.mechanism import ChannelRound, ChannelRun, Cover, Mechanism, ServerNoise, Tensors
from privfl.privacy.noise.source import release_grid
from privfl.references import shipped

ENOUGH = 2048
"""Numbers that are tried: of independent Gaussian noise they have less than 0.9 of its deviation with 4·10⁻¹¹."""
LEAST = 0.9
"""Share of the deviation that a Gaussian cover stands for, below which nothing is claimed."""
_SAMPLED = (PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, SampledWithReplacementDpEvent)


def doubt(link: Mechanism | None, run: ChannelRun) -> str:
    """Why nothing is claimed for the noise of ``link`` in ``run``; empty if it is privfl's own or nothing was found.

    Noise in shares is not tried, as there is none before a secure sum has its terms.
    """
    if link is None or shipped(type(link)) or link.adds_at == "share":
        return ""
    name = type(link).__name__
    told = {one.name: getattr(run, one.name) for one in fields(ChannelRun)}
    round = ChannelRound(**told, number=0, noised=True, reachable=run.expected)
    try:
        given = torch.cat([_values(link, round, trial) for trial in range(_trials(run.length))]).double()
        once, again = (torch.cat(list(_released(link, round, 0))) for _ in range(2))
        other = torch.cat(list(_released(link, round, 1)))
        wanted = _deviation(link.cover(round), round, at_server=link.adds_at == "server")
    except Exception as error:  # whatever the code of others raises on numbers that it does not expect
        return f"{name} could not be tried on public numbers ({brief(f'{type(error).__name__}: {error}', 200)})"
    if torch.equal(once, given):
        return f"{name} adds no noise to public numbers; return the noisy update, or change the sums in place"
    if not torch.equal(once, again):
        return f"{name} adds other noise each time under the same key; draw all of it from the stream that it is handed"
    if torch.equal(once, other):
        return f"{name} adds the same noise under every key; draw it from the stream that it is handed"
    found = float((once - given).std())
    if found < LEAST * wanted:
        return (
            f"{name} adds noise of standard deviation {found:.3g} to public numbers, and its cover stands for "
            f"{wanted:.3g}; add the noise that it states, or state what it adds"
        )
    try:
        unchanged = float((once == given).double().mean())
        return doubt_by_place(link, round, wanted, unchanged) or _doubt_at_the_end(link, round, given)
    except Exception as error:
        return f"{name} could not be tried on further public numbers ({brief(f'{type(error).__name__}: {error}', 200)})"


def _doubt_at_the_end(link: Mechanism, round: ChannelRound, given: Tensor) -> str:
    """Why the noise of the last round is doubted, by the same public numbers; empty if it is as in the first."""
    last = replace(round, number=round.pattern.rounds - 1)
    wanted = _deviation(link.cover(last), last, at_server=link.adds_at == "server")
    found = float((torch.cat(list(_released(link, last, 0))) - given).std())
    if found < LEAST * wanted or not math.isfinite(found):
        return (
            f"{type(link).__name__} adds noise of standard deviation {found:.3g} to public numbers in round "
            f"{last.number}, and its cover stands for {wanted:.3g}; add it in every round"
        )
    return ""


def _trials(length: int) -> int:
    return math.ceil(ENOUGH / max(length, 1))


def _values(link: Mechanism, round: ChannelRound, trial: int) -> Tensor:
    """Public numbers [length] within the bound; sums are float64."""
    generator = torch.Generator().manual_seed(trial)
    values = torch.randn(round.length, generator=generator, dtype=dtype_of(link))
    return values * (round.bound / (2 * float(torch.linalg.vector_norm(values)) + 1e-30))


def _released(link: Mechanism, round: ChannelRound, key: int) -> Iterator[Tensor]:
    """What becomes of the public numbers of each trial under ``key``."""
    own = copy.deepcopy(link)
    for trial in range(_trials(round.length)):
        yield made_of(own, _values(link, round, trial), round, key, trial).double()


def _deviation(cover: Cover | None, round: ChannelRound, *, at_server: bool) -> float:
    """The standard deviation that a Gaussian ``cover`` stands for; 0 for any other."""
    event = None if cover is None else cover.client.event
    if not isinstance(event, GaussianDpEvent):
        return 0.0
    return float(event.noise_multiplier) * round.bound * (round.lengthening if at_server else 1.0)


def checked_cover(link: Mechanism, round: ChannelRound) -> Cover:
    """What ``link`` states of its noise in ``round``, or that it claims nothing where that cannot be meant.

    Raises:
        ConfigError: it states something that is no cover.
    """
    name, cover = type(link).__name__, link.cover(round)
    if cover is None:
        return Cover.nothing(f"{name} states no cover in this round")
    if not isinstance(cover, Cover) or not all(isinstance(cost, Cost) for cost in (cover.client, cover.sample)):
        raise ConfigError(
            f"{name}.cover returned {brief(repr(cover))}; return Cover.gaussian(GaussianDpEvent(…)), a Cover of two "
            "Costs, or None"
        )
    if shipped(type(link)):
        return cover
    events = [event for cost in (cover.client, cover.sample) for event in _parts(cost.event)]
    if any(isinstance(event, _SAMPLED) and getattr(event, "sampling_probability", 0.0) < 1 for event in events):
        return Cover.nothing(
            f"{name} states a cost that sampling has lowered, and those alone are charged who were drawn; state the "
            "cost of a round in which a client takes part, and the other as amplified"
        )
    if round.length > 1 and any(isinstance(event, LaplaceDpEvent) for event in events):
        return Cover.nothing(
            f"{name} states Laplace noise, which covers what moves by so much in the L1 norm, and updates are bounded "
            "in the L2 norm, where it covers less the longer they are"
        )
    return cover


def _parts(event: DpEvent | None) -> Iterator[DpEvent]:
    if event is not None:
        yield event
        for part in getattr(event, "events", None) or [getattr(event, "event", None)]:
            yield from _parts(part)


def add_at_server(link: Mechanism, total: Tensors, noise: ServerNoise, round: ChannelRound) -> None:
    """Let ``link``, a noise, do its part with the sums over the cohort, in place.

    Raises:
        ConfigError: it made something else of one of them.
    """
    shapes = {name: value.shape for name, value in total.items()}
    link.at_server(total, noise, round)
    if shipped(type(link)):
        return
    for name, shape in shapes.items():
        made = plain(total.get(name))
        if made is None or made.shape != shape or not made.dtype.is_floating_point:
            said = "nothing" if made is None else f"{tuple(made.shape)} numbers of {made.dtype}"
            raise ConfigError(
                f"{type(link).__name__}.at_server left {said} of the sum '{name}' of shape {tuple(shape)}; change sums "
                "in place, as by noise.stream.add_gaussian_"
            )
    if link.adds_at == "server":
        total["update"] = on_a_grid(link, total["update"], round.bound)


def on_a_grid(link: Mechanism, update: Tensor, bound: float) -> Tensor:
    """What ``link`` made of an update with noise of its own, as multiples of a public step of about ``bound`` · 2⁻²⁰.

    Below the last places of a noisy number lie those of the update: a small number that was added to noise, or that
    noise was added to, leaves bits that no other could have left.
    """
    if shipped(type(link)) or not 0 < bound < math.inf:
        return update
    step = release_grid(bound)
    return (update / step).round_().mul_(step)
