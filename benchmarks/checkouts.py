"""Rounds of DP-SGD by two checkouts: ``python benchmarks/checkouts.py --against ../older --out OUT.json``.

Each process trains one run on one thread and says what its first round and its later ones took (the least of the second
half, when few lengths of batches are met for the first time); processes of the two
checkouts alternate. Seconds are of the processor, so that other work on the machine counts little; ratios are of minima
and of medians over the processes of a checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ("two-nn", "two-cnn", "own CNN")
ENGINES = ("loop", "vectorised")
ROUNDS, COHORT, CLIENTS, EXAMPLES, BATCH = 16, 10, 20, 64, 16


def train(network: str, engine: str) -> dict[str, Any]:
    """Processor seconds of the rounds of one run by the privfl that is imported."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    import privfl as pf

    torch.set_num_threads(1)

    class Own(nn.Module):
        """Two convolutions by a class of one's own, whose forward pass nobody knows; 105,866 parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 16, 5, stride=2), nn.Conv2d(16, 32, 3, stride=2)
            self.third, self.fourth = nn.Linear(800, 123), nn.Linear(123, 10)

        def forward(self, images: Tensor) -> Tensor:
            """Logits [B, 10]."""
            hidden = F.relu(self.second(F.relu(self.first(images))))
            logits: Tensor = self.fourth(F.relu(self.third(hidden.flatten(1))))
            return logits

    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(CLIENTS * EXAMPLES, 1, 28, 28, generator=draws)
    labels = torch.randint(0, 10, (CLIENTS * EXAMPLES,), generator=draws).numpy()
    model: Any = Own if network == "own CNN" else network
    task = pf.Task.from_arrays(
        inputs, labels, test=(inputs[:50], labels[:50]), partition=pf.IID(clients=CLIENTS), model=model
    )
    ends = [time.process_time()]
    pf.simulate(
        task,
        pf.FedAvg(),
        rounds=ROUNDS,
        cohort=pf.FixedCohort(COHORT),
        training=pf.LocalTraining(learning_rate=0.1, batch_size=BATCH),
        privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=BATCH / EXAMPLES)),
        evaluate_every=10**9,
        execution=pf.Execution(device="cpu", engine=engine, workers=1),  # type: ignore[arg-type]
        callbacks=[lambda *_: ends.append(time.process_time())],
    )
    seconds = [after - before for before, after in pairwise(ends)]
    return {"first": seconds[0], "later": min(seconds[ROUNDS // 2 : -1])}


def of_checkout(folder: Path, network: str, engine: str) -> dict[str, Any]:
    """What a fresh process with the privfl of ``folder`` says."""
    done = subprocess.run(
        [sys.executable, __file__, "--train", network, engine],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{folder} failed at {network} by {engine}:\n{done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def compare(older: Path, repeats: int) -> list[dict[str, Any]]:
    """One row for every network and engine: this checkout over ``older``."""
    rows = []
    for network in NETWORKS:
        for engine in ENGINES:
            said: dict[Path, list[dict[str, Any]]] = {ROOT: [], older: []}
            for number in range(repeats):
                for folder in (ROOT, older) if number % 2 else (older, ROOT):
                    said[folder].append(of_checkout(folder, network, engine))
            row: dict[str, Any] = {"network": network, "engine": engine, "load": round(os.getloadavg()[0], 1)}
            for what in ("first", "later"):
                now, then = ([one[what] for one in said[folder]] for folder in (ROOT, older))
                row[f"{what} round, ms"] = round(1e3 * min(now), 2)
                row[f"{what} round, ms of the older"] = round(1e3 * min(then), 2)
                row[f"{what} round, ratio of minima"] = round(min(now) / min(then), 3)
                row[f"{what} round, ratio of medians"] = round(statistics.median(now) / statistics.median(then), 3)
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def main() -> None:
    """Measure and keep what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the folder of the older checkout")
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train", nargs=2, metavar=("NETWORK", "ENGINE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(*options.train)))
        return
    if options.against is None or options.out is None:
        parser.error("--against and --out are needed")
    rows = compare(options.against.resolve(), options.repeats)
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
