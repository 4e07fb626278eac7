"""What the chain does to one client's update before it leaves, and the bound that is kept to whatever a link does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays
from privfl.errors import PrivacyError
from privfl.privacy.channel.chain import Chain
from privfl.privacy.mechanisms.clip import norm, scale_to_norm
from privfl.privacy.mechanisms.mechanism import ChannelRound, Mechanism
from privfl.privacy.noise.source import NoiseStream

SAVED = 2.6e-10
"""Seconds that a number takes less by the compiled sum (AMD EPYC)."""
DECIDED = 1e-9
"""Difference of a norm in float64 from the bound, as a share of it, that no order of adding up makes."""


class BrokenUpload(PrivacyError):
    """A mechanism made something of an update that cannot be added up."""


def pass_links(
    chain: Chain, update: Tensor, noise: NoiseStream, round: ChannelRound, *, broken: bool
) -> tuple[Tensor, dict[str, float]]:
    """``update`` as it leaves the client, and the numbers that go with it, which are zeros if the upload is ``broken``.

    Where noise is added, or is going to be, the update that it is added to keeps to the bound of ``round``, whatever
    the links before it did. Noise in shares is added later, to the integers of the secure sum.

    Raises:
        BrokenUpload: a mechanism made something of the update that cannot be added up.
    """
    beside: dict[str, float] = {}
    for link in chain.links:
        if link.kind == "sum":
            continue
        if link.adds_at == "client":
            update = within_bound(_finite(update), round.bound)  # what is broken draws no noise that is thrown away
        if link.side_values:
            beside |= dict.fromkeys(link.side_values, 0.0) if broken else _report(link, update, round)
        update = _as_update(link, link.at_client(update, noise, round), update)
    if chain.noise_on_sum:
        update = within_bound(update, round.bound)
    return _finite(update), beside


def _finite(update: Tensor) -> Tensor:
    """``update``, if it is finite."""
    if not math.isfinite(float(update.sum())) and not bool(torch.isfinite(update).all()):
        raise BrokenUpload("the mechanisms of privacy.update made an update that is not finite")
    return update


def within_bound(update: Tensor, bound: float) -> Tensor:
    """``update``, or a copy scaled down to norm ``bound`` if it is longer.

    Without any tolerance: the norm is added up in float64, and what :class:`~privfl.privacy.mechanisms.clip.Clip` has
    clipped is shorter than its bound by 1e-6 of it, more than the rounding of float32 (about 1e-7) can undo.
    """
    return update if _keeps_to(update, bound) else scale_to_norm(update.clone(), bound)


def _keeps_to(update: Tensor, bound: float) -> bool:
    """Whether ``norm(update) <= bound``; a compiled sum settles it wherever its rounding cannot decide."""
    if type(update.data) is Tensor and update.device.type == "cpu":
        loop = once_it_pays(_square, update.numel() * SAVED, reorders=True)
        if loop is not None:
            length = math.sqrt(loop(update.detach().reshape(-1).numpy()))
            if abs(length - bound) > DECIDED * bound:
                return length <= bound
    return norm(update) <= bound


def _square(values: NDArray[Any]) -> float:
    """The squared L2 norm of ``values`` [size], float32 or float64, added up in float64 in any order; compiled."""
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])  # the square of a large float32 overflows
        total += value * value
    return total


def _report(link: Mechanism, update: Tensor, round: ChannelRound) -> dict[str, float]:
    """The numbers that ``link`` sends beside ``update``: those that it declares, within their magnitudes."""
    report = link.side_report(update, round)
    found = {name: float(report.get(name, math.nan)) for name in link.side_values}
    for name, value in found.items():
        if not abs(value) <= link.side_values[name]:
            raise BrokenUpload(f"{type(link).__name__} sent a '{name}' outside of ±{link.side_values[name]:g}")
    return found


def _as_update(link: Mechanism, made: Any, update: Tensor) -> Tensor:
    """What ``link`` has ``made`` of ``update``, if it can take its place."""
    name = type(link).__name__
    if not isinstance(made, Tensor):
        raise BrokenUpload(f"{name} made a {type(made).__name__} of an update; let at_client return a tensor")
    if made.shape != update.shape:
        raise BrokenUpload(f"{name} made an update of shape {tuple(made.shape)} of one of {tuple(update.shape)}")
    if made.dtype not in (torch.float32, torch.float64):
        raise BrokenUpload(f"{name} made an update of {made.dtype}; return the numbers as float32")
    return made.contiguous()
