"""What one-run audits share: the check of the numbers of guesses, and the search for the largest claim refuted."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

from privfl.errors import ConfigError

_LARGEST = 700.0
"""Where e^ε leaves float64: nothing finite can refute as much."""


def check_guesses(canaries: int, guesses: int, correct: int) -> None:
    """Refuse numbers of guesses that no audit yields.

    Raises:
        ConfigError: not 0 ≤ ``correct`` ≤ ``guesses`` ≤ ``canaries`` with ``canaries`` ≥ 1, all of them whole.
    """
    whole = all(
        isinstance(value, Real) and not isinstance(value, bool) and value % 1 == 0
        for value in (canaries, guesses, correct)
    )
    if not whole or not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ConfigError(
            f"{correct} of {guesses} guesses about {canaries} canaries are impossible; give whole "
            "numbers with 0 ≤ correct ≤ guesses ≤ canaries and at least one canary"
        )


def largest_refuted(refuted: Callable[[float], bool], precision: float = 1e-10) -> float:
    """A number ≥ 0 that is ``refuted`` while one larger by the share ``precision`` is not; 0 if 0 is not refuted.

    Every number found is refuted, so it is safe whether or not refutation is monotone.
    """
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        if high == _LARGEST:
            return high
        low, high = high, min(2 * high, _LARGEST)
    while high - low > precision * max(high, 1e-2):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
