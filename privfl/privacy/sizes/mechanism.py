"""Sizes under local differential privacy: one noisy answer per client, an unbiased estimate of the total on the server.

FedSampling (Qi et al., IJCAI 2023) needs the total number of samples N without learning any client's size n_u. Each
client answers once with a locally randomised size; the server sums the answers into N̂ and samples at rate K/N̂.
The equations here and in the modules beside it are numbered (1) clipping, (2) lies, (3) response, (4) α and ε,
(5) estimator, (6) variance, (7) clipping bias, (8) floors, (9) rate; the paper's own numbers did not survive its text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privfl.errors import ConfigError, DataError
from privfl.privacy.accounting.release import (
    OBSERVERS,
    SIZE_RESPONSE,
    Cost,
    Observer,
    Release,
    Unit,
    everywhere,
    unprotected,
)
from privfl.privacy.accounting.stated import stating_class, unstated
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.sizes.estimate import SizeEstimate
from privfl.privacy.sizes.own_mechanisms import why_not_random
from privfl.references import of_privfl
from privfl.validation import Settings

Convention = Literal["paper", "code"]
Refresh = Literal["once", "every_round"] | int
Values = NDArray[np.float64]

MAX_FINITE_EPSILON = 32.0  # beyond it the coin that protects falls below the resolution of floating-point numbers


@dataclass(frozen=True)
class ResponseRange:
    """The sizes {lo, …, hi} that an answer can speak of; truths are clipped to it and lies are drawn from it.

    One object for both: were a truth clipped at a size that no lie can take, that answer would reveal the client.
    """

    lo: int
    hi: int

    @property
    def domain(self) -> int:
        """D, the number of sizes in the range."""
        return self.hi - self.lo + 1

    @property
    def centre(self) -> float:
        """μ_F, the mean of a uniform lie."""
        return (self.lo + self.hi) / 2

    @property
    def half_width(self) -> float:
        """(hi − lo)/2."""
        return (self.hi - self.lo) / 2

    def clip(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Equation (1), at both ends: a size below lo is as revealing as one above hi."""
        return np.clip(sizes, self.lo, self.hi)

    def uniform(self, n: int, stream: NoiseStream) -> NDArray[np.int64]:
        """Equation (2): ``n`` sizes uniform on the range."""
        return stream.integers(self.lo, self.hi, n)

    def to_unit(self, truths: ArrayLike) -> Values:
        """Clipped sizes mapped affinely to [−1, 1], float64."""
        return (np.asarray(truths, dtype=np.float64) - self.centre) / self.half_width

    def from_unit(self, values: Values) -> Values:
        """The inverse of :meth:`to_unit`."""
        return self.centre + self.half_width * values


