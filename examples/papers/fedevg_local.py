"""FedEvg, FedCVAE and FedCGAN judged as in the thesis: by a fifth of the images that every client holds back.

    PRIVFL_DATA=… python examples/papers/fedevg_local.py --out results/fedevg-local
    python examples/papers/fedevg_local.py --out results/small --small       # 8 x 8 digits: does it run?

Images, rounds and scores are those of ``fedevg.py``, the settings those that ``fedevg_tuned.py`` chose with 10 clients
on a seed that is not compared. Once with 10 clients who all take part, once with 100 of whom 10 do. Finished runs in
``fedevg-local.json`` are kept: call the command again after an interruption, or with more ``--seeds``.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from fedevg import Distances, one_run, parser, pictures, settled
from fedevg_tuned import ALPHAS, GRIDS, chosen, compared
from synthetic import trained_features

TUNED = Path(__file__).parents[2] / "docs" / "results" / "fedevg-tuned.json"
CLIENTS = {10: None, 100: 10}
"""Numbers of clients, and how many of them take part in a round."""


def train(clients: int, alpha: str, way: str, value: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run with its scores."""
    own = argparse.Namespace(**vars(options))
    setattr(own, GRIDS[way][0], value)
    own.seed, own.clients, own.cohort, own.local_tests = seed, clients, CLIENTS[clients], True
    own.out = options.out / f"{clients}-{alpha}-{way}-{seed}"
    own.out.mkdir(parents=True, exist_ok=True)
    images = pictures(own)
    features = trained_features(*images.others, 10, source="training images that no client holds", seed=seed)
    row = one_run(f"{alpha}:{way}", images, Distances(features, features(images.test[0])), own)
    return {
        "clients": clients,
        "alpha": alpha,
        "method": way,
        "value": value,
        "seed": seed,
        **{name: row[name] for name in ("test_accuracy", "fid", "kid")},
        "warnings": row["warnings"],
        "seconds": row["processor_seconds"],
    }


def main() -> None:
    """Run what is missing, all methods of a seed before the next seed, then print the comparison."""
    command = parser(__doc__)
    command.add_argument("--seeds", type=int, default=3)
    options = settled(command.parse_args())
    tuning = json.loads(TUNED.read_text(encoding="utf-8"))["tuning"]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "fedevg-local.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    done = {(row["clients"], row["alpha"], row["method"], row["seed"]) for row in rows}
    for seed, clients, alpha, way in product(range(1, options.seeds + 1), CLIENTS, ALPHAS, GRIDS):
        if (clients, alpha, way, seed) in done:
            continue
        rows.append(train(clients, alpha, way, chosen(tuning, alpha, way), seed, options))
        setting = {name: value for name, value in vars(options).items() if name not in ("out", "run")}
        path.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"{clients} clients, α = {alpha}, {way}, seed {seed}: {rows[-1]['test_accuracy']:.4f}", flush=True)
    for clients in CLIENTS:
        print(f"\n{clients} clients", *compared([row for row in rows if row["clients"] == clients]), sep="\n")


if __name__ == "__main__":
    main()
