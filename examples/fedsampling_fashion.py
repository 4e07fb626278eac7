"""FedSampling against centralised training and uniform FedAvg on Fashion-MNIST, without and with privacy.

    PRIVFL_DATA=… python examples/fedsampling_fashion.py --out results/fedsampling

100 clients whose sizes are log-normal. Every method takes one gradient step a round and sees about 2,048 images in it,
with the same model and learning rate, so that only the choice of the images differs. Sizes are reported once, under
local differential privacy. With ``--private`` FedSampling adds noise to the sum and is compared with ordinary
centralised DP-SGD at the same ε for one example, the same rate and the same number of steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import privfl as pf

SAMPLES = 2048
CLIENTS = 100
SIZES = pf.LaplaceSize(epsilon=3.0, bound=3000, lower=50)


def runs(task: pf.Task, rate: float, epsilon: float | None) -> dict[str, tuple[object, dict[str, object]]]:
    """Label → (algorithm, arguments of ``simulate``) of every method that is compared."""
    one_step = {"batch_size": 10**6, "steps": 1}
    if epsilon is None:
        return {
            "centralised": (pf.Centralized(), {"training": {"batch_size": SAMPLES, "steps": 1}}),
            "FedSampling": (pf.FedSampling(samples_per_round=SAMPLES), {"privacy": {"size": SIZES}}),
            "FedAvg, uniform": (
                pf.FedAvg(weighting="uniform"),
                {"training": one_step, "cohort": pf.FixedCohort(round(rate * CLIENTS))},
            ),
        }
    central = pf.DPSGD(target_epsilon=epsilon, sample_rate=rate)
    summed = pf.DPSGD(target_epsilon=epsilon, noise_at="server")
    return {
        "centralised DP-SGD": (
            pf.Centralized(),
            {"training": {"batch_size": SAMPLES, "steps": 1}, "privacy": {"training": central}},
        ),
        "FedSampling, central noise": (
            pf.FedSampling(samples_per_round=SAMPLES),
            {"privacy": {"training": summed, "size": SIZES}},
        ),
    }


def draw(out: Path) -> None:
    """``accuracy.png`` from ``results.json``: mean over the seeds, and their range as a band."""
    from privfl.study.plots import curves

    stored = json.loads((out / "results.json").read_text(encoding="utf-8"))
    groups = {
        label: [[tuple(point) for point in row["curve"]] for row in rows] for label, rows in stored["results"].items()
    }
    private = stored["settings"]["private"]
    claim = f"ε = {private} for one example, δ = 1e-5" if private else "no privacy but for the sizes"
    title = f"{stored['settings']['dataset']}, {CLIENTS} clients with log-normal sizes, {claim}"
    curves(groups, title).savefig(out / "accuracy.png", dpi=150)


def main() -> None:
    """Run all methods over all seeds; write ``results.json`` and ``accuracy.png``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--model", default="rebafl-fmnist")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sigma", type=float, default=1.0, help="spread of the log-normal sizes")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--private", type=float, metavar="EPSILON", help="compare under DP at this ε, δ = 1e-5")
    options = parser.parse_args()
    results: dict[str, list[dict[str, object]]] = {}
    for seed in range(options.seeds):
        partition = pf.LogNormal(clients=CLIENTS, sigma=options.sigma)
        task = pf.load(options.dataset, partition=partition, model=options.model, seed=seed)
        rate = min(1.0, SAMPLES / len(task.targets))
        for label, (algorithm, arguments) in runs(task, rate, options.private).items():
            training = {"learning_rate": options.learning_rate, **arguments.get("training", {})}  # type: ignore[dict-item]
            privacy = {"max_size_error": 5.0, **arguments.get("privacy", {})}  # type: ignore[dict-item]
            run = pf.simulate(
                task,
                algorithm,  # type: ignore[arg-type]
                rounds=options.rounds,
                training=pf.LocalTraining(**training),
                privacy=pf.Privacy(**privacy),
                cohort=arguments.get("cohort"),  # type: ignore[arg-type]
                seed=seed,
                evaluate_every=max(1, options.rounds // 20),
            )
            curve = [(m["round"] + 1, m["test_accuracy"]) for m in run.metrics if "test_accuracy" in m]
            cell = run.statement.cell("sample", "public")
            row = {
                "seed": seed,
                "accuracy": curve[-1][1],
                "curve": curve,
                "epsilon": None if cell.epsilon == float("inf") else cell.epsilon,
                "sampling_rate": run.metrics[-1].get("sampling_rate", rate),
                "noise_multiplier": run.summary["noise_multiplier"],
            }
            results.setdefault(label, []).append(row)
            print(f"seed {seed}  {label}: accuracy {curve[-1][1]:.4f}  rate {row['sampling_rate']:.4f}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    (options.out / "results.json").write_text(
        json.dumps({"settings": settings, "results": results}, indent=2) + "\n", encoding="utf-8"
    )
    draw(options.out)
    for label, rows in results.items():
        accuracies = [float(row["accuracy"]) for row in rows]  # type: ignore[arg-type]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(f"{label}: {100 * statistics.mean(accuracies):.2f} ± {100 * spread:.2f} %")


if __name__ == "__main__":
    main()
