"""Noise from outside, tried on public numbers before a run: that it is there, comes from its key, and is not too small.

What a class states of its noise is its author's word. Some of it is seen by looking, and a mistake that is easily made
shows: noise that is written to a copy, that a generator of one's own draws in every run alike, or that is scaled twice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import scipy
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
from privfl.privacy.mechanisms.mechanism import ChannelRound, ChannelRun, Cover, Mechanism, ServerNoise, Tensors
from privfl.privacy.noise.source import NoiseSource, release_grid
from privfl.references import shipped

ENOUGH = 2048
"""Numbers that are tried: of independent Gaussian noise they have less than 0.9 of its deviation with 4·10⁻¹¹."""
LEAST = 0.9
"""Share of the deviation that a Gaussian cover stands for, below which nothing is claimed."""
KEYS = 64
"""Under how many keys each number of an update is looked at by itself, or fewer, but at least 8, for long updates."""
DEPENDENT = 0.1
"""Share of the deviation by which noise may differ with the update, as rounding makes it, under a Gaussian cover."""
FALSE_ALARM = 1e-9
"""How often right noise is doubted for what one of its numbers looks like."""
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
        return _doubt_by_place(link, round, wanted, unchanged=float((once == given).double().mean()))
    except Exception as error:
        return f"{name} could not be tried on an update of zeros ({brief(f'{type(error).__name__}: {error}', 200)})"


def _doubt_by_place(link: Mechanism, round: ChannelRound, wanted: float, unchanged: float) -> str:
    """Why noise is doubted whose numbers together are as large as ``wanted``; empty if nothing was found.

    All of an update must be noisy, each number by itself and with noise of its own. An update of zeros shows the noise
    without a last place of anything else.
    """
    name, keys = type(link).__name__, min(KEYS, max(8, 2**24 // max(round.length, 1)))
    own, zeros = copy.deepcopy(link), torch.zeros(round.length, dtype=_dtype(link))
    noise = torch.stack([_made(own, zeros.clone(), round, key, trial=-1) for key in range(keys)])
    if not torch.isfinite(noise).all():
        return f"{name} makes numbers that are not finite of an update of zeros; a client may well have one"
    bare = int((noise == 0).all(dim=0).sum())
    if bare and (wanted or round.length * unchanged**keys < FALSE_ALARM):  # else discrete noise that is seldom not 0
        return f"{name} adds no noise to {bare} of {round.length} numbers of an update of zeros; add it to every one"
    least = float(scipy.stats.chi2.ppf(FALSE_ALARM / max(round.length, 1), keys - 1) / (keys - 1)) ** 0.5
    thin = int((noise.std(dim=0) < least * wanted).sum())
    if thin:
        return (
            f"{name} adds noise to {thin} of {round.length} numbers that is far smaller than its cover stands "
            f"for, which is a standard deviation of {wanted:.3g}; add it to every one"
        )
    given = _values(link, round, trial=0)
    moved = float((_made(own, given.clone(), round, 0, trial=-1).double() - given - noise[0]).std(correction=0))
    if wanted and moved > DEPENDENT * wanted:
        return (
            f"{name} adds other noise to another update under the same key (by {moved:.3g} of a standard deviation of "
            f"{wanted:.3g}), and a Gaussian cover stands for noise that does not depend on the update; draw it without"
        )
    alike = _alike(noise)
    if alike:
        return (
            f"{name} adds noise to {alike} of {round.length} numbers that another one has already, so that "
            "their difference, or their sum, has none; draw one for each number"
        )
    return ""


def _alike(noise: Tensor) -> int:
    """How many columns of ``noise`` [keys, numbers] are those of others, up to their sign, which is no accident."""
    numbers = (noise * torch.where(noise[0] < 0, -1.0, 1.0).to(noise.dtype) + 0.0).double().numpy()
    multipliers = np.random.default_rng(0).integers(0, 2**63, len(numbers), dtype=np.uint64) | np.uint64(1)
    hashes = multipliers @ numbers.view(np.uint64)
    order = np.argsort(hashes)
    near = np.flatnonzero(np.diff(hashes[order]) == 0)
    found = int((numbers[:, order[near]] == numbers[:, order[near + 1]]).all(axis=0).sum())
    one, other = (np.unique(row, return_counts=True) for row in numbers[:2])
    _, first, second = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    equal = float(one[1][first] @ other[1][second]) / numbers.shape[1] ** 2  # chance that two numbers are
    return found if numbers.shape[1] ** 2 * equal ** len(numbers) < FALSE_ALARM else 0


def _dtype(link: Mechanism) -> torch.dtype:
    return torch.float64 if link.adds_at == "server" else torch.float32


def _trials(length: int) -> int:
    return math.ceil(ENOUGH / max(length, 1))


def _values(link: Mechanism, round: ChannelRound, trial: int) -> Tensor:
    """Public numbers [length] within the bound; sums are float64."""
    generator = torch.Generator().manual_seed(trial)
    values = torch.randn(round.length, generator=generator, dtype=_dtype(link))
    return values * (round.bound / (2 * float(torch.linalg.vector_norm(values)) + 1e-30))


def _released(link: Mechanism, round: ChannelRound, key: int) -> Iterator[Tensor]:
    """What becomes of the public numbers of each trial under ``key``."""
    own = copy.deepcopy(link)
    for trial in range(_trials(round.length)):
        yield _made(own, _values(link, round, trial), round, key, trial).double()


def _made(link: Mechanism, values: Tensor, round: ChannelRound, key: int, trial: int) -> Tensor:
    """What ``link`` makes of an update of these ``values``, or of a sum, under ``key``."""
    source = NoiseSource.from_key(key).apart("trial", trial)
    if link.adds_at == "server":
        beside = {} if round.clip is None else round.clip.side_values
        total = {"update": values, **{name: torch.zeros((), dtype=torch.float64) for name in beside}}
        link.at_server(total, ServerNoise(source.stream("server", 0), source), round)
        made = plain(total["update"])
    else:
        made = plain(link.at_client(values, source.stream("client", 0, 0), round))
    if made is None:
        raise TypeError("it made no tensor of an update")
    return made


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
