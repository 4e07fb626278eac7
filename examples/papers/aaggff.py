"""AAggFF against plain averaging and five fair methods: Tables 3.6, 3.7 and 3.10 of the paper on data at hand.

    PRIVFL_DATA=… python examples/papers/aaggff.py --out results/aaggff
    python examples/papers/aaggff.py --out results/small --small       # digits, under a minute
    PRIVFL_DATA=… python examples/papers/aaggff.py --full --plan     # the paper's tables: docs/results/full.md

Cross-silo: heart disease (4 hospitals), Berka loans (7 regions), medical question pairs (11 doctors), one logistic
regression each, scored by every client's AUROC on its own held-out fifth. Cross-device: Fashion-MNIST over 100 clients,
5 a round, scored by accuracy on every client's own held-out fifth. Every finished run is written to ``results.json`` at
once, and an interrupted study goes on where it stopped: call the command again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import full
import numpy as np
import torch
import torch.nn.functional as F
from aaggff_figures import draw
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import privfl as pf
from privfl.algorithms.fair.online_decisions import relative_losses, respond
from privfl.data.dataset import Dataset
from privfl.metrics.fairness import fairness

ADAPTIVE = {"server_learning_rate": 0.01, "tau": 1e-4}
OPTIMISERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg": (pf.FedAvg(), {}),
    "FedProx": (pf.FedProx(mu=0.001), {"mu": 0.001}),
    "FedAdam": (pf.FedAdam(beta2=0.999, **ADAPTIVE), {"server_optimiser": "fedadam", **ADAPTIVE}),
    "FedYogi": (pf.FedYogi(beta2=0.999, **ADAPTIVE), {"server_optimiser": "fedyogi", **ADAPTIVE}),
    "FedAdagrad": (pf.FedAdagrad(**ADAPTIVE), {"server_optimiser": "fedadagrad", "beta1": 0.0, **ADAPTIVE}),
}
"""An optimiser alone, and what plugs it into AAggFF; constants of the authors' code."""
FAIR: dict[str, dict[str, float]] = {
    "berka": {"afl": 0.01, "q": 1.0, "tilt": 0.1, "epsilon": 1.0, "base": 3.0},
    "questions": {"afl": 0.01, "q": 0.1, "tilt": 0.1, "epsilon": 0.1, "base": 2.0},
    "fashion": {"q": 0.1, "tilt": 0.1, "epsilon": 0.5, "base": 3.0},
}
"""What the paper's sweeps chose for the other fair methods; of its cross-device data, SpeechCommands'."""


@dataclass(frozen=True)
class CodesNormal(pf.AAggFFS):
    """AAggFF-S with the Normal response as the authors' code has it, 3/2 − Φ: it *falls* with the loss."""

    def answers(self, reports: Tensor, lower: float, upper: float) -> Tensor:
        """Responses between half of the range and three halves of it."""
        return lower + (upper - lower) * (1.5 - respond(relative_losses(reports.double()), "normal", 0.0, 1.0))


class Logistic(nn.Module):
    """Logistic regression with one logit z: its two scores (0, z) have the cross-entropy of z."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 1)
        nn.init.xavier_normal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, inputs] -> [B, 2]."""
        logit = self.linear(inputs)
        return torch.cat([torch.zeros_like(logit), logit], 1)


@dataclass(frozen=True)
class Silos:
    """A task of a few clients, and who owns each row of its test data."""

    task: pf.Task
    owners: np.ndarray


@dataclass(frozen=True)
class Study:
    """One federation with the settings of the paper: ``data(seed)`` builds it."""

    data: Callable[[int], Any]
    rounds: int
    training: pf.LocalTraining
    cdf: Any
    cohort: int | None = None


def silos(dataset: Dataset, seed: int, without: Iterable[str] = ()) -> Silos:
    """A logistic regression over the natural clients of ``dataset`` but for those named ``without``."""
    assert dataset.clients is not None
    assert dataset.test_clients is not None
    assert dataset.client_names is not None
    out = [dataset.client_names.index(name) for name in without]
    train = ~np.isin(dataset.clients.numpy(), out)
    test = ~np.isin(dataset.test_clients.numpy(), out)
    width = dataset.inputs.shape[1]
    task = pf.Task.from_arrays(
        dataset.inputs[train],
        dataset.targets[train],
        clients=dataset.clients[train],
        test=(dataset.test_inputs[test], dataset.test_targets[test]),
        model=lambda: Logistic(width),
        seed=seed,
    )
    kept = np.unique(dataset.clients.numpy()[train])
    return Silos(task, np.searchsorted(kept, dataset.test_clients.numpy()[test]))


