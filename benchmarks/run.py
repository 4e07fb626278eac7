"""All benchmarks in one command: ``python benchmarks/run.py [--quick] [--only NAME]``. Writes JSON, Markdown, a figure.

Targets are ratios within one run: the pieces of work are interleaved, so that all of them meet the same machine.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")
BENCHMARKS = ("round_time", "dpsgd", "memory", "statement")


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="leave the others out")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="two repeats: shows that it works, no more")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.only or BENCHMARKS:
        print(f"{name} …", flush=True)
        for row in importlib.import_module(name).run(2 if options.quick else options.repeats):
            met = row["median"] <= row["target"]
            rows.append({"benchmark": name, **row, "met": met})
            print(
                f"  {'met' if met else 'MISSED':7} {row['median']:8.3f} ≤ {row['target']:<6} {row['what']}", flush=True
            )
    machine = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "latest.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    (options.out / "latest.md").write_text(markdown(machine, rows))
    figure(rows, options.out / "latest.png")
    print(f"written to {options.out}")


def markdown(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The table, with the machine."""
    head = ", ".join(f"{key} {value}" for key, value in machine.items())
    lines = [head, "", "| what | target | median | range | met |", "|---|---|---|---|---|"]
    for row in rows:
        spread = f"{row['min']:.3f} to {row['max']:.3f}"
        met = "yes" if row["met"] else "**no**"
        lines.append(f"| {row['what']} | ≤ {row['target']} | {row['median']:.3f} | {spread} | {met} |")
    return "\n".join(lines) + "\n"


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Measured over target, one bar a row; left of the line is good."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(10, 0.42 * len(rows) + 1.2), layout="constrained")
    axes = picture.add_subplot()
    values = [row["median"] / row["target"] for row in rows]
    colours = ["#0072B2" if row["met"] else "#D55E00" for row in rows]
    axes.barh(range(len(rows)), values, color=colours)
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("measured / target (left of 1 is met)")
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=150)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
