"""Size mechanisms that privfl did not write: how they are asked, and whether their answers follow from their coins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfl.errors import ConfigError, brief
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.references import called

KEYS = 4096
"""Under how many keys the answers may be all the same before nobody believes that they are random."""

_REPEATED = 8
"""Under how many keys each answer is asked for twice."""

_TRIED: dict[int, tuple[Any, str]] = {}
"""What was found of each mechanism, which is told by being the same object."""


def answer_alone(mechanism: Any, size: float, stream: NoiseStream) -> NDArray[Any]:
    """The answer of one client, shape (1,), int64 or float64, by a mechanism that sees nobody else's size or coins.

    Raises:
        ConfigError: it is not one finite number.
    """
    given = mechanism.respond(np.array([size]), stream)
    try:
        answers = np.asarray(given)
    except ValueError:  # lists of unequal length
        answers = np.empty(0)
    if answers.shape != (1,) or answers.dtype.kind not in "biuf" or not np.isfinite(answers).all():
        what = f"{answers.dtype} of shape {answers.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise ConfigError(
            f"the size mechanism {called(mechanism)} answers {brief(repr(given))} ({what}) for one client; return an "
            "array with one finite number for each size that it is handed"
        )
    return answers.astype(np.float64 if answers.dtype.kind == "f" else np.int64)


def why_not_random(mechanism: Any) -> str:
    """Why the answers of ``mechanism`` do not follow from the coins that it is handed; empty if they seem to.

    It answers for the two ends of its range under known keys, so that everybody finds the same. A cost is one of secret
    coins: those that it takes from elsewhere may be the same in every run.
    """
    known, found = _TRIED.get(id(mechanism), (None, ""))
    if known is not mechanism:
        found = _tried(mechanism)
        _TRIED[id(mechanism)] = mechanism, found
    return found


def _tried(mechanism: Any) -> str:
    source, ends = NoiseSource.from_key(0), (mechanism.range.lo, mechanism.range.hi)
    first: tuple[bytes, ...] = ()
    varied = False
    for key in range(KEYS):
        streams = [source.stream("size", "trial", end, key) for end in ends]
        answers = tuple(answer_alone(mechanism, end, one).tobytes() for end, one in zip(ends, streams, strict=True))
        if any("key" not in vars(one) for one in streams):  # made when somebody draws
            return f"the size mechanism {called(mechanism)} draws nothing from the stream of coins that it is handed"
        if key < _REPEATED:
            for end, answer in zip(ends, answers, strict=True):
                again = answer_alone(mechanism, end, source.stream("size", "trial", end, key))
                if again.tobytes() != answer:
                    return (
                        f"the size mechanism {called(mechanism)} answers otherwise when it is asked again under the "
                        "same coins, so that they do not come from the stream that it is handed alone"
                    )
        first = first or answers
        varied = varied or answers != first
        if varied and key >= _REPEATED:
            return ""
    return (
        f"the size mechanism {called(mechanism)} gives the same answers under {KEYS} keys, so that its coins seem not "
        "to come from the stream that it is handed"
    )