def scaled_apart(data: Dataset) -> Dataset:
    """``data`` with the columns of every client standardised by its own training rows, as the authors prepare heart."""
    assert data.clients is not None
    assert data.test_clients is not None
    x, test_x = data.inputs.clone(), data.test_inputs.clone()
    for client in data.clients.unique():
        rows, test_rows = data.clients == client, data.test_clients == client
        mean, deviation = x[rows].mean(0), x[rows].std(0).clamp_min(1e-3)
        x[rows], test_x[test_rows] = (x[rows] - mean) / deviation, (test_x[test_rows] - mean) / deviation
    return replace(data, inputs=x, test_inputs=test_x)


def bags(pairs: Dataset) -> Dataset:
    """Question pairs as counts of the words that both questions share, and of those that one has more often."""
    assert pairs.vocabulary is not None

    def counts(tokens: Tensor) -> Tensor:
        halves = tokens.view(len(tokens), 2, -1)
        one, two = (
            torch.zeros(len(tokens), pairs.vocabulary or 0).scatter_add_(1, half, (half > 1).float())
            for half in halves.unbind(1)
        )
        return torch.cat([torch.minimum(one, two), (one - two).abs()], 1)

    return Dataset(
        pairs.name,
        counts(pairs.inputs),
        pairs.targets,
        counts(pairs.test_inputs),
        pairs.test_targets,
        2,
        pairs.clients,
        pairs.test_clients,
        client_names=pairs.client_names,
    )


def digits(seed: int) -> Silos:
    """Is a digit 5 or more? Six clients of unlike digits, for a look at the study without files."""
    data = pf.load_dataset("digits", seed=seed)
    parts = pf.Dirichlet(clients=6, alpha=0.5).split(data.targets.numpy(), 10, np.random.default_rng(seed))
    owner = np.zeros(len(data.targets), dtype=np.int64)
    for client, rows in enumerate(parts):
        owner[rows] = client
    held = np.random.default_rng(seed + 1).random(len(owner)) < 0.3
    x, y = data.inputs.flatten(1), (data.targets >= 5).long()
    who = torch.from_numpy(owner)
    names = tuple(map(str, range(6)))
    cut = Dataset("digits", x[~held], y[~held], x[held], y[held], 2, who[~held], who[held], client_names=names)
    return silos(cut, seed)


def fashion(seed: int) -> pf.Task:
    """Fashion-MNIST over 100 clients with Dirichlet(0.3) labels; each holds a fifth back for its own test."""
    partition = pf.Dirichlet(clients=100, alpha=0.3)
    task = pf.load("fashion-mnist", partition=partition, model="logistic", seed=seed)
    return task.with_local_tests(pf.LocalTests(fraction=0.2), seed)


def small_devices(seed: int) -> pf.Task:
    """Digits over 30 clients."""
    task = pf.load("digits", partition=pf.Dirichlet(clients=30, alpha=0.5), model="logistic", seed=seed)
    return task.with_local_tests(pf.LocalTests(fraction=0.2), seed)


def decaying(rate: float, decay: float, every: int, weight_decay: float = 0.0) -> pf.LocalTraining:
    """One epoch of SGD in batches of 20, as everywhere in the paper."""
    return pf.LocalTraining(
        learning_rate=rate, learning_rate_decay=decay, decay_every=every, weight_decay=weight_decay, batch_size=20
    )


