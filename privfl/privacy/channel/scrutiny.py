"""Noise from outside, looked at number by number under many keys: where it is, how large, and what it depends on.

All numbers together may have noise enough though a last layer has none, though several share one draw, or though its
size tells of the update. Each sentence here is about the released numbers alone, so a mechanism may keep state.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.plain_tensors import plain
from privfl.privacy.mechanisms.mechanism import ChannelRound, Mechanism, ServerNoise
from privfl.privacy.noise.source import NoiseSource

Numbers = NDArray[np.float64]
KEYS = 64
"""Under how many keys an update of zeros is looked at, or fewer, but at least 8, where it is long."""
PLACES = 2**20
"""Of longer updates so many numbers are looked at: the first, the last, and some between."""
FALSE_ALARM = 1e-9
"""Chance at which a look at variances doubts independent Gaussian noise; counts of equal numbers have it roughly."""
SPREAD = 4 / 3
"""By what factor the variance of released numbers may depend on the update under a Gaussian cover."""
LONGER = 1.1
"""By what factor an update may be lengthened before its noise, which is sized for its bound."""


def doubt_by_place(link: Mechanism, round: ChannelRound, wanted: float, unchanged: float) -> str:
    """Why noise is doubted whose numbers together are as large as ``wanted`` (0: unknown); empty if nothing was found.

    Of other updates it left a share of ``unchanged`` numbers as they were.

    An update of zeros shows the noise without a last place of anything else; one as long as the bound allows shows
    whether the noise depends on it.
    """
    name, length = type(link).__name__, round.length
    places = _places(length)
    keys = min(KEYS, max(8, 2**23 // max(length, 1)))
    noise, sums = _looked_at(link, round, torch.zeros(length, dtype=dtype_of(link)), keys, places)
    if not np.isfinite(noise).all():
        return f"{name} makes numbers that are not finite of an update of zeros; a client may well have one"
    still = (noise == noise[0]).all(axis=0)
    expected = length * (unchanged**keys if still.all() else _all_alike(noise))
    if still.any() and scipy.stats.poisson.sf(still.sum() - 1, expected) < FALSE_ALARM:
        return f"{name} adds no noise to {_of(still, length)} of an update of zeros; add it to every one"
    least = wanted * _smallest(keys - 1, max(length, 1))
    thin = ~still & (noise.std(axis=0, ddof=1) < least)
    if thin.any():
        return (
            f"{name} adds noise to {_of(thin, length)} that is far smaller than its cover stands for, which is a "
            f"standard deviation of {wanted:.3g}; add it to every one"
        )
    if found := _shared(name, noise, sums, wanted, length):
        return found
    return _dependence(link, round, wanted, places) if wanted else ""


def _of(found: NDArray[np.bool_], length: int) -> str:
    looked = "" if len(found) == length else f" looked at, of {length},"
    return f"{int(found.sum())} of {len(found)} numbers{looked}"


def _shared(name: str, noise: Numbers, sums: Numbers, wanted: float, length: int) -> str:
    """Why ``noise`` [keys, numbers] is not each number's own; ``sums`` [keys] are of all numbers."""
    alike = _multiples(noise)
    if alike.any():
        return (
            f"{name} adds noise to {_of(alike, length)} that is a multiple of another one's, so that together they "
            "have less; draw one for each number"
        )
    short = noise.T if noise.shape[1] < len(noise) else noise
    spread = np.linalg.eigvalsh(short @ short.T)
    if noise.shape[1] > 1 and spread[0] < 1e-9 * spread[-1] and not _few_values(noise):
        return f"{name} adds noise of fewer draws than an update has numbers; draw one for each number"
    if np.sqrt(np.mean(sums**2) / max(length, 1)) < wanted * _smallest(len(sums), 1):
        return f"{name} adds noise that cancels in the sum over all numbers; draw one for each, and subtract none"
    return ""


