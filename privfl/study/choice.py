"""One value picked by validation rows: outright, or by noisy counts, once and for all.

A pick that was made stays: it is filed in the store under a hash of the trials that it was made from, so that a study
that goes on, or another one with the same trials, never draws noise for it again.

Noisy picks: each of k values has the count of validation rows that its model gets right, summed over s seeds; one row
more raises each count by 0 to s. Independent two-sided geometric noise of parameter exp(−ε/s) is added to each, and the
largest sum wins (the first of equals). That is ε-differentially private: fix the noise of all others, and let r be the
least noise with which value i wins. With one row more or less it wins with r + s at the latest, and noise of at least
r + s has exp(−ε) times the probability of noise of at least r, or more. Several values are picked one after the other,
each with fresh noise, and their ε add up. The noise is the difference of two counts of coins in integer arithmetic, so
nothing is lost to rounding.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from privfl.files import make_folder, read_json, write_json
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Release, pure_cost, unprotected
from privfl.privacy.noise.source import NoiseSource, NoiseStream

FOLDER = "choices"
MADE = "history/picks"
"""Where it is counted how often each pick was made: that remains when its file is removed."""
MEND = "remove it, and the study picks anew: that is one more release, and counts as such"
EXACT = (
    "values of {} were picked by exact figures on validation rows, which nothing hides; set study.tuning.choice_epsilon"
)
SERVER = "the clients' figures on validation rows, by which {} was picked, reach the server as they are"
CLIENT = "how many validation rows a client has is not bounded, so noise for one row does not hide a client's"


@dataclass(frozen=True)
class Score:
    """How good one value was on validation rows: the mean metric over seeds, NaN if a trial failed; and the count."""

    mean: float
    count: int = 0


def pick(scores: Sequence[Score], number: int, *, lower: bool) -> list[int]:
    """The places of the ``number`` best means, best first; the first of equals; what is NaN comes last."""
    sign = 1.0 if lower else -1.0
    keyed = [(math.inf if math.isnan(one.mean) else sign * one.mean, place) for place, one in enumerate(scores)]
    return [place for _, place in sorted(keyed)[:number]]


def pick_noisily(scores: Sequence[Score], number: int, *, epsilon: float, seeds: int, stream: NoiseStream) -> list[int]:
    """The places of ``number`` values by noisy counts, each pick ``epsilon``-differentially private for one row."""
    left, picked = list(range(len(scores))), []
    for _ in range(number):
        sums = {place: scores[place].count + two_sided_geometric(stream, epsilon / seeds) for place in left}
        best = max(left, key=lambda place: (sums[place], -place))
        picked.append(best)
        left.remove(best)
    return picked


def two_sided_geometric(stream: NoiseStream, epsilon: float) -> int:
    """A number with probability in proportion to exp(−``epsilon``)^|k|, where that power is rounded up."""
    go_on = math.nextafter(math.exp(-epsilon), 1.0)
    return _successes(stream, go_on) - _successes(stream, go_on)


def _successes(stream: NoiseStream, probability: float) -> int:
    number, block = 0, 64
    while True:
        coins = stream.bernoulli(probability, block)
        if not coins.all():
            return number + int(coins.argmin())
        number, block = number + block, min(2 * block, 1 << 20)


def filed(
    store: Path,
    decided: Mapping[str, Any],
    scores: Sequence[Score],
    number: int,
    *,
    lower: bool,
    epsilon: float | None,
    seeds: int,
    noise_key: int | None,
) -> list[int]:
    """The places of the best ``number`` of ``scores``, as they were picked first.

    Args:
        store: folder of the store.
        decided: all that decides the pick: the trials' runs, the metric.
        lower: whether less is better.
        epsilon: of each pick; ``None`` picks outright.
        seeds: of the trials of each value.
        noise_key: fixes the noise, for experiments.

    Raises:
        DataError: the file of the pick is damaged.
    """
    told = {**decided, "picked": number, "epsilon": epsilon, "noise_key": noise_key is not None, "lower": lower}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()
    path = store / FOLDER / f"{digest.hex()[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            if epsilon is None:
                places = pick(scores, number, lower=lower)
            else:
                source = NoiseSource.from_os() if noise_key is None else NoiseSource.from_key(noise_key)
                stream = source.for_run(digest).stream("tuning")
                places = pick_noisily(scores, number, epsilon=epsilon, seeds=seeds, stream=stream)
            _count(store, path.stem, told)
            write_json(path, {**told, "places": places})
        return [int(place) for place in read_json(path, MEND)["places"]]


def _count(store: Path, name: str, told: Mapping[str, Any]) -> None:
    """Note that the pick ``name`` is made, once more if its file was removed: each of its draws of noise was shown."""
    path = store / MADE / f"{name}.json"
    times = read_json(path)["times"] if path.exists() else 0
    make_folder(path.parent)
    write_json(path, {**told, "times": times + 1})


def _made(store: Path) -> list[dict[str, Any]]:
    """Every pick that was made in ``store`` and how many ``times``, those included whose files were removed since."""
    counted = {path.stem: read_json(path) for path in sorted((store / MADE).glob("*.json"))}
    filed_there = sorted((store / FOLDER).glob("*.json"))
    return [*counted.values(), *(read_json(path, MEND) for path in filed_there if path.stem not in counted)]


def release(parameter: str, epsilon: float | None, picks: int) -> Release:
    """What ``picks`` picks cost, each of ``epsilon`` for one validation row; ``None``: made outright."""
    name = f"choice of {parameter}"
    if epsilon is None:
        cost = unprotected(EXACT.format(parameter))
        return Release.of(name, {(unit, observer): cost for unit in UNITS for observer in OBSERVERS})
    server = unprotected(SERVER.format(parameter))
    return Release.of(
        name,
        {
            ("sample", "server"): server,
            ("client", "server"): server,
            ("sample", "public"): pure_cost(epsilon * picks),
            ("client", "public"): unprotected(CLIENT),
        },
    )


@dataclass(frozen=True)
class OtherPick:
    """A pick that is filed in the store and was made for an earlier form of a study: its trials and what it cost."""

    trials: tuple[str, ...]
    cost: Release


def other_picks(
    store: Path, own: Sequence[tuple[Sequence[Sequence[str]], float | None]], former: Sequence[str] = ()
) -> list[OtherPick]:
    """The picks filed in ``store`` that were made from trials of ``own``, or from trials of such picks, beside its own.

    Args:
        store: folder of the store.
        own: of every tuning its trials, in groups, and the ε of its picks.
        former: trials of earlier forms of the study, whose picks count as well.

    Raises:
        DataError: the file of a pick is damaged.
    """
    groups = [({tuple(group) for group in trials}, epsilon) for trials, epsilon in own]
    reached = {*former, *(name for trials, _ in groups for group in trials for name in group)}
    left = sorted(_made(store), key=lambda one: int(one["picked"]))  # what is planned counts as the least of equals
    found: list[OtherPick] = []
    counted: set[tuple[Any, ...]] = set()
    while near := [one for one in left if reached & {name for group in one["trials"] for name in group}]:
        for one in near:
            left.remove(one)
            made_from = tuple(tuple(group) for group in one["trials"])
            reached |= {name for group in made_from for name in group}
            key = made_from, one["epsilon"]
            planned = any(one["epsilon"] == epsilon and trials.issuperset(made_from) for trials, epsilon in groups)
            times = one.get("times", 1)
            if planned and key not in counted:
                counted.add(key)
                times -= 1
            if times:
                cost = release(f"an earlier form of the study, {len(found) + 1}", one["epsilon"], times * one["picked"])
                found.append(OtherPick(tuple(name for group in made_from for name in group), cost))
    return found
