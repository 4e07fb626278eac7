"""All benchmarks in one command: ``python benchmarks/run.py [--quick] [--only NAME]``. Writes JSON, Markdown, figures.

Targets are ratios within one run: the pieces of work are interleaved, so that all of them meet the same machine. The
record is written after each benchmark; rows of those that are left out, or fail, stay as they were. Peers: see
``peers.py``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from pathlib import Path

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
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "latest.json"
    whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    machine, failed = record.machine(os.environ), 0
    for name in options.only or BENCHMARKS:
        measured = record.conditions(machine)
        print(f"{name} … (load {measured['load']:.2f})", flush=True)
        try:
            found = importlib.import_module(name).run(2 if options.quick else options.repeats)
        except SystemExit as failure:
            if not isinstance(failure.code, str):
                raise
            print(f"{name} failed, the others go on: {failure.code}", flush=True)
            failed += 1
            continue
        rows = [record.with_verdict(name, row) for row in found]
        for row in rows:
            verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
            limit = "" if row["target"] is None else f"≤ {row['target']}"
            print(f"  {verdict:7} {row['median']:8.3f} {limit:8} {row['what']}", flush=True)
        whole = record.merged(whole, rows, {name: measured})
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        (options.out / "latest.md").write_text(record.markdown(whole), encoding="utf-8")
        if name == "engines":
            importlib.import_module("engines").figure(whole["rows"], options.out / "round-time.png")
        if name == "secagg":
            importlib.import_module("secagg").figure(whole["rows"], options.out / "secagg.png")
    print(f"written to {options.out}")
    if failed:
        raise SystemExit(f"{failed} of the benchmarks failed")


if __name__ == "__main__":
    main()
