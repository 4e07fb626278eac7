"""GRP-FED (arXiv 2108.13858) against FedAvg and local training: Table 1's measures and Figure 3's losses, in small.

    PRIVFL_DATA=… python examples/papers/grpfed.py --out results/grpfed
    python examples/papers/grpfed.py --out results/small --small       # digits, under a minute
    PRIVFL_DATA=… python examples/papers/grpfed.py --full --plan     # the paper's tables: docs/results/full.md

MIT-BIH: the 47 patients are the clients; 12 of the 15 beat symbols (those with at least 83 beats); at most ``--beats``
of each kind from each patient. CIFAR-10: ``--images`` training images over 50 clients, LongTail(rho = 0.7, tau = 0.5).
A fifth of each client's samples, stratified, is its own test; the global test is the union of these. All methods see
the same cohorts (``--fraction`` of the clients a round), initial model and batches. A finished run is written to
``grpfed.json`` at once; call the command again after an interruption.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import full
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import privfl as pf
from privfl.data.holdout import stratified_holdout
from privfl.metrics.personalisation import personalisation
from privfl.models import Network
from privfl.models.residual import resnet1d
from privfl.simulation.callbacks import Simulation
from privfl.study.chart import few, style

METHODS: dict[str, Any] = {
    "FedAvg": pf.FedAvg(),
    "Local": pf.Local(),
    "GRP-FED": pf.GRPFed(),
    "GRP-FED, losses of the shared model": pf.GRPFed(loss_report="pre_eval"),
    "GRP-FED, weights up to 0.3": pf.GRPFed(lambda_max=0.3),
    "GRP-FED, equal weights": pf.GRPFed(q=0.0, q_step=0.0),
    "GRP-FED, equal weights, β = 1": pf.GRPFed(q=0.0, q_step=0.0, beta=1.0),
    "GRP-FED, q fixed": pf.GRPFed(q_step=0.0),
    "GRP-FED, q from 1": pf.GRPFed(q=1.0),
    "GRP-FED, q from 1, losses of the shared model": pf.GRPFed(q=1.0, loss_report="pre_eval"),
    "GRP-FED, equal weights, β = 0.9": pf.GRPFed(q=0.0, q_step=0.0, beta=0.9),
    "GRP-FED, equal weights, printed discriminator": pf.GRPFed(q=0.0, q_step=0.0, disc_loss="paper"),
    "GRP-FED, non-saturating discriminator": pf.GRPFed(disc_loss="bce"),
    "GRP-FED, equal weights, non-saturating discriminator": pf.GRPFed(q=0.0, q_step=0.0, disc_loss="bce"),
    "FedAvg, uniform": pf.FedAvg(weighting="uniform"),
}
MAIN = ("FedAvg", "Local", "GRP-FED")
SMALL = tuple(METHODS)[:7]
"""What the small form runs."""
MEASURES = ("T_g", "T_l", "T_p", "T_r", "T_l_of_means")
SYMBOLS_LEFT_OUT = ("S", "e", "Q")
HIDDEN = 64
LOSSES_EVERY = 5
"""Rounds between looks at the global model's loss on every client's data."""


@dataclass(frozen=True)
class Federation:
    """Clients' training data as a task, and each client's own test data."""

    task: pf.Task
    own: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(
        cls, name: str, inputs: Tensor, targets: Tensor, owners: Tensor, model: Callable[[], nn.Module], seed: int
    ) -> Federation:
        """Hold out a fifth of every client's rows; ``owners`` numbers the clients 0..M-1."""
        held = torch.from_numpy(stratified_holdout(targets.numpy(), clients=owners.numpy(), seed=seed))
        data = pf.Dataset(
            name,
            inputs[~held],
            targets[~held],
            inputs[held],
            targets[held],
            int(targets.max()) + 1,
            owners[~held],
            owners[held],
        )
        own = [
            (inputs[held & (owners == client)], targets[held & (owners == client)])
            for client in range(int(owners.max()) + 1)
        ]
        return cls(pf.Task.from_dataset(data, model=model, seed=seed), own)


def two_layers(features: int, classes: int) -> nn.Module:
    """The shared classifier C: two fully connected layers."""
    return nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))


def heartbeat_net() -> nn.Module:
    """The five-convolution 1-D ResNet with 8 and 16 channels."""
    body = resnet1d((1, 140), 12, width=8).body
    return Network(body, two_layers(16, 12), 16)


def heartbeat_mlp() -> nn.Module:
    """Three dense layers in place of convolutions: a beat has 140 numbers, and patients few examples."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(140, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    return Network(body, two_layers(64, 12), 64)


def picture_net() -> nn.Module:
    """Two strided convolutions and a linear layer, in place of the paper's ResNet."""
    layers = [nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()]
    return Network(nn.Sequential(*layers, nn.Linear(32 * 36, 64), nn.ReLU()), two_layers(64, 10), 64)


