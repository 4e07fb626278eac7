"""What a run of the benchmarks leaves behind: rows with the conditions they were measured under, and a table."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
Conditions = dict[str, Any]
PACKAGES = ("opacus", "numpy", "dp-accounting")


def machine(environment: Mapping[str, str]) -> Conditions:
    """Processor, its widest instructions, cores and versions; those of the peers that ``environment`` names."""
    found: Conditions = {"processor": _processor(), "instructions": torch.backends.cpu.get_cpu_capability()}
    found |= {"cores": os.cpu_count(), "python": platform.python_version()}
    found |= {"torch": torch.__version__} | {name: version(name) for name in PACKAGES}
    for name, variable in (("pfl", "PRIVFL_BENCH_PFL"), ("flwr", "PRIVFL_BENCH_FLOWER")):
        if environment.get(variable):
            code = f"from importlib.metadata import version; print(version('{name}'))"
            asked = subprocess.run([environment[variable], "-c", code], capture_output=True, text=True)
            if asked.returncode == 0:
                found[name] = asked.stdout.strip()
    return found


def conditions(machine: Conditions) -> Conditions:
    """``machine`` with today's date and the load of the last minute, to be taken before a benchmark starts."""
    return {"date": datetime.date.today().isoformat(), **machine, "load": round(os.getloadavg()[0], 2)}


def with_verdict(benchmark: str, row: Row) -> Row:
    """``row`` with its benchmark's name and whether it met its target; ``None`` where it has none."""
    met = None if row["target"] is None else row["median"] <= row["target"]
    return {"benchmark": benchmark, **row, "met": met}


def merged(before: Mapping[str, Any], rows: Sequence[Row], measured: Mapping[str, Conditions]) -> dict[str, Any]:
    """The record ``before`` (``{}`` if there is none) with the benchmarks of ``measured`` replaced by ``rows``.

    Rows of other benchmarks stay, each benchmark's in its old place, with the conditions that they were measured under.
    """
    kept = [row for row in before.get("rows", []) if row["benchmark"] not in measured]
    old = before.get("measured") or {row["benchmark"]: before["machine"] for row in kept}
    old = {name: old[name] for name in old if name not in measured and any(row["benchmark"] == name for row in kept)}
    order = list(dict.fromkeys([row["benchmark"] for row in before.get("rows", [])] + list(measured)))
    together = sorted([*kept, *rows], key=lambda row: order.index(row["benchmark"]))
    everything = {**old, **measured}
    return {"measured": {name: everything[name] for name in order if name in everything}, "rows": together}


def markdown(record: Mapping[str, Any]) -> str:
    """The table, below one line for each machine, date and set of versions, with the benchmarks run under it."""
    shared: dict[str, list[str]] = {}
    for name, found in record["measured"].items():
        head = ", ".join(f"{key} {value}" for key, value in found.items() if key != "load")
        shared.setdefault(head, []).append(f"{name} {found['load']:.2f}")
    lines = [f"{head}; load before each: {', '.join(names)}\n" for head, names in shared.items()]
    lines += ["| what | target | median | range | met |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        target = "–" if row["target"] is None else f"≤ {row['target']}"
        met = {True: "yes", False: "**no**", None: "–"}[row["met"]]
        spread = f"{row['min']:.3f} to {row['max']:.3f}"
        lines.append(f"| {row['what']} | {target} | {row['median']:.3f} | {spread} | {met} |")
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
