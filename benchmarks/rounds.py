"""Seconds of privfl's rounds through ``pf.simulate``; as a command, those of one run in a process of its own.

The rule of timing is the peers': wall-clock between the ends of consecutive rounds, the first ``warmup`` rounds left
out. privfl evaluates after its last round whatever it is told, so one more round is run, and left out as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from networks import WORKS, Work
from numpy.typing import NDArray

import privfl as pf

CLIENTS, SAMPLES, BATCH_SIZE, LEARNING_RATE, TEST_SAMPLES = 100, 50, 10, 0.1, 1000
WARMUP = 3
ENGINES = ("auto", "loop", "vectorised")
CLIENT_NOISE = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
NEVER = 10**9


def timed_gaps(ends: list[float], warmup: int) -> list[float]:
    """Seconds of the rounds that count, from the ends of all of them: not the first ``warmup``, not the last.

    >>> timed_gaps([1.0, 3.0, 6.0, 10.0, 90.0], warmup=2)
    [3.0, 4.0]
    """
    gaps = [after - before for before, after in pairwise(ends)]
    return gaps[max(0, warmup - 1) : -1]


@dataclass(frozen=True)
class Timed:
    """Seconds of the rounds that count, the class of the engine that trained them, and the final test accuracy."""

    seconds: list[float]
    trained_by: str
    test_accuracy: float


def simulated(
    task: pf.Task,
    cohort: int,
    *,
    rounds: int,
    warmup: int = WARMUP,
    engine: Literal["auto", "loop", "vectorised"] = "auto",
    workers: int | None = None,
    privacy: pf.Privacy | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> Timed:
    """``rounds - warmup`` timed rounds of FedAvg on the CPU."""
    ends: list[float] = []
    trained_by: list[str] = []

    def after(simulation: Any, line: Any) -> None:
        ends.append(time.perf_counter())
        trained_by[:] = [type(simulation.engine).__name__]

    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=rounds + 1,
        cohort=pf.FixedCohort(cohort),
        training=pf.LocalTraining(learning_rate=LEARNING_RATE, batch_size=BATCH_SIZE),
        privacy=privacy,
        evaluate_every=NEVER,
        execution=pf.Execution(device="cpu", engine=engine, workers=workers, precision=precision),
        callbacks=[after],
    )
    return Timed(timed_gaps(ends, warmup), trained_by[0], float(run.summary["test_accuracy"]))


def images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [6000, 28, 28] of ten classes that can be learned, and their classes [6000]: blurred blots and noise."""
    draws = np.random.default_rng(28)
    blots = draws.uniform(0, 160, (10, 4, 4)).repeat(7, axis=1).repeat(7, axis=2)
    classes = draws.integers(0, 10, CLIENTS * SAMPLES + TEST_SAMPLES)
    noisy = blots[classes] + draws.normal(40, 50, (len(classes), 28, 28))
    return noisy.clip(0, 255).astype(np.uint8), classes


def image_task(work: Work) -> pf.Task:
    """The task that the peers' scripts make of the same images: pixels in [0, 1], equal shares at random."""
    pixels, classes = images()
    inputs = torch.from_numpy(pixels).unsqueeze(1).float() / 255
    held = slice(CLIENTS * SAMPLES, None)
    return pf.Task.from_arrays(
        inputs[: CLIENTS * SAMPLES],
        classes[: CLIENTS * SAMPLES],
        test=(inputs[held], classes[held]),
        partition=pf.IID(clients=CLIENTS),
        model=work.network,
    )


def write_images(path: Path) -> None:
    """The images as the archive that the peers' scripts read."""
    pixels, classes = images()
    cut = CLIENTS * SAMPLES
    np.savez(path, x_train=pixels[:cut], y_train=classes[:cut], x_test=pixels[cut:], y_test=classes[cut:])


def main() -> None:
    """One run; prints a line of JSON with the same keys as the peers' scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--cohort", type=int, help="clients in a round; default that of the work")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--noise", action="store_true", help="clip updates to 1 and add Gaussian noise to their sum")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, help="rounds that all run; default that of the work")
    parser.add_argument("--warmup", type=int, default=WARMUP)
    options = parser.parse_args()
    work = WORKS[options.work]
    work.check()
    timed = simulated(
        image_task(work),
        options.cohort or work.cohort,
        engine=options.engine,
        privacy=CLIENT_NOISE if options.noise else None,
        rounds=options.rounds or work.rounds,
        warmup=options.warmup,
        precision=options.precision,
    )
    line: dict[str, Any] = {
        "framework": "privfl",
        "s_per_round_median": statistics.median(timed.seconds),
        "rounds_timed": len(timed.seconds),
        "test_accuracy": timed.test_accuracy,
        "trained_by": timed.trained_by,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
