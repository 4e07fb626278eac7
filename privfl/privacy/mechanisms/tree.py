"""Correlated noise by binary trees: each prefix sum of rounds is put together from few noisy sums over blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.correlated import CorrelatedNoiseState, PlannedNoise, check_multiplier
from privfl.privacy.mechanisms.mechanism import AddsAt, ChannelRound, ChannelRun, Cover, Kind, Mechanism
from privfl.privacy.mechanisms.participation import Array, ParticipationPattern
from privfl.privacy.noise.source import NoiseSource
from privfl.validation import check_count


@dataclass(frozen=True)
class TreeNoise(Mechanism):
    """Noise of DP-FTRL at the server (Kairouz et al., "Practical and private (deep) learning without sampling", 2021).

    Each node of a binary tree over the rounds stands for the noisy sum of its block of rounds. A prefix sum adds up the
    largest complete blocks; each block's sum is estimated with the smallest variance from all nodes within it (Honaker
    2015, from below, which is all that can be known in time). A tree restarts before a client can return to it.

    Guarantee: for one client whose contribution is left out, the whole run is one Gaussian mechanism with this noise
    multiplier, for who sees the noisy sums only, if the client takes part at most once in each tree. A round touches
    the nodes above it: ⌊log₂ restart⌋ + 1 at most. Nothing is assumed about how cohorts are drawn.

    Unlike the paper's, the noise multiplier is that of the run and not of a node, and a tree whose length is no power
    of two is not completed by virtual rounds.

    Args:
        noise_multiplier: z ≥ 0 *of the whole run*: the standard deviation of one node's noise is z × the bound on one
            client's contribution to one sum × √(nodes that one client's rounds touch).
        restart: rounds of a tree; ``None`` takes all rounds in one tree if no client returns, else the largest power of
            two that fits between two participations. 1 is independent noise.

    ====================================  ==================================================================
    edge case                             what happens
    ====================================  ==================================================================
    ``noise_multiplier = 0``              nothing is added; the claim is ε = ∞
    the last tree is not complete         only its complete blocks have noise, and only they cost
    clients may return within a tree      refused: the claim would need several rounds in one node
    clients may return in the next round  refused unless ``restart`` is given: nothing would be correlated
    NaN, negative, infinite               :class:`~privfl.errors.ConfigError`
    ====================================  ==================================================================
    """

    kind: ClassVar[Kind] = "noise"

    noise_multiplier: float
    restart: int | None = None

    def __post_init__(self) -> None:
        check_multiplier("TreeNoise", self.noise_multiplier)
        if self.restart is not None:
            check_count("TreeNoise's restart", self.restart)

    @property
    def adds_at(self) -> AddsAt:
        """At the server, which sees all rounds."""
        return "server"

    def for_run(self, run: ChannelRun) -> PlannedNoise:
        """The noise of one run, whose cost depends on how clients return."""
        return PlannedNoise(self.plan(run.pattern, run.bound * run.lengthening))

    def cover(self, round: ChannelRound) -> Cover:
        """Nothing before it is planned; then what :class:`~privfl.privacy.mechanisms.correlated.PlannedNoise` says."""
        return Cover.nothing("TreeNoise is not planned for the run")

    def plan(self, pattern: ParticipationPattern, bound: float) -> TreePlan:
        """This noise for a run in which clients keep to ``pattern`` and add vectors of norm at most ``bound``.

        Raises:
            ConfigError: clients return too early.
        """
        length = pattern.rounds if pattern.participations == 1 else 1 << pattern.separation.bit_length() - 1
        if self.restart is None and length == 1 < pattern.rounds:
            raise ConfigError(
                "TreeNoise has nothing to correlate, because a client may take part in two rounds running; use the "
                "cohort rotation"
            )
        length = min(length if self.restart is None else self.restart, pattern.rounds)
        if not pattern.apart(length):
            raise ConfigError(
                f"TreeNoise restarts after {length} rounds, but a client may return after {pattern.separation}; let "
                f"it restart after at most {pattern.separation} rounds, or give a cohort rotation with a longer period"
            )
        return TreePlan(self.noise_multiplier, pattern, bound, length)


class TreePlan(CorrelatedNoiseState):
    """:class:`TreeNoise` for one run; ``length`` is the number of rounds of a tree (the last one may be shorter)."""

    def __init__(self, noise_multiplier: float, pattern: ParticipationPattern, bound: float, length: int) -> None:
        rounds = np.arange(pattern.rounds)
        place, tree = rounds % length, rounds // length
        size = np.minimum(length, pattern.rounds - tree * length)
        levels = range(length.bit_length())
        nodes = sum(((place >> level) + 1 << level <= size).astype(np.float64) for level in levels)
        errors = tree * _variance(length) + np.array([_variance(int(count)) for count in place + 1])
        super().__init__(noise_multiplier, pattern, bound, np.asarray(nodes), errors)
        self.length = length
        self._forget()

    def _forget(self) -> None:
        self._blocks: dict[tuple[int, int], Array] = {}

    def _unit_noise(self, round: int, size: int, source: NoiseSource) -> Array:
        first, count = round - round % self.length, round % self.length
        before, after = list(_blocks(first, count)), list(_blocks(first, count + 1))
        kept = {block: self._estimate(*block, size, source) for block in {*before, *after}}
        self._blocks = {block: kept[block] for block in after}
        noise = kept[after[-1]].copy()
        for block in before:
            if block not in after:
                noise -= kept[block]
        return noise

    def _estimate(self, level: int, first: int, size: int, source: NoiseSource) -> Array:
        """The noise [size] on the best estimate of the sum of the 2^level rounds from ``first``."""
        if (level, first) in self._blocks:
            return self._blocks[level, first]
        node = source.stream("server", "correlated", level, first).normal(size)
        if level == 0:
            return node
        halves = self._estimate(level - 1, first, size, source) + self._estimate(
            level - 1, first + (1 << level - 1), size, source
        )
        weight = _block_variance(level)  # the node has variance 1, so its share is the precision 1 over the total one
        node *= weight
        halves *= 1 - weight
        node += halves
        return node


def _blocks(first: int, count: int) -> Iterator[tuple[int, int]]:
    """The largest complete blocks (level, first round) that make up ``count`` rounds from ``first`` on."""
    for level in reversed(range(count.bit_length())):
        if count >> level & 1:
            yield level, first
            first += 1 << level


def _block_variance(level: int) -> float:
    """Variance of the best estimate of a block from its nodes: one over their precisions 1 + 1/2 + … + 2^−level."""
    return 1 / (2 - 2.0**-level)


def _variance(count: int) -> float:
    """Variance of the noise on the sum of the first ``count`` rounds of a tree."""
    return sum(_block_variance(level) for level, _ in _blocks(0, count))
