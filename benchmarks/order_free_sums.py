"""What sums that do not depend on order cost: CPU time of adding one client's upload, against plain sums.

``python benchmarks/order_free_sums.py`` adds vectors of the small and the large CNN's sizes in float32, in float64 and
on grids, interleaved, with the weights 1 and ⅓, on one thread; then it adds the same vectors in another order and
counts the numbers of the sum that change. To ``benchmarks/results/order-free-sums.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from privfl.engine.order_free_sum import OrderFreeSum, range_of

RESULT = Path(__file__).parent / "results" / "order-free-sums.json"
SIZES = {"small CNN": 5_386, "CNN": 1_199_882}


def plain(values: Sequence[Tensor], weight: float, dtype: torch.dtype) -> Tensor:
    """The sum in ``dtype``."""
    total = values[0].to(dtype) * weight
    for value in values[1:]:
        total.add_(value, alpha=weight)
    return total


def order_free(values: Sequence[Tensor], weight: float) -> Tensor:
    """The sum that all engines form."""
    total = OrderFreeSum()
    for value in values:
        top = range_of(value, weight)
        assert top is not None
        total.add(value, weight, top)
    return total.total()


WAYS: dict[str, Callable[[Sequence[Tensor], float], Tensor]] = {
    "float32": lambda values, weight: plain(values, weight, torch.float32),
    "float64": lambda values, weight: plain(values, weight, torch.float64),
    "order-free": order_free,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model, size in SIZES.items():
        generator = torch.Generator().manual_seed(0)
        kinds = [torch.randn(size, generator=generator) * 10.0 ** -(2 + place % 3) for place in range(10)]
        values = [kinds[client % 10] for client in range(asked.clients)]
        for weight in (1.0, 1 / 3):
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(asked.repeats):
                for way, add in WAYS.items():
                    began = time.thread_time()
                    add(values, weight)
                    seconds[way].append((time.thread_time() - began) / asked.clients)
            for way, add in WAYS.items():
                changed = int((add(values, weight) != add(values[::-1], weight)).sum())
                rows.append(
                    {
                        "model": model,
                        "parameters": size,
                        "weight": weight,
                        "way": way,
                        "milliseconds_a_client": round(1e3 * statistics.median(seconds[way]), 4),
                        "least": round(1e3 * min(seconds[way]), 4),
                        "numbers_that_another_order_changes": changed,
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    conditions = {"python": platform.python_version(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1)}
    asked.out.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
