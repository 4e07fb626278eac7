"""What the chain does to one client's update before it leaves, and the bound that is kept to whatever a link does."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privfl.errors import ConfigError, PrivacyError, brief
from privfl.plain_tensors import plain
from privfl.privacy.channel import link_noise
from privfl.privacy.channel.chain import Chain
from privfl.privacy.channel.own_noise import on_a_grid
from privfl.privacy.mechanisms.clip import norm, scale_to_norm
from privfl.privacy.mechanisms.mechanism import ChannelRound, Mechanism
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.references import shipped

Look = Callable[[Mechanism | None], None]
"""Looks whether anything that a mechanism's code can reach has changed since clients began to train; ``None``: or that
of any part which clients run."""


class BrokenUpload(PrivacyError):
    """A mechanism made something of an update that cannot be added up."""


class NotFinite(BrokenUpload):
    """It has numbers that are not finite."""


def check_links(chain: Chain, round: ChannelRound, like: Tensor) -> None:
    """Let public numbers shaped as ``like`` pass the links of ``chain`` that are from outside, before clients train.

    What goes wrong with these would go wrong with every update. Each link that can be copied is tried as a copy, so
    that nothing of the trial stays with it; one that cannot be copied is not tried.

    Raises:
        ConfigError: a link fails, or makes something of them that cannot be added up.
    """
    if all(shipped(type(link)) for link in chain.links):
        return
    noise = NoiseSource.from_key(0).apart("trial").stream("client", 0, 0)
    numbers = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    update = within_bound(numbers, min(round.bound, 1.0) / 2)
    for link in chain.links:
        if shipped(type(link)) or link.kind == "sum" or link.adds_at == "share":
            continue
        name = type(link).__name__
        try:
            alone = replace(chain, links=(copy.deepcopy(link),))
        except Exception:  # whatever objects of others raise that are not to be copied
            continue
        try:
            pass_links(alone, update.clone(), noise, round, broken=False)
        except NotFinite as error:
            raise ConfigError(
                f"{name} of privacy.update makes something that is not finite of {update.numel()} public numbers "
                "before the run; let its at_client return finite numbers"
            ) from error
        except BrokenUpload as error:
            raise ConfigError(f"privacy.update, tried on public numbers before the run: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"{name} of privacy.update fails on {update.numel()} public numbers before the run "
                f"({brief(f'{type(error).__name__}: {error}', 200)}); let its at_client take any update"
            ) from error


def pass_links(
    chain: Chain, update: Tensor, noise: NoiseStream, round: ChannelRound, look: Look | None = None, *, broken: bool
) -> tuple[Tensor, dict[str, float]]:
    """``update`` as it leaves the client, and the numbers that go with it, which are zeros if the upload is ``broken``.

    Where noise is added, or is going to be, the update that it is added to keeps to the bound of ``round``, whatever
    the links before it did. Noise in shares is added later, to the integers of the secure sum. ``look`` is called
    after every link from outside, and before one is handed an update with noise: it could have noted what was there
    before, and another client's could take it away again.

    Raises:
        BrokenUpload: a mechanism made something of the update that cannot be added up.
    """
    beside: dict[str, float] = {}
    noisy = False
    for place, link in enumerate(chain.links):
        if link.kind == "sum" or (broken and link.kind == "transform"):  # what made it broken would do so again
            continue
        told = round
        if link.adds_at == "client":
            update = within_bound(_finite(update), round.bound)  # what is broken draws no noise that is thrown away
        if link.side_values:
            beside |= dict.fromkeys(link.side_values, 0.0) if broken else _report(link, update, round)
        if not shipped(type(link)):  # what lies beside the update in memory, or is written on it, has no noise
            update, told = update.detach().clone(), replace(round)
            if noisy and look is not None:
                look(link)
        update = _as_update(link, link.at_client(update, link_noise.at_client(place, link, noise), told), update)
        if link.adds_at == "client":
            update = on_a_grid(link, update, round.bound)
        if told is not round and look is not None:
            look(link)
        noisy = noisy or link.adds_at == "client"
    if chain.noise_on_sum:
        update = within_bound(update, round.bound)
    return _finite(update), beside


def _finite(update: Tensor) -> Tensor:
    """``update``, if it is finite."""
    if not math.isfinite(float(update.sum())) and not bool(torch.isfinite(update).all()):
        raise NotFinite("the mechanisms of privacy.update made an update that is not finite")
    return update


def within_bound(update: Tensor, bound: float) -> Tensor:
    """``update``, or a copy scaled down to norm ``bound`` if it is longer.

    Without any tolerance: the norm is added up in float64, and what :class:`~privfl.privacy.mechanisms.clip.Clip` has
    clipped is shorter than its bound by 1e-6 of it, more than the rounding of float32 (about 1e-7) can undo.
    """
    return update if norm(update) <= bound else scale_to_norm(update.clone(), bound)


def _report(link: Mechanism, update: Tensor, round: ChannelRound) -> dict[str, float]:
    """The numbers that ``link`` sends beside ``update``: those that it declares, within their magnitudes."""
    report = link.side_report(update, round)
    found = {name: float(report.get(name, math.nan)) for name in link.side_values}
    for name, value in found.items():
        if not abs(value) <= link.side_values[name]:
            raise BrokenUpload(f"{type(link).__name__} sent a '{name}' outside of ±{link.side_values[name]:g}")
    return found


def _as_update(link: Mechanism, given: Any, update: Tensor) -> Tensor:
    """What is ``given`` by ``link`` for ``update``, if it can take its place."""
    name = type(link).__name__
    made = plain(given)
    if made is None:
        raise BrokenUpload(f"{name} made a {type(given).__name__} of an update; let at_client return a plain tensor")
    if made.shape != update.shape:
        raise BrokenUpload(
            f"{name} made an update of shape {tuple(made.shape)} of one of {tuple(update.shape)}; let at_client return "
            "one of the shape that it is given"
        )
    if made.dtype not in (torch.float32, torch.float64):
        raise BrokenUpload(f"{name} made an update of {made.dtype}; return the numbers as float32")
    return made.contiguous()