def digit_net() -> nn.Module:
    """One hidden layer, for the small form."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
    return Network(body, two_layers(32, 10), 32)


def heartbeats(options: argparse.Namespace, seed: int) -> Federation:
    """MIT-BIH: up to ``beats`` of each kind from each patient."""
    data = pf.load_dataset("mitbih", classes="symbols")
    inputs, targets, owners = (
        torch.cat(pair)
        for pair in (
            (data.inputs, data.test_inputs),
            (data.targets, data.test_targets),
            (data.clients, data.test_clients),
        )
    )
    names = data.class_names
    kept = [number for number, name in enumerate(names) if name not in SYMBOLS_LEFT_OUT]
    new = torch.full((len(names),), -1)
    new[kept] = torch.arange(len(kept))
    targets = new[targets]
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    group = (owners * len(names) + targets)[order].numpy()
    place = np.empty(len(group), dtype=np.int64)
    by_group = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[by_group], prepend=-1))
    place[by_group] = np.arange(len(group)) - np.repeat(starts, np.diff(np.append(starts, len(group))))
    rows = order[(place < options.beats) & (targets[order] >= 0).numpy()].sort().values
    model = {"resnet": heartbeat_net, "mlp": heartbeat_mlp}[options.network]
    return Federation.of("mitbih", inputs[rows], targets[rows], owners[rows], model, seed)


def long_tail(name: str, samples: int, clients: int, model: Callable[[], nn.Module], seed: int) -> Federation:
    """``samples`` training images of ``name``, dealt to clients by the (rho, tau) law."""
    data = pf.load_dataset(name)
    chosen = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(seed))[:samples]
    targets = data.targets[chosen]
    parts = pf.LongTail(clients, rho=0.7, tau=0.5).split(
        targets.numpy(), data.classes, np.random.default_rng(seed), None
    )
    owners = torch.repeat_interleave(torch.arange(clients), torch.tensor([len(part) for part in parts]))
    rows = torch.from_numpy(np.concatenate(parts))
    return Federation.of(name, data.inputs[chosen[rows]], targets[rows], owners, model, seed)


def pictures(options: argparse.Namespace, seed: int) -> Federation:
    """CIFAR-10 over 50 clients."""
    return long_tail("cifar10", options.images, 50, picture_net, seed)


def digits(options: argparse.Namespace, seed: int) -> Federation:
    """Digits over 10 clients, for the small form."""
    return long_tail("digits", 600, 10, digit_net, seed)


FEDERATIONS = {"mitbih": heartbeats, "cifar10": pictures, "digits": digits}


def global_losses(simulation: Simulation, federation: Federation) -> dict[str, float]:
    """Mean and maximum over all clients of the global model's loss on their training data (Figure 3)."""
    task = federation.task
    logits = simulation.engine.logits(simulation.server["parameters"], task.inputs)
    losses = F.cross_entropy(logits, task.targets, reduction="none")
    means = torch.stack([losses[task.clients[client]].mean() for client in range(len(task.clients))])
    return {"mean": float(means.mean()), "max": float(means.max())}


def scores(simulation: Simulation, federation: Federation) -> dict[str, float]:
    """T_g, T_p, T_r and T_l of what the simulation has trained."""
    own_tests, everywhere, of_global = predictions(simulation, federation)
    return personalisation(own_tests, everywhere, federation.task.test_targets, of_global)


def predictions(
    simulation: Simulation, federation: Federation
) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor], Tensor]:
    """What every client's model predicts on its own test and on the global one, and the global model there.

    The first with the targets, as :func:`privfl.metrics.personalisation.personalisation` takes them.
    """
    algorithm, server, task = simulation.algorithm, simulation.server, federation.task
    shared, inputs = server["parameters"], task.test_inputs
    models = []
    for client in range(len(task.clients)):
        client_state = simulation.client_state.get(client, {})
        own = (
            {"own": client_state.get("parameters", shared)}
            if algorithm.ensemble
            else algorithm.personal(server, client_state)
        )
        models.append(next(iter(own.values()), shared))
    of_shared = simulation.engine.logits(shared, inputs)
    everywhere = [of_shared if model is shared else simulation.engine.logits(model, inputs) for model in models]
    own_tests = [(simulation.engine.logits(model, x), y) for model, (x, y) in zip(models, federation.own, strict=True)]
    of_global = torch.stack([logits.softmax(1) for logits in everywhere]).mean(0) if algorithm.ensemble else of_shared
    return own_tests, everywhere, of_global


