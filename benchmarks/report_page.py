"""How large the report of a study of 200 runs is, how long it takes to write, and how soon a browser shows it.

    python benchmarks/report_page.py --out benchmarks/results/report_page.json

The runs are real ones, tiny: two algorithms with four rates each at five levels with five seeds, on the digits. The
median of nine openings is held against the target, and all are recorded. Needs Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' browser

METHODS = ("fedavg", "fedprox")
RATES = (0.1, 0.2, 0.4, 0.8)
OPENINGS = 9
TARGET_SECONDS, TARGET_BYTES = 1.0, 10_000_000


def study() -> Any:
    """200 runs: two algorithms with four learning rates each, five budgets, five seeds."""
    import privfl as pf
    from privfl.study.axes import Variant

    base = {
        "rounds": 10,
        "workers": 1,
        "dataset": {"name": "digits"},
        "partition": {"name": "iid", "clients": 10},
        "model": {"name": "logistic"},
        "training": {"steps": 1},
        "privacy": {"training": {"sample_rate": 0.25}},
    }
    variants = tuple(
        Variant(
            f"{method}, rate {rate}",
            {"algorithm": {"name": method, "weighting": "uniform"}, "training": {"learning_rate": rate}},
        )
        for method in METHODS
        for rate in RATES
    )
    return pf.Study(base, title="200 tiny runs", seeds=5, epsilon=[float("inf"), 8.0, 3.0, 1.0, 0.5], variants=variants)


def measure(store: Path) -> dict[str, Any]:
    """Sizes and seconds for the study in ``store``, which is finished first where it is not."""
    from privfl.study.shown import report_study
    from privfl.study.store import Store
    from tests.browser import browser

    results = study().run(store, name="many", processes=1)
    began = time.perf_counter()
    page = report_study(results, Store(store), store / "many")
    written = time.perf_counter() - began
    with browser() as window:
        opened = [window.open(page, width=1400, height=1000) / 1000 for _ in range(OPENINGS)]
        complaints, fetched = window.complaints(), [url for url in window.requests() if not url.startswith("file:")]
    figures = {
        "runs": len(results.done),
        "bytes": page.stat().st_size,
        "seconds_to_write": round(written, 1),
        "seconds_to_open": [round(one, 3) for one in opened],
        "seconds_to_open_median": round(statistics.median(opened), 3),
        "load_of_the_machine": round(os.getloadavg()[0], 1),
        "console_messages": len(complaints),
        "requests": len(fetched),
    }
    reached = statistics.median(opened) < TARGET_SECONDS and figures["bytes"] < TARGET_BYTES
    return figures | {"target_seconds": TARGET_SECONDS, "target_bytes": TARGET_BYTES, "reached": reached}


def main() -> None:
    """Measure and print, and write the figures down where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--store", type=Path, help="keep the runs there, and use those that are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(options.store or Path(scratch))
    text = json.dumps(figures, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
