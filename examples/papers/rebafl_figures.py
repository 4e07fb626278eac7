"""What ReBaFL's parts do to the diversity of the clients' models, and what `epsilon` and μ decide: Figs. 7 and 8.

    PRIVFL_DATA=… python examples/papers/rebafl_figures.py --out results/rebafl-figures
    python examples/papers/rebafl_figures.py --out results/small --small       # digits, under a minute

Fashion-MNIST, 20 clients of two classes, each of whom answers with probability 0.5; all methods of a seed meet the same
partition, initial model and drop-outs. In every round clients send the squared norm of their update beside it, from
which the server has equation (24), the mean squared distance of the local models from their mean. A finished run is
never repeated, an interrupted one goes on where it stopped, and seeds can be added later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rebafl import TRAINING, figures_of
from torch import Tensor

import privfl as pf
from privfl.algorithms.base import Round, Tensors
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining


class Diversity:
    """Added to an algorithm whose clients count alike: Λ = (1/|S|) Σ ‖w_i − w̄‖² of every round, as a metric.

    The mean of squared norms less the squared norm of the mean, of updates instead of models, which moves both alike.
    """

    def fields(self) -> tuple[Field, ...]:
        return (*super().fields(), Field("square", shape=(1,)))  # type: ignore[misc]

    def start(self, parameters: Tensor) -> Tensors:
        return {**super().start(parameters), "diversity": parameters.new_zeros(())}  # type: ignore[misc]

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        upload: Tensors = super().finish(local, received, training)  # type: ignore[misc]
        return {**upload, "square": upload["update"].square().sum().view(1)}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        after: Tensors = super().aggregate(server, total, round, training)  # type: ignore[misc]
        if round.weight == 0:
            return after
        mean = total["update"].double() / round.weight
        diversity = total["square"].double()[0] / round.weight - mean.square().sum()
        return {**after, "diversity": diversity.to(server["diversity"])}

    def server_metrics(self, server: Tensors) -> dict[str, float]:
        metrics: dict[str, float] = super().server_metrics(server)  # type: ignore[misc]
        return {**metrics, "weight_diversity": float(server["diversity"])}


@dataclass(frozen=True)
class DiverseFedAvg(Diversity, pf.FedAvg):
    """FedAvg that shows how far its clients' models lie apart."""


@dataclass(frozen=True)
class DiverseReBaFL(Diversity, pf.ReBaFL):
    """ReBaFL that does."""


EPSILONS, MUS = (1e-4, 1e-3, 1e-2, 1e-1, 2e-1), (0.1, 0.5, 1.0, 5.0)
VARIANTS: dict[str, Any] = {
    "FedAvg": DiverseFedAvg(weighting="uniform"),
    "F-Aug only": DiverseReBaFL(epsilon=1.0),
    **{f"R-BSM only, epsilon = {epsilon:g}": DiverseReBaFL(epsilon=epsilon, mu=0.0) for epsilon in EPSILONS},
    **{f"ReBaFL, μ = {mu:g}": DiverseReBaFL(mu=mu) for mu in MUS},
}
"""FedAvg, each part alone, and both, at the values of Fig. 8: `epsilon` by itself, then μ at 0.01."""


def trained(variant: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run: test accuracy and diversity after every round."""
    folder = options.out / "runs" / f"{list(VARIANTS).index(variant)}-{seed}"
    partition = pf.Pathological(options.clients, classes_per_client=2, samples_per_client=options.samples)
    began = time.process_time()
    pf.simulate(
        pf.load(options.dataset, partition=partition, model=options.model, seed=seed),
        VARIANTS[variant],
        rounds=options.rounds,
        training=TRAINING,
        availability=pf.Bernoulli(0.5),
        seed=seed,
        execution=pf.Execution(engine="loop", workers=1),
        out=folder,
        resume=folder.exists(),
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "variant": variant,
        "seed": seed,
        "accuracy": [line["test_accuracy"] for line in lines],
        "diversity": [line["weight_diversity"] for line in lines],
        "processor_seconds": round(time.process_time() - began, 1),
    }


def settled(row: dict[str, Any]) -> dict[str, float]:
    """Of one run: its last accuracies and their change, in points, and the mean diversity of its second half."""
    diversity = row["diversity"]
    return {**figures_of(row["accuracy"]), "diversity": statistics.mean(diversity[len(diversity) // 2 :])}


def main() -> None:
    """Run what is missing, all variants of a seed before the next seed, then print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and run directories")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="a variant; may be repeated")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--model", default="rebafl-fmnist")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=500, help="samples of a client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, few rounds: under a minute")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.model, options.clients, options.samples = "digits", "two-nn", 10, 100
        options.rounds, options.seeds = 4, 1
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    finished = {(row["variant"], row["seed"]) for row in rows}
    for seed, variant in product(range(options.seeds), VARIANTS):
        if (variant, seed) in finished or (options.variant and variant not in options.variant):
            continue
        rows.append(trained(variant, seed, options))
        settings = {name: value for name, value in vars(options).items() if name not in ("out", "variant")}
        store.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"seed {seed}, {variant}:", {name: round(one, 3) for name, one in settled(rows[-1]).items()}, flush=True)
    print("\nlast rounds (%), change from round to round (points), diversity in the second half")
    for variant in VARIANTS:
        found = [settled(row) for row in rows if row["variant"] == variant]
        if found:
            last, swing, diversity = (
                statistics.mean(one[name] for one in found) for name in ("last", "swing", "diversity")
            )
            print(f"  {variant:24} {last:6.2f} {swing:6.2f} {diversity:9.4f}   ({len(found)} seeds)")


if __name__ == "__main__":
    main()