def run(name: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run: its scores, its losses over the rounds, and the processor time that it took."""
    began = time.process_time()
    federation = FEDERATIONS[name](options, seed)
    clients = len(federation.task.clients)
    curve: list[dict[str, float]] = []
    final: dict[str, float] = {}

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        point = {key: line[key] for key in ("q", "sigma", "effective_clients") if key in line}
        if method != "Local" and (line["round"] == 0 or (line["round"] + 1) % LOSSES_EVERY == 0):
            point |= global_losses(simulation, federation)
        curve.append(point)
        if line["round"] + 1 == options.rounds:
            final.update(scores(simulation, federation))

    ended = pf.simulate(
        federation.task,
        METHODS[method],
        rounds=options.rounds,
        training=pf.LocalTraining(
            learning_rate=options.learning_rate, momentum=0.9, batch_size=options.batch_size, epochs=5
        ),
        cohort=pf.FixedCohort(max(1, round(options.fraction * clients))),
        seed=seed,
        evaluate_every=options.rounds,
        execution=pf.Execution(device="cpu", engine="loop", workers=1),
        callbacks=[watch],
    )
    return {
        "dataset": name,
        "method": method,
        "seed": seed,
        **{measure: round(final[measure], 4) for measure in MEASURES},
        "clients": clients,
        "training_samples": len(federation.task.targets),
        "epsilon": str(ended.statement.cell("sample", "server").epsilon),
        "processor_seconds": round(time.process_time() - began, 1),
        "curve": [{key: round(value, 4) for key, value in point.items()} for point in curve],
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Figure 3 of the paper, and the power: a row for each dataset, means over the seeds, range as a band."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    figure = Figure(figsize=(10.5, 3.0 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 3, squeeze=False)
    for (left, middle, right), name in zip(panels, names, strict=True):
        for number, method in enumerate(("FedAvg", "GRP-FED")):
            curves = [row["curve"] for row in rows if (row["dataset"], row["method"]) == (name, method)]
            look = style(number) | {"linewidth": 1.6, "markersize": 4.5}
            for key, dashes in (("mean", "-"), ("max", "--")):
                _band(left, curves, key, label=f"{method}, {key}", **look | {"linestyle": dashes})
            if method == "GRP-FED":
                _band(middle, curves, "q", label="q", **look)
                _band(right, curves, "effective_clients", label="1/Σλ²", **look)
        left.set_ylabel(f"{name}\nloss over clients (nats)")
        left.legend(frameon=False, fontsize=8)
        middle.set_ylabel("power q")
        right.set_ylabel("effective clients 1/Σλ²")
        left.set_ylim(bottom=0)
        right.set_ylim(bottom=0)
        for axes in (left, middle, right):
            axes.set_xlabel("round")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="0.9", linewidth=0.8)
    figure.savefig(path, dpi=150)


def _band(axes: Any, curves: list[list[dict[str, float]]], key: str, **look: Any) -> None:
    if not curves:
        return
    rounds = [number for number in range(len(curves[0])) if all(key in curve[number] for curve in curves)]
    values = np.array([[curve[number][key] for number in rounds] for curve in curves])
    axes.plot(np.array(rounds) + 1, values.mean(0), markevery=few(len(rounds), 6), **look)
    axes.fill_between(np.array(rounds) + 1, values.min(0), values.max(0), color=look["color"], alpha=0.15, linewidth=0)


def table(rows: list[dict[str, Any]]) -> str:
    """Means ± standard deviations over the seeds, as a Markdown table."""
    lines = ["| dataset | method | " + " | ".join(MEASURES) + " | seeds |", "|" + "---|" * (len(MEASURES) + 3)]
    for name, method in dict.fromkeys((row["dataset"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["dataset"], row["method"]) == (name, method)]
        cells = []
        for measure in MEASURES:
            values = [row[measure] for row in mine]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        lines.append(f"| {name} | {method} | " + " | ".join(cells) + f" | {len(mine)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table and draw the figure."""
    if full.asked():
        full.run("grpfed")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for grpfed.json and grpfed-losses.png")
    parser.add_argument("--dataset", action="append", choices=tuple(FEDERATIONS), help="may be repeated; default both")
    parser.add_argument("--method", action="append", choices=tuple(METHODS), help="may be repeated; default the main 3")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=0.2, help="of the clients that take part in a round")
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--beats", type=int, default=100, help="of each kind from each patient, at most")
    parser.add_argument("--network", choices=("resnet", "mlp"), default="resnet", help="what learns heartbeats")
    parser.add_argument("--images", type=int, default=5_000, help="training images of CIFAR-10")
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, 10 rounds, seven methods")
    parser.add_argument(
        "--full", action="store_true", default=argparse.SUPPRESS, help="the paper's tables: --full --help"
    )
    options = parser.parse_args()
    if options.small:
        options.dataset, options.method, options.rounds, options.seeds = ["digits"], list(SMALL), 10, 1
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "grpfed.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    for seed in range(options.seeds):
        for name in options.dataset or ("mitbih", "cifar10"):
            for method in options.method or MAIN:
                wanted = (name, method, seed, options.rounds)
                if any((row["dataset"], row["method"], row["seed"], len(row["curve"])) == wanted for row in rows):
                    continue
                rows.append(run(name, method, seed, options))
                settings = {
                    key: value
                    for key, value in vars(options).items()
                    if key in ("rounds", "fraction", "learning_rate", "batch_size", "beats", "network", "images")
                }
                store.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")
                last = {measure: rows[-1][measure] for measure in MEASURES}
                print(name, method, f"seed {seed}", last, f"{rows[-1]['processor_seconds']} s", flush=True)
    print(table(rows))
    draw(rows, options.out / "grpfed-losses.png")


if __name__ == "__main__":
    main()