def _dependence(link: Mechanism, round: ChannelRound, wanted: float, places: NDArray[np.int64]) -> str:
    """Why the noise is doubted by what becomes of an update of zeros and of one as long as the bound allows."""
    name, length = type(link).__name__, round.length
    keys = min(8 * KEYS, max(4, 2**13 // max(length, 1)))
    given = torch.randn(length, generator=torch.Generator().manual_seed(0), dtype=dtype_of(link))
    given *= round.bound / (float(torch.linalg.vector_norm(given)) + 1e-30)
    (without, _), (beside, _) = (_looked_at(link, round, one, keys, places) for one in (torch.zeros_like(given), given))
    before, after = (float(one.var(axis=0, ddof=1).mean()) for one in (without, beside))
    chance = float(scipy.stats.f.isf(FALSE_ALARM, len(places) * (keys - 1), len(places) * (keys - 1)))
    if max(before, after) > max(SPREAD, chance) * min(before, after):
        return (
            f"{name} adds noise of standard deviation {before**0.5:.3g} to an update of zeros and {after**0.5:.3g} to "
            "a longer one, and a Gaussian cover stands for noise that does not depend on the update; scale it by none "
            "of it"
        )
    moved = beside - without
    error = math.sqrt(float(moved.var(axis=0, ddof=1).sum()) / keys)
    allowed = LONGER * round.bound * (round.lengthening if link.adds_at == "server" else 1.0)
    if (reached := float(np.linalg.norm(moved.mean(axis=0)))) > allowed + 6 * error:
        return (
            f"{name} moves what it releases by {reached:.3g} for an update of length {round.bound:.3g}, which is the "
            "bound that its noise is sized for; add nothing but noise that follows from the update"
        )
    return ""


def _looked_at(
    link: Mechanism, round: ChannelRound, values: Tensor, keys: int, places: NDArray[np.int64]
) -> tuple[Numbers, Numbers]:
    """The released numbers [keys, places] and their sums [keys], each by a copy that has seen no other update."""
    numbers, sums = np.empty((keys, len(places))), np.empty(keys)
    for key in range(keys):
        made = made_of(copy.deepcopy(link), values.clone(), round, key, trial=0).double().numpy()
        numbers[key], sums[key] = made[places], made.sum()
    return numbers, sums


def made_of(link: Mechanism, values: Tensor, round: ChannelRound, key: int, trial: int) -> Tensor:
    """What ``link`` makes of an update of these ``values``, or of a sum, under ``key``.

    Raises:
        TypeError: no tensor of the update's length.
    """
    source, length = NoiseSource.from_key(key).apart("trial", trial), len(values)
    if link.adds_at == "server":
        beside = {} if round.clip is None else round.clip.side_values
        total = {"update": values, **{name: torch.zeros((), dtype=torch.float64) for name in beside}}
        link.at_server(total, ServerNoise(source.stream("server", 0), source), round)
        made = plain(total["update"])
    else:
        made = plain(link.at_client(values, source.stream("client", 0, 0), round))
    if made is None or made.shape != (length,):
        raise TypeError("it made no tensor of an update")
    return made


def dtype_of(link: Mechanism) -> torch.dtype:
    """Of what ``link`` is handed: sums are float64."""
    return torch.float64 if link.adds_at == "server" else torch.float32


def _places(length: int) -> NDArray[np.int64]:
    if length <= PLACES:
        return np.arange(length)
    ends = np.concatenate([np.arange(PLACES // 4), np.arange(length - PLACES // 4, length)])
    return np.union1d(ends, np.random.default_rng(0).integers(0, length, PLACES // 2))


def _smallest(keys: int, numbers: int) -> float:
    """Below which share of its deviation the root mean square of ``keys`` Gaussian draws never is, of any number."""
    return math.sqrt(float(scipy.stats.chi2.ppf(FALSE_ALARM / numbers, keys)) / keys)


def _all_alike(noise: Numbers) -> float:
    """The chance that all draws for one number are the same, by how often each value is drawn; 0 for a density."""
    shares = np.unique(noise, return_counts=True)[1] / noise.size
    return float((shares[shares * noise.size > 1] ** len(noise)).sum())


def _few_values(noise: Numbers) -> bool:
    """Whether numbers are so often 0, or another value, that draws depend on each other by accident."""
    return bool(np.unique(noise[0], return_counts=True)[1].max() > 0.01 * noise.shape[1] + 1)


def _multiples(noise: Numbers) -> NDArray[np.bool_]:
    """Which columns of ``noise`` [keys, numbers] are multiples of others, which is no accident."""
    lead = noise[np.abs(noise).argmax(axis=0), np.arange(noise.shape[1])]
    numbers = np.round(noise / np.where(lead == 0, 1.0, lead), 4) + 0.0
    multipliers = np.random.default_rng(0).integers(0, 2**63, len(numbers), dtype=np.uint64) | np.uint64(1)
    hashes = multipliers @ numbers.view(np.uint64)
    order = np.argsort(hashes)
    near = np.flatnonzero(np.diff(hashes[order]) == 0)
    found = np.zeros(noise.shape[1], dtype=bool)
    found[order[near + 1]] = (numbers[:, order[near]] == numbers[:, order[near + 1]]).all(axis=0)
    one, other = (np.unique(row, return_counts=True) for row in numbers[:2])
    _, first, second = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    equal = float(one[1][first] @ other[1][second]) / noise.shape[1] ** 2  # chance that two numbers are
    by_accident = noise.shape[1] ** 2 * equal ** (len(numbers) - 1) > FALSE_ALARM
    return np.zeros_like(found) if by_accident else found
