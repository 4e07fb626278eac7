"""A small privacy–utility study in code: how much accuracy does each ε cost, with noise at the clients?

    python examples/privacy_utility.py --out results/utility

Every run is an experiment like those of TOML files. What is finished is not repeated: add levels or
seeds and call again.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import privfl as pf
from privfl.study.compare import compare, sentences
from privfl.study.report import report_directory
from privfl.study.tables import Format, write_table

BASE = {
    "evaluate_every": 5,
    "workers": 1,
    "dataset": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 1.0},
    "model": {"name": "logistic"},
    "training": {"learning_rate": 0.5, "batch_size": 30},
    "privacy": {"training": {"sample_rate": 0.25}},
}


def variant(method: str) -> pf.Variant:
    """One method. The weights are uniform, so no size is ever sent and ε pays for training alone."""
    return pf.Variant(method, {"algorithm": {"name": method, "weighting": "uniform"}})


def main() -> None:
    """Run the grid and write tables, figures and the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the study's store")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedprox"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[8.0, 3.0, 1.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processes", type=int, help="runs side by side; default all cores")
    options = parser.parse_args()
    study = pf.Study(
        BASE | {"rounds": options.rounds},
        title="What privacy costs",
        seeds=options.seeds,
        epsilon=(math.inf, *options.epsilons),
        variants=tuple(map(variant, options.methods)),
    )
    results = study.run(options.out, name="utility", processes=options.processes)
    print(write_table(results, Format.text), *sentences(results, compare(results)), sep="\n")
    print(f"Report: {report_directory(options.out / 'utility')}")


if __name__ == "__main__":
    main()