FULL: dict[str, Study] = {
    "heart": Study(
        lambda seed: silos(pf.load_dataset("heart-disease", seed=seed), seed), 200, decaying(0.01, 0.999, 2), "frechet"
    ),
    "heart, scaled by hospital": Study(
        lambda seed: silos(scaled_apart(pf.load_dataset("heart-disease", seed=seed)), seed),
        200,
        decaying(0.01, 0.999, 2),
        "frechet",
    ),
    "berka": Study(
        lambda seed: silos(pf.load_dataset("berka", seed=seed, transactions=False), seed, ("north Bohemia",)),
        100,
        decaying(1.0, 0.99, 10, 1e-3),
        "normal",
    ),
    "questions": Study(
        lambda seed: silos(bags(pf.load_dataset("medical-questions", seed=seed, vocabulary=1024)), seed),
        100,
        decaying(0.1, 0.99, 15),
        "logistic",
    ),
    "fashion": Study(fashion, 300, decaying(0.1, 0.96, 30), "gumbel", cohort=5),
}
SMALL: dict[str, Study] = {
    "heart": Study(digits, 4, decaying(0.1, 0.999, 2), "frechet"),
    "fashion": Study(small_devices, 4, decaying(0.1, 0.96, 30), "gumbel", cohort=5),
}


def methods(name: str, study: Study) -> dict[str, Any]:
    """Label → algorithm of all that is compared on one federation."""
    if study.cohort is not None:
        plain = {"FedAvg": pf.FedAvg(weighting="uniform"), "AAggFF-D": pf.AAggFFD(cdf=study.cdf)}
        return plain | others(name)
    fair = {"cdf": study.cdf, "log_regret": True}
    found: dict[str, Any] = {
        "FedAvg": pf.FedAvg(),
        "FedAvg, uniform": pf.FedAvg(weighting="uniform"),
        "AAggFF-S": pf.AAggFFS(**fair),
    }
    if name == "berka":
        found["AAggFF-S, the code's response"] = CodesNormal()
        # With the margin at M the surrogate is loss/M everywhere: no weights, and shorter steps.
        found["PropFair, one slope"] = pf.PropFair(base=2.7, margin=2.7, weighting="uniform")
    found |= others(name)
    if name == "heart":
        for label, (alone, plug) in OPTIMISERS.items():
            found |= {
                label: alone,
                "AAggFF-S" if label == "FedAvg" else f"{label} + AAggFF-S": pf.AAggFFS(**fair, **plug),
            }
        found["AAggFF-S, paper's β"] = pf.AAggFFS(**fair, paper_constants=True)
        for epsilon in (10.0, 1.0):
            label = f"AAggFF-S, responses at ε = {epsilon:g} a round"
            found[label] = pf.AAggFFS(cdf=study.cdf, response_epsilon=epsilon)
    return found


def others(name: str) -> dict[str, Any]:
    """The fair methods that the paper compares with on a federation like this, averaging as its code does."""
    chosen = FAIR.get(name)
    if chosen is None:
        return {}
    found: dict[str, Any] = {"AFL": pf.AFL(step_size=chosen["afl"])} if "afl" in chosen else {}
    return found | {
        "FedAvg, uniform, server rate 0.65": pf.FedAvg(weighting="uniform", server_learning_rate=0.65),
        "q-FedAvg": pf.QFedAvg(q=chosen["q"]),
        "TERM": pf.TERM(t=chosen["tilt"], weighting="uniform"),
        "FedMGDA": pf.FedMGDA(epsilon=chosen["epsilon"]),
        "PropFair": pf.PropFair(base=chosen["base"], weighting="uniform"),
    }


