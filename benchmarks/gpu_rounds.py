"""Rounds on a GPU: what stacking clients gains there, and what whole settings take.

``python benchmarks/gpu_rounds.py [--only NAME …] [--out FILE]`` times rounds of ``pf.simulate`` on the first CUDA
device between the ends of consecutive rounds, the device waited for, the first ones left out, and writes every row to
FILE (``benchmarks/results/gpu.json``) as soon as it is there, with the device's name:

* ``small``, ``cnn``: a cohort of 100 clients of 50 images 28×28, batches of 10, by both engines, plain and with DP-SGD;
* ``cifar``: the setting of pfl-research's benchmark, 1,000 clients of 50 images 3×32×32, cohorts of 50, 1,500 rounds,
  in float32, and in TF32, as PyTorch computes convolutions by default;
* ``noise``: nanoseconds for a normal number, of 100 rows of 1.2 million;
* ``kernels``: of a stacked step, the time that the device computes, and its longest kernels.

Pixels are random blots that can be learned: what is in them does not matter for time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from networks import cnn_network, small_network
from torch import nn

import privfl as pf
from privfl.privacy.noise import fused
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_

RESULT = Path(__file__).parent / "results" / "gpu.json"
NETWORKS: dict[str, Callable[[], nn.Module]] = {"small": small_network, "cnn": cnn_network}
ROUNDS = {"loop": 2, "vectorised": 30}
WARMUP = {"loop": 1, "vectorised": 4, "auto": 4}
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
Engine = Literal["auto", "loop", "vectorised"]


def cifar_network() -> nn.Module:
    """The benchmark's network on three channels: [B, 3, 32, 32] → [B, 10], 1,626,442 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, kernel_size=3), nn.ReLU(), nn.Conv2d(32, 64, kernel_size=3), nn.ReLU()),
        *(nn.MaxPool2d(kernel_size=2), nn.Dropout(p=0.25), nn.Flatten()),
        *(nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(p=0.5), nn.Linear(128, 10)),
    )


def a_task(network: Callable[[], nn.Module], shape: tuple[int, ...], clients: int) -> pf.Task:
    """``clients`` with 50 images of ``shape`` each, and 1,000 to test on, of 8 bits."""
    draws = np.random.default_rng(28)
    number = clients * 50 + 1000
    classes = draws.integers(0, 10, number)
    blots = draws.integers(0, 160, (10, *shape), dtype=np.uint8)
    pixels = torch.from_numpy(blots[classes] + draws.integers(0, 95, (number, *shape), dtype=np.uint8))
    held = slice(clients * 50, None)
    return pf.Task.from_arrays(
        pixels[: clients * 50].float() / 255,
        classes[: clients * 50],
        test=(pixels[held].float() / 255, classes[held]),
        partition=pf.IID(clients=clients),
        model=network,
    )


def timed(
    task: pf.Task,
    cohort: int,
    engine: Engine,
    rounds: int,
    privacy: pf.Privacy | None = None,
    precision: Literal["float32", "tf32", "bfloat16"] = "float32",
) -> dict[str, Any]:
    """A run of ``rounds`` rounds after those that warm up; seconds of each that counts, and of the whole call."""
    ends: list[float] = []
    trained_by: list[str] = []

    def after(simulation: Any, line: Any) -> None:
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
        trained_by[:] = [f"{type(simulation.engine).__name__} {getattr(simulation.engine, 'chunk', '')}".strip()]

    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=rounds + WARMUP[engine] + 1,
        cohort=pf.FixedCohort(cohort),
        training=pf.LocalTraining(learning_rate=0.05, batch_size=10, epochs=1),
        privacy=privacy,
        evaluate_every=10**9,
        execution=pf.Execution(device="cuda", engine=engine, precision=precision),
        callbacks=[after],
    )
    whole = time.perf_counter() - began
    seconds = [end - start for start, end in pairwise(ends)][WARMUP[engine] - 1 : -1]
    return {
        "rounds": len(seconds),
        "round_seconds": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "sum_of_rounds": sum(seconds),
        "whole_call_seconds": whole,
        "trained_by": trained_by[0],
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
        "test_accuracy": run.summary["test_accuracy"],
        "warnings": [str(one) for one in run.warnings],
    }


