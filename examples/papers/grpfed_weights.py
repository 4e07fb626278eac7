"""What GRP-FED's weights do to the shared model: T_g over powers, loss reports, caps and cohorts, without the rest.

    PRIVFL_DATA=… python examples/papers/grpfed_weights.py --out results/grpfed
    python examples/papers/grpfed_weights.py --out results/small --small       # digits, a few seconds

What stays with a client (its extractor, its discriminator) changes nothing of the shared model, bit by bit; leaving it
out saves two thirds of the time. Data, cohorts, batches and initial models are those of ``grpfed.py``. T_g is measured
on the global test, so a setting that is picked by it was picked on test data. A finished run is written to
``grpfed-weights.json`` at once; call the command again after an interruption.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import privfl as pf
from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.algorithms.fair.adaptive_weights import capped, loss_weights
from privfl.metrics.classification import classification
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.simulation.callbacks import Simulation

sys.path.insert(0, str(Path(__file__).parent))
from grpfed import FEDERATIONS, global_losses

EQUAL = {"q": 0.0, "q_step": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "FedAvg, weights by size": {},
    "equal weights (q = 0)": EQUAL,
    "q from 10, last epoch (the defaults)": {"q": 10.0},
    "q from 10, last batch": {"loss_report": "last_batch"},
    "q from 10, after training": {"loss_report": "post_eval"},
    "q from 10, before training": {"loss_report": "pre_eval"},
    "q = 10 fixed, last epoch": {"q_step": 0.0},
    "q from 3, before training": {"q": 3.0, "loss_report": "pre_eval"},
    "q from 1, before training": {"q": 1.0, "loss_report": "pre_eval"},
    "q from 1, last epoch": {"q": 1.0},
    "q from 10, last epoch, weights up to 0.2": {"lambda_max": 0.2},
    "q from 10, before training, weights up to 0.2": {"lambda_max": 0.2, "loss_report": "pre_eval"},
}
"""By name, what differs from GRP-FED's defaults; "before training" is the loss of the received model."""


@dataclass(frozen=True)
class SharedPath(pf.GRPFed):
    """GRP-FED without what stays with a client.

    Args:
        tape: for every round the members [m] and their weights [m].
    """

    keeps: ClassVar[tuple[str, ...]] = ()
    tape: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def initial_client_state(self, client: int) -> Tensors:
        return {}

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {**Algorithm.begin(self, received, client_state, training), "tally": received["parameters"].new_zeros(2)}

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        if not self.reports_once:
            tally = self.losses(local["parameters"], batch, client, "batch-losses")
            if self.loss_report == "last_epoch_mean":
                tally = local["tally"] + tally * batch.last.to(tally.dtype)
            local["tally"] = tally
        Algorithm.step(self, local, received, batch, client, training)

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        after = super().aggregate(server, total, round, training)
        weights = capped(loss_weights(total["loss"], after["q"]), self.lambda_max)
        self.tape.append((round.members, weights))
        return after

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        return {}


def run(name: str, setting: str, fraction: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run: T_g, the losses over all clients at its end, and whom its weights favoured."""
    began = time.process_time()
    federation = FEDERATIONS[name](options, seed)
    task, found = federation.task, {}
    algorithm = SharedPath(**SETTINGS[setting]) if SETTINGS[setting] else pf.FedAvg()
    sizes = torch.tensor([len(task.clients[client]) for client in range(len(task.clients))], dtype=torch.float64)

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        if line["round"] + 1 == options.rounds:
            logits = simulation.engine.logits(simulation.server["parameters"], task.test_inputs)
            found["T_g"] = classification(logits, task.test_targets)["test_macro_f1"]
            found.update({f"{key}_loss": value for key, value in global_losses(simulation, federation).items()})

    pf.simulate(
        task,
        algorithm,
        rounds=options.rounds,
        training=pf.LocalTraining(
            learning_rate=options.learning_rate, momentum=0.9, batch_size=options.batch_size, epochs=options.epochs
        ),
        cohort=pf.FixedCohort(max(1, round(fraction * len(task.clients)))),
        seed=seed,
        evaluate_every=options.rounds,
        execution=pf.Execution(device="cpu", engine="loop", workers=1),
        callbacks=[watch],
    )
    if isinstance(algorithm, SharedPath):
        found["effective_clients"] = statistics.median(1 / float(w.square().sum()) for _, w in algorithm.tape)
        found["size_of_weighted"] = statistics.mean(
            float(w @ sizes[members] / sizes[members].mean()) for members, w in algorithm.tape
        )
    row = {"dataset": name, "setting": setting, "fraction": fraction, "seed": seed, "rounds": options.rounds}
    row |= {key: round(value, 4) for key, value in found.items()}
    return row | {"epochs": options.epochs, "processor_seconds": round(time.process_time() - began, 1)}


COLUMNS = ("T_g", "mean_loss", "max_loss", "effective_clients", "size_of_weighted")


def table(rows: list[dict[str, Any]]) -> str:
    """Means ± standard deviations over the seeds, as a Markdown table."""
    names = ("dataset", "clients", "rounds", "setting", *COLUMNS, "seeds")
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    keys = dict.fromkeys((row["dataset"], row["fraction"], row["rounds"], row["setting"]) for row in rows)
    for name, fraction, rounds, setting in keys:
        wanted = (name, fraction, rounds, setting)
        mine = [row for row in rows if (row["dataset"], row["fraction"], row["rounds"], row["setting"]) == wanted]
        cells = []
        for column in COLUMNS:
            values = [row[column] for row in mine if column in row]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 and column == "T_g" else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "–")
        lines.append(f"| {name} | {fraction:g} | {rounds} | {setting} | {' | '.join(cells)} | {len(mine)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for grpfed-weights.json")
    parser.add_argument("--dataset", action="append", choices=tuple(FEDERATIONS), help="may be repeated; default both")
    parser.add_argument("--setting", action="append", choices=tuple(SETTINGS), help="may be repeated; default all")
    parser.add_argument("--fraction", type=float, default=0.2, help="of the clients that take part in a round")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--beats", type=int, default=100, help="of each kind from each patient, at most")
    parser.add_argument("--images", type=int, default=5_000, help="training images of CIFAR-10")
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, 3 rounds, four settings")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.context, options.rounds, options.seeds = ["digits"], list(SETTINGS)[:4], 3, 1
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "grpfed-weights.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    keys = ("dataset", "setting", "fraction", "seed", "rounds", "epochs")
    for seed in range(options.seeds):
        for name in options.dataset or ("mitbih", "cifar10"):
            for setting in options.context or SETTINGS:
                wanted = (name, setting, options.fraction, seed, options.rounds, options.epochs)
                if any(tuple(row[key] for key in keys) == wanted for row in rows):
                    continue
                rows.append(run(name, setting, options.fraction, seed, options))
                settings = {key: getattr(options, key) for key in ("learning_rate", "batch_size", "beats", "images")}
                store.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8")
                print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