@dataclass(frozen=True)
class SizeMechanism(Settings, ABC):
    """A local randomiser for one client's size, with its unbiased estimator, exact variance and cost.

    Every answer is ε-locally differentially private: whatever two sizes a client might have, the probabilities of any
    answer differ by a factor of at most e^ε.

    Args:
        epsilon: ε of one answer, in nats. See the table.
        bound: M, the largest size that counts.
        lower: the smallest size, 1 as in the paper; 0 if clients without samples exist.
        convention: ``paper`` answers in {lower, …, M}, ``code`` in {lower, …, M−1} like the authors' programme.
        refresh: when a client answers afresh: ``once`` and never again (the answer is memoised), ``every_round``, or
            every k rounds. Each fresh answer costs ε again; see :class:`privfl.privacy.sizes.responses.SizeResponses`.

    ============================  =====================================================================
    ``epsilon``                   what happens
    ============================  =====================================================================
    (0, 32]                       ε-local differential privacy
    ``math.inf``                  the mechanism's limit, unprotected: the exact clipped size, but for Duchi's one
                                  bit, an unbiased rounding to the ends of the range
    0                             ConfigError: the answer says nothing, so no estimate exists
    negative, NaN                 ConfigError
    (32, ∞)                       ConfigError: it protects nothing and cannot be drawn exactly; write ``inf``
    ============================  =====================================================================

    Raises:
        ConfigError: ``epsilon`` as in the table, a range of fewer than two sizes, a negative ``lower``, an unknown
            ``convention``, or a ``refresh`` that is none of the three.
    """

    epsilon: float
    bound: int
    lower: int = 1
    convention: Convention = "paper"
    refresh: Refresh = "once"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if self.epsilon != math.inf and not 0 < self.epsilon <= MAX_FINITE_EPSILON:
            raise ConfigError(
                f"the size response has epsilon {self.epsilon}: choose one in (0, {MAX_FINITE_EPSILON:g}], "
                "or inf for no protection."
            )
        if self.lower < 0:
            raise ConfigError(f"the size response's lower end is {self.lower}: no size is negative, use 0 or 1.")
        if self.range.domain < 2:
            least = self.lower + (1 if self.convention == "paper" else 2)
            raise ConfigError(
                f"the size response's bound {self.bound} leaves fewer than two sizes from {self.lower} upwards "
                f"(convention '{self.convention}'): use a bound of at least {least}."
            )
        if isinstance(self.refresh, int) and self.refresh < 1:
            raise ConfigError(f"the size response is refreshed every {self.refresh} rounds: use 1 or more.")

    @property
    def range(self) -> ResponseRange:
        """The range of sizes, the only one there is: for clipping, for lies and for the estimator."""
        return ResponseRange(self.lower, self.bound if self.convention == "paper" else self.bound - 1)

    def respond(self, sizes: ArrayLike, stream: NoiseStream) -> NDArray[Any]:
        """One fresh answer per client.

        Args:
            sizes: the true sizes, non-negative integers, shape (clients,).
            stream: the coins of these answers, from :class:`privfl.privacy.noise.source.NoiseSource`.

        Returns:
            Answers, shape (clients,): int64 for randomised response, float64 otherwise.

        Raises:
            DataError: ``sizes`` are not non-negative integers.
        """
        return self.randomise(self.range.clip(_as_sizes(sizes)), stream)

    def estimate(self, responses: ArrayLike) -> SizeEstimate:
        """The total number of samples from the answers, equations (5) and (8).

        Raises:
            DataError: there is no answer, or one outside the range of the mechanism's answers.
        """
        answers = np.asarray(responses, dtype=np.float64)
        if answers.size == 0:
            raise DataError("no client answered with its size, so the total cannot be estimated: contact some clients.")
        low, high = self.support()
        slack = 1e-6 * (high - low)  # an answer at the edge may have been rounded outwards to the grid
        strange = answers[~((answers >= low - slack) & (answers <= high + slack) & np.isfinite(answers))]
        if strange.size:
            raise DataError(f"a size answer is {strange[0]}, outside [{low:g}, {high:g}]: refuse the client's message.")
        raw = float(np.sum(self.unbiased(answers)))
        floor = max(answers.size * self.range.lo, 1)
        value = min(max(raw, floor), answers.size * self.range.hi)
        return SizeEstimate(raw, float(value), answers.size, floored=raw < floor, capped=raw > value)

    def variance(self, sizes: ArrayLike) -> float:
        """The exact variance of the raw estimate for these true sizes, equation (6) or its counterpart."""
        return float(np.sum(self.response_variance(self.range.clip(_as_sizes(sizes)).astype(np.float64))))

    def clipping_bias(self, sizes: ArrayLike) -> int:
        """Equation (7): the expectation of the raw estimate minus the true total; negative if large clients exist."""
        true = _as_sizes(sizes)
        return int(np.sum(self.range.clip(true) - true))

    def worst_case_relative_sd(self, clients: int) -> float:
        """The largest standard deviation of the raw estimate over all sizes, relative to clients·max(lo, 1).

        Needs nothing private: the variance is quadratic in a size and symmetric about the centre of the range, so it
        is largest at the ends or at the size nearest to the centre.
        """
        if clients < 1:
            raise ConfigError(f"the number of clients is {clients}: at least one must answer.")
        corners = np.array([self.range.lo, (self.range.lo + self.range.hi) // 2, self.range.hi], dtype=np.float64)
        return math.sqrt(float(np.max(self.response_variance(corners))) / clients) / max(self.range.lo, 1)

    def require_precision(self, clients: int, max_relative_sd: float = 1.0) -> None:
        """Refuse a mechanism whose estimate could be mere noise, before any client is asked.

        A raw estimate near zero makes the sampling rate 1: every sample is used and nothing is amplified.

        Raises:
            ConfigError: :meth:`worst_case_relative_sd` exceeds ``max_relative_sd``.
        """
        worst = self.worst_case_relative_sd(clients)
        if worst > max_relative_sd:
            times = worst / max_relative_sd
            more = f", or {math.ceil(clients * times**2)} clients" if times < 1e6 else ""
            raise ConfigError(
                f"{type(self).__name__} with epsilon {self.epsilon:g} and bound {self.bound} over {clients} clients "
                f"estimates their total size with a relative standard deviation of up to {worst:.3g}, above "
                f"{max_relative_sd:g}: take a larger epsilon, a smaller bound or another size mechanism{more}."
            )

    def check_sizes(self, sizes: ArrayLike) -> list[str]:
        """Warnings, a sentence each, about sizes outside the range. They see the truth: never release them."""
        true = _as_sizes(sizes)
        total = int(true.sum())
        above, below = true[true > self.range.hi], true[true < self.range.lo]
        warnings = []
        if above.size:
            bias = int(np.sum(above - self.range.hi))
            warnings.append(
                f"{above.size} of {true.size} clients hold more than {self.range.hi} samples (up to {above.max()}), "
                f"so the estimated total is {bias} too low on average ({bias / total:.1%} of {total}): "
                "raise the bound or accept the bias."
            )
        if below.size:
            bias = int(np.sum(self.range.lo - below))
            warnings.append(
                f"{below.size} of {true.size} clients hold fewer than {self.range.lo} samples, so the estimated total "
                f"is {bias} too high on average: lower the lower end to {below.min()} or accept the bias."
            )
        return warnings

    def costs(self) -> Release:
        """What one fresh answer costs: the answer reaches the server, and the rate that it sets reaches the public.

        For ``client`` the truth may change from any size to any other, for ``sample`` by at most one. A replayed
        answer costs nothing. A subclass that changes anything of the class that states :meth:`client_cost`, and does
        not state it anew, claims nothing.
        """
        if self.epsilon == math.inf:
            return everywhere(SIZE_RESPONSE, unprotected("the size response has epsilon = inf: no coin protects it."))
        by_unit: dict[Unit, Cost] = {"client": self.client_cost(), "sample": self.sample_cost()}
        cells: dict[tuple[Unit, Observer], Cost] = {(u, o): cost for u, cost in by_unit.items() for o in OBSERVERS}
        return Release.of(SIZE_RESPONSE, cells)

    @abstractmethod
    def randomise(self, truths: NDArray[np.int64], stream: NoiseStream) -> NDArray[Any]:
        """Answers for truths inside the range, from as many random numbers for each truth, whatever its value.

        Each answer follows from its own truth and from coins of ``stream``, and from nothing else. A run asks a class
        from outside privfl for one client at a time.
        """

    def unbiased(self, responses: Values) -> Values:
        """Per answer, an unbiased estimate of its clipped truth."""
        return responses

    @abstractmethod
    def response_variance(self, truths: Values) -> Values:
        """Per truth inside the range, the variance of its unbiased estimate."""

    @abstractmethod
    def support(self) -> tuple[float, float]:
        """The smallest and the largest answer possible."""

    @abstractmethod
    def client_cost(self) -> Cost:
        """The cost when a client's size may become any other size; ε is finite."""

    def sample_cost(self) -> Cost:
        """The cost when a client's size may change by one; ε is finite."""
        return self.client_cost()


def size_release(mechanism: SizeMechanism) -> Release:
    """What one fresh answer of ``mechanism`` costs, as far as its class states that: :meth:`SizeMechanism.costs`.

    A class that states :meth:`~SizeMechanism.client_cost` and inherits the base's ``sample_cost`` states both. One from
    outside privfl is tried: a cost is believed of answers that follow from the coins of the stream alone.
    """
    claims = ["client_cost"]
    if stating_class(mechanism, "sample_cost") is not SizeMechanism:
        claims.append("sample_cost")
    for claim in claims:
        if problem := unstated(mechanism, claim, SizeMechanism):
            return everywhere(SIZE_RESPONSE, unprotected(problem))
    if mechanism.epsilon != math.inf and not of_privfl(mechanism) and (problem := why_not_random(mechanism)):
        return everywhere(SIZE_RESPONSE, unprotected(f"{problem}; draw every coin from the stream"))
    return mechanism.costs()


def _as_sizes(sizes: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(sizes)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise DataError(f"client sizes are {array.dtype} of shape {array.shape}: give one integer per client.")
    with np.errstate(invalid="ignore"):  # what does not fit int64 is refused below
        exact = array.astype(np.int64)
    if np.any(wrong := (exact != array) | (exact < 0)):
        raise DataError(f"a client's size is {array[wrong][0]}: it must be a non-negative integer, its sample count.")
    return exact
