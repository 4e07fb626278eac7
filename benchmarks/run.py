"""All benchmarks in one command: ``python benchmarks/run.py [--quick] [--only NAME]``. Writes JSON, Markdown, figures.

Targets are ratios within one run: the pieces of work are interleaved, so that all of them meet the same machine. With
``--only`` the rows of the other benchmarks stay as they are in the record. Peers: see ``peers.py``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")
BENCHMARKS = (
    "round_time",
    "dpsgd",
    "memory",
    "statement",
    "engines",
    "scale",
    "peers",
    "peers_mlp",
    "decisions",
    "steps",
    "secagg",
)


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="leave the others as they were recorded")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="two repeats: shows that it works, no more")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    import record
    import torch

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that no peer's process stays behind
    torch.set_num_threads(1)
    machine = record.machine(os.environ)
    rows: list[dict[str, Any]] = []
    measured: dict[str, dict[str, Any]] = {}
    for name in options.only or BENCHMARKS:
        measured[name] = record.conditions(machine)
        print(f"{name} … (load {measured[name]['load']:.2f})", flush=True)
        for row in importlib.import_module(name).run(2 if options.quick else options.repeats):
            rows.append(record.with_verdict(name, row))
            verdict = {True: "met", False: "MISSED", None: ""}[rows[-1]["met"]]
            limit = "" if row["target"] is None else f"≤ {row['target']}"
            print(f"  {verdict:7} {row['median']:8.3f} {limit:8} {row['what']}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "latest.json"
    before = json.loads(path.read_text(encoding="utf-8")) if options.only and path.exists() else {}
    whole = record.merged(before, rows, measured)
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    (options.out / "latest.md").write_text(record.markdown(whole), encoding="utf-8")
    if "engines" in measured:
        importlib.import_module("engines").figure(whole["rows"], options.out / "round-time.png")
    if "secagg" in measured:
        importlib.import_module("secagg").figure(whole["rows"], options.out / "secagg.png")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
