"""A size mechanism in one file: randomised response on a coarse grid of sizes."""

import math
from dataclasses import dataclass

import numpy as np

from privfl.privacy.sizes.local_randomizers import pure_cost
from privfl.privacy.sizes.mechanism import SizeMechanism


@dataclass(frozen=True)
class CoarseResponse(SizeMechanism):
    """A size is rounded at random to one of ``levels`` sizes, unbiasedly, and that one answers by k-ary response.

    The answer is the truth with probability α = (e^ε − 1)/(e^ε − 1 + levels) and any level else: ε-LDP, because
    α + (1 − α)/levels is e^ε·(1 − α)/levels, and rounding before it only mixes answers that keep this ratio.
    """

    levels: int = 3

    @property
    def honesty(self):
        return 1.0 if self.epsilon == math.inf else math.expm1(self.epsilon) / (math.expm1(self.epsilon) + self.levels)

    def randomise(self, truths, stream):
        step = (self.range.hi - self.range.lo) / (self.levels - 1)
        place = (truths - self.range.lo) / step
        place = np.floor(place) + (stream.uniform(len(truths)) < place - np.floor(place))
        honest = stream.bernoulli(np.full(len(truths), self.honesty), len(truths))
        return self.range.lo + step * np.where(honest, place, stream.integers(0, self.levels - 1, len(truths)))

    def unbiased(self, responses):
        return (responses - (1 - self.honesty) * self.range.centre) / self.honesty

    def response_variance(self, truths):
        grid = np.linspace(self.range.lo, self.range.hi, self.levels)
        below = np.minimum(np.searchsorted(grid, truths, "right") - 1, self.levels - 2)
        square = truths**2 + (truths - grid[below]) * (grid[below + 1] - truths)
        second = self.honesty * square + (1 - self.honesty) * np.mean(grid**2)
        return (second - (self.honesty * truths + (1 - self.honesty) * self.range.centre) ** 2) / self.honesty**2

    def support(self):
        return self.range.lo, self.range.hi

    def client_cost(self):
        return pure_cost(self.epsilon)
