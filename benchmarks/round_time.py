"""Round time of FedAvg against a bare one-thread loop over the same batches, on one core and on two."""

from __future__ import annotations

from typing import Any

from workload import BareLoop, EngineRound, interleaved, make_task, milliseconds, ratio


def run(repeats: int) -> list[dict[str, Any]]:
    """One row for each batch size and number of cores."""
    rows = []
    task = make_task("rebafl-fmnist")
    for batch_size in (20, 50):
        work = {
            "bare": BareLoop(task, batch_size).round,
            "1 core": EngineRound(task, batch_size, 1).round,
            "2 cores": EngineRound(task, batch_size, 2).round,
        }
        seconds = interleaved(work, repeats)
        for name, target in (("1 core", 1.1), ("2 cores", 0.65)):
            rows.append(
                {
                    "what": f"FedAvg round / bare loop, rebafl-fmnist, B = {batch_size}, {name}",
                    "target": target,
                    **ratio(seconds, name, "bare"),
                    "milliseconds": milliseconds(seconds),
                }
            )
    return rows