def run(study: Study, algorithm: Any, seed: int) -> dict[str, Any]:
    """One run: scores of the clients at the end, curves, and what the decisions did."""
    data = study.data(seed)
    task, curve, last = (data.task if isinstance(data, Silos) else data), [], {}

    def watch(simulation: Any, line: dict[str, Any]) -> None:
        if "test_loss" not in line:
            return
        if isinstance(data, Silos):
            logits = simulation.engine.logits(simulation.server["parameters"], task.test_inputs)
            last["clients"], last["sizes"] = areas(logits, task.test_targets, data.owners)
            found = fairness(last["clients"], last["sizes"])
        else:
            found = {name: line[f"local_{name}"] for name in ("worst_tenth", "best_tenth", "gini", "parity_gap")}
            found["client_average"] = line["local_accuracy"]
        losses = training_losses(simulation.engine, simulation.server["parameters"], task)
        found |= {"mean_loss": float(losses.mean()), "worst_loss": float(losses.max())}
        curve.append({"round": line["round"] + 1, **found})
        last["losses"] = losses.tolist()
        if "decision" in simulation.server:
            last["decision"] = simulation.server["decision"].tolist()

    done = pf.simulate(
        task,
        algorithm,
        rounds=study.rounds,
        training=study.training,
        cohort=None if study.cohort is None else pf.FixedCohort(study.cohort),
        seed=seed,
        evaluate_every=max(1, study.rounds // 40),
        execution=pf.Execution(engine="loop", workers=1),
        callbacks=[watch],
    )
    tracked = ("regret", "regret_bound", "effective_clients", "largest_weight")
    lines = [line for line in done.metrics if "test_loss" in line]
    decisions = {name: [line[name] for line in lines] for name in tracked if name in lines[-1]}
    return rounded({"curve": curve, **last, "decisions": decisions})


def rounded(value: Any) -> Any:
    """``value`` with its numbers cut to six digits, so that the file stays small."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def training_losses(engine: Any, parameters: Tensor, task: pf.Task) -> np.ndarray:
    """Every client's mean training loss: what AAggFF hears."""
    rows = task.clients.rows
    each = F.cross_entropy(engine.logits(parameters, task.inputs[rows]), task.targets[rows], reduction="none")
    return np.array([float(part.mean()) for part in each.split(task.clients.sizes.tolist())])


def areas(logits: Tensor, targets: Tensor, owners: np.ndarray) -> tuple[list[float], list[int]]:
    """AUROC and number of test rows of every client whose test rows have both classes."""
    scores, truth = (logits[:, 1] - logits[:, 0]).numpy(), targets.numpy()
    found, sizes = [], []
    for client in range(int(owners.max()) + 1):
        mine = owners == client
        if len(np.unique(truth[mine])) == 2:
            found.append(float(roc_auc_score(truth[mine], scores[mine])))
            sizes.append(int(mine.sum()))
    return found, sizes


COLUMNS = {"client_average": "Avg", "worst_tenth": "Worst", "best_tenth": "Best", "gini": "100·Gini"}
LOSSES = {"mean_loss": "mean training loss", "worst_loss": "worst client's"}


def table(rows: list[dict[str, Any]], name: str) -> str:
    """Means (standard deviations) over the seeds as Markdown, scores in percent."""
    columns = COLUMNS | LOSSES
    lines = [f"| {name} | " + " | ".join(columns.values()) + " |", "|---" * (1 + len(columns)) + "|"]
    mine = [row for row in rows if row["study"] == name]
    for label in dict.fromkeys(row["method"] for row in mine):
        ends = [row["curve"][-1] for row in mine if row["method"] == label]
        cells = []
        for column in columns:
            scale, places = (100, 2) if column in COLUMNS else (1, 3)
            values = [scale * end[column] for end in ends]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.{places}f} ({spread:.{places}f})")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the tables and draw the figures."""
    if full.asked():
        full.run("aaggff")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and figures")
    parser.add_argument("--only", choices=list(FULL), action="append", help="these federations, not all")
    parser.add_argument("--method", action="append", help="these methods by their names in the tables, not all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--small", action="store_true", help="digits, 4 rounds, one seed: shows that it works")
    parser.add_argument(
        "--full", action="store_true", default=argparse.SUPPRESS, help="the paper's tables: --full --help"
    )
    options = parser.parse_args()
    studies, seeds = (SMALL, [2]) if options.small else (FULL, options.seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "results.json"
    rows = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    finished = {(row["study"], row["method"], row["seed"]) for row in rows}
    for name, study in studies.items():
        for seed in seeds:
            for label, algorithm in methods(name, study).items():
                if (options.only and name not in options.only) or (name, label, seed) in finished:
                    continue
                if options.method and label not in options.method:
                    continue
                began = time.perf_counter()
                rows.append({"study": name, "method": label, "seed": seed, **run(study, algorithm, seed)})
                store.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
                end = {column: round(100 * rows[-1]["curve"][-1][column], 2) for column in COLUMNS}
                print(f"{name} seed {seed} {label}: {end} in {time.perf_counter() - began:.0f} s", flush=True)
    for name in dict.fromkeys(row["study"] for row in rows):
        print(table(rows, name) + "\n")
    draw(rows, options.out)


if __name__ == "__main__":
    main()