def engines(name: str) -> dict[str, Any]:
    """Both engines, with and without DP-SGD, for a cohort of 100."""
    task, found = a_task(NETWORKS[name], (1, 28, 28), 100), dict[str, Any]()
    for what, privacy in (("plain", None), ("dp-sgd", DPSGD)):
        for engine in ("vectorised", "loop"):
            found[f"{what}, {engine}"] = timed(task, 100, engine, ROUNDS[engine], privacy)
            print(name, what, engine, found[f"{what}, {engine}"], flush=True)
        pair = (found[f"{what}, {engine}"]["round_seconds"] for engine in ("loop", "vectorised"))
        found[f"{what}, loop / vectorised"] = next(pair) / next(pair)
    return found


def cifar(rounds: int, precision: Literal["float32", "tf32"] = "float32") -> dict[str, Any]:
    """pfl-research's benchmark on one GPU."""
    return timed(a_task(cifar_network, (3, 32, 32), 1000), 50, "auto", rounds, precision=precision)


def noise() -> dict[str, Any]:
    """Noise of 100 streams, of rows of the larger network, and whether its bits are the host's."""
    rows = torch.zeros(100, 1_199_882, device="cuda")
    seconds = []
    for _ in range(6):
        streams = [NoiseStream(bytes([client]) * 32) for client in range(100)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        add_gaussian_rows_(streams, rows, [1.0] * 100)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    few = torch.zeros(3, 1_199_882)
    there = few.cuda()
    for values in (few, there):
        add_gaussian_rows_([NoiseStream(bytes([7 + client]) * 32) for client in range(3)], values, [1.0, 0.5, 3.0])
    return {
        "nanoseconds": 1e9 * statistics.median(seconds[1:]) / rows.numel(),
        "first_seconds": seconds[0],
        "kernel": fused.why_not(there.device) or "Triton's",
        "values_that_differ_from_the_host": int((few != there.cpu()).sum()),
        "of": few.numel(),
    }


def kernels() -> dict[str, Any]:
    """Where the time of a stacked round goes."""
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {}
    cases = {
        "small": (a_task(small_network, (1, 28, 28), 100), 100, None),
        "small, dp-sgd": (a_task(small_network, (1, 28, 28), 100), 100, DPSGD),
        "cnn, dp-sgd": (a_task(cnn_network, (1, 28, 28), 100), 100, DPSGD),
        "cifar": (a_task(cifar_network, (3, 32, 32), 1000), 50, None),
    }
    for name, (task, cohort, privacy) in cases.items():
        records: list[Any] = []

        def watch(simulation: Any, line: Any, records: list[Any] = records) -> None:
            torch.cuda.synchronize()
            if line["round"] == 5:
                records.append(profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]))
                records[0].__enter__()
                records.append(time.perf_counter())
            if line["round"] == 7:
                records.append(time.perf_counter())
                records[0].__exit__(None, None, None)

        pf.simulate(
            task,
            pf.FedAvg(weighting="uniform"),
            rounds=9,
            cohort=pf.FixedCohort(cohort),
            training=pf.LocalTraining(learning_rate=0.05, batch_size=10, epochs=1),
            privacy=privacy,
            evaluate_every=10**9,
            execution=pf.Execution(device="cuda", engine="vectorised"),
            callbacks=[watch],
        )
        on_device = [one for one in records[0].events() if one.device_type == torch.autograd.DeviceType.CUDA]
        total: dict[str, list[float]] = {}
        for one in on_device:
            total.setdefault(one.name[:70], []).append(one.device_time)
        longest = sorted(total.items(), key=lambda pair: -sum(pair[1]))[:14]
        found[name] = {
            "round_milliseconds_under_the_profiler": 1e3 * (records[2] - records[1]) / 2,
            "device_milliseconds": sum(map(sum, total.values())) / 1e3 / 2,
            "launches": len(on_device) / 2,
            "longest": {kernel: [round(sum(times) / 2e3, 3), len(times) / 2] for kernel, times in longest},
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    return found


WORK: dict[str, Callable[[], dict[str, Any]]] = {
    "noise": noise,
    "small": lambda: engines("small"),
    "cnn": lambda: engines("cnn"),
    "cifar, 100 rounds": lambda: cifar(100),
    "cifar, tf32": lambda: cifar(1500, "tf32"),
    "cifar": lambda: cifar(1500),
    "kernels": kernels,
}


def main() -> None:
    """Run what was asked for, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device, and this program times nothing else")
    made: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "rows": {},
    }
    for name in options.only:
        began = time.perf_counter()
        try:
            made["rows"][name] = WORK[name]()
        except Exception as error:  # the other rows are worth their minutes
            made["rows"][name] = {"failed": f"{type(error).__name__}: {error}"}
        made["rows"][name]["seconds_of_all"] = time.perf_counter() - began
        print(name, made["rows"][name], flush=True)
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
