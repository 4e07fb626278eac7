"""A small privacy–utility study in code: how much accuracy does each ε cost, with noise at the clients?

    python examples/privacy_utility.py --out results/utility

Every run is an experiment like those of TOML files. What is finished is not repeated: add levels or
seeds and call again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from privfl.experiment import Experiment
from privfl.study.findings import findings
from privfl.study.grid import Cell, run_study, summarise
from privfl.study.report import report_directory


def cell(method: str, epsilon: float | None, seed: int, rounds: int) -> Cell:
    """One run. The weights are uniform, so no size is ever sent and ε pays for training alone."""
    settings: dict[str, Any] = {
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 1.0},
        "model": {"name": "logistic"},
        "algorithm": {"name": method, "weighting": "uniform"},
        "training": {"learning_rate": 0.5, "batch_size": 30},
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": 5,
        "workers": 1,
    }
    if epsilon is not None:
        settings["privacy"] = {"training": {"target_epsilon": epsilon, "sample_rate": 0.25}}
    level = "no privacy" if epsilon is None else f"ε = {epsilon:g}"
    return Cell(method, level, Experiment.from_dict(settings))


def main() -> None:
    """Run the grid and write tables, figures and the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedprox"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[8.0, 3.0, 1.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processes", type=int, help="runs side by side; default all cores")
    options = parser.parse_args()
    cells = [
        cell(method, epsilon, seed, options.rounds)
        for method in options.methods
        for epsilon in (None, *options.epsilons)
        for seed in range(options.seeds)
    ]
    results, failures = run_study(cells, options.out, title="What privacy costs", processes=options.processes)
    print(*findings(summarise(results)), *failures, sep="\n")
    print(f"Report: {report_directory(options.out)}")


if __name__ == "__main__":
    main()
