"""privfl's engines against the bare loop and against themselves under DP-SGD, for cohorts of 5, 20 and 100 clients.

All run through ``pf.simulate`` in one process, one after the other within each repeat; a run's time is the median of
its rounds. Where peers are (see ``peers.py``), one run of each is added to the figure.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from networks import WORKS
from peers import FLOWER, PFL, Peers, result, work_options
from rounds import BATCH_SIZE, SAMPLES, image_task, simulated, write_images
from workload import BareLoop, Seconds, milliseconds, ratio

import privfl as pf

COHORTS = (5, 20, 100)
REPEATS, ROUNDS, WARMUP = 5, 7, 2
VECTORISED, LOOP, BARE = "vectorised", "loop, all cores", "bare loop"
WAYS: dict[str, dict[str, Any]] = {
    "loop, 1 core": {"engine": "loop", "workers": 1},
    LOOP: {"engine": "loop"},
    VECTORISED: {"engine": "vectorised"},
}
"""The engines by name, and what each takes of the arguments of ``simulated``."""
DP_SGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=BATCH_SIZE / SAMPLES))
LOOKS = {
    BARE: ("#000000", "x"),
    "loop, 1 core": ("#56B4E9", "v"),
    LOOP: ("#0072B2", "o"),
    VECTORISED: ("#D55E00", "s"),
    PFL: ("#009E73", "^"),
    FLOWER: ("#CC79A7", "D"),
}
"""Colour and marker of each line; dashes mean DP-SGD."""


def round_of(task: pf.Task, cohort: int, privacy: pf.Privacy | None, way: dict[str, Any]) -> Callable[[], float]:
    """A function that runs some rounds and returns the median of their seconds."""

    def timed() -> float:
        found = simulated(task, cohort, privacy=privacy, rounds=ROUNDS, warmup=WARMUP, **way)
        if (found.trained_by == "LoopEngine") != (way["engine"] == "loop"):
            raise SystemExit(f"the {way['engine']} engine was asked for, but {found.trained_by} trained the rounds")
        return statistics.median(found.seconds)

    return timed


def bare_round(task: pf.Task, cohort: int) -> Callable[[], float]:
    """The same for the bare loop."""
    bare = BareLoop(task, BATCH_SIZE, cohort)

    def timed() -> float:
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            bare.round()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[WARMUP:])

    return timed


def in_turn(work: Mapping[str, Callable[[], float]], repeats: int) -> Seconds:
    """What each piece of work returns, ``repeats`` times, one after the other so that all meet the same machine."""
    seconds: Seconds = {name: [] for name in work}
    for _ in range(repeats):
        for name, timed in work.items():
            seconds[name].append(timed())
    return seconds


def peers_milliseconds(cohort: int) -> dict[str, float]:
    """One run of each peer that is there, on one process each; one that fails is left out, and said."""
    peers, _ = Peers.find(os.environ)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "images.npz"
        write_images(archive)
        for name, command in peers.commands(noise=False).items():
            if name not in (PFL, FLOWER):
                continue
            try:
                line = result([*command, *work_options("small", archive, cohort, ROUNDS + WARMUP)], peers.environment())
            except SystemExit as failure:
                print(f"{name} is left out: {failure}", flush=True)
                continue
            found[name] = 1000 * line["s_per_round_median"]
    return found


def run(repeats: int) -> list[dict[str, Any]]:
    """Rows for each cohort of the small model, against the bare loop and private against not; then for the CNN."""
    repeats = min(repeats, REPEATS)
    rows: list[dict[str, Any]] = []
    task = image_task(WORKS["small"])
    for cohort in COHORTS:
        plain = {name: round_of(task, cohort, None, way) for name, way in WAYS.items()}
        private = {f"{name}, DP-SGD": round_of(task, cohort, DP_SGD, way) for name, way in WAYS.items()}
        seconds = in_turn({BARE: bare_round(task, cohort), **plain, **private}, repeats)
        medians = milliseconds(seconds) | peers_milliseconds(cohort)
        for name in plain:
            what = f"round by {name} / bare loop, small model, cohort {cohort}"
            rows.append({"what": what, "target": None, **ratio(seconds, name, BARE), "milliseconds": medians})
        for name in plain:
            what = f"DP-SGD round / non-private round by {name}, small model, cohort {cohort}"
            target = 1.6 if name == VECTORISED else None
            rows.append({"what": what, "target": target, **ratio(seconds, f"{name}, DP-SGD", name)})
        rows[-1]["round_time"] = {"cohort": cohort, "milliseconds": medians}
    task, cohort, way = image_task(WORKS["cnn"]), WORKS["cnn"].cohort, WAYS[LOOP]
    seconds = in_turn(
        {"private": round_of(task, cohort, DP_SGD, way), "plain": round_of(task, cohort, None, way)}, repeats
    )
    what = f"DP-SGD round / non-private round by {LOOP}, CNN, cohort {cohort}"
    rows.append(
        {"what": what, "target": 2.0, **ratio(seconds, "private", "plain"), "milliseconds": milliseconds(seconds)}
    )
    return rows


def figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Round time against cohort on logarithmic axes, one line for each engine and peer; dashed with DP-SGD."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    points = [row["round_time"] for row in rows if "round_time" in row]
    picture = Figure(figsize=(8, 4.5), layout="constrained")
    axes = picture.add_subplot(xscale="log", yscale="log")
    for name in dict.fromkeys(name for point in points for name in point["milliseconds"]):
        there = [point for point in points if name in point["milliseconds"]]
        colour, marker = LOOKS[name.removesuffix(", DP-SGD")]
        axes.plot(
            [point["cohort"] for point in there],
            [point["milliseconds"][name] for point in there],
            linestyle="--" if name.endswith("DP-SGD") else "-",
            marker=marker,
            color=colour,
            label=name,
            markersize=5.5,
        )
    axes.xaxis.set_major_locator(FixedLocator([point["cohort"] for point in points]))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("clients in a round")
    axes.set_ylabel("milliseconds per round, small model")
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(loc="outside right center", frameon=False)
    picture.savefig(path, dpi=150)
