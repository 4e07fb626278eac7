"""GRP-FED's Table 1 on MIT-BIH with every rival, each at a learning rate of its own, every patient in every round.

    PRIVFL_DATA=… python examples/papers/grpfed_tuned.py --out results/grpfed-tuned
    python examples/papers/grpfed_tuned.py --out results/small --small       # digits: does it run?

Patients, beats and scores are those of ``grpfed.py``; the network has dense layers, which learn more from so few beats
than its convolutions do. The rate of a method is the one with the highest T_l on a fifth of the training beats of a
seed that is not compared, among those at which no upload was lost for being infinite; one beyond the grid is tried
where the best is at an end. Variants of GRP-FED (``VARIANTS``) take the rate of the form that they vary. Finished runs
in ``grpfed-tuned.json`` are kept: call the command again after an interruption, or with more ``--seeds``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fedevg_tuned import beyond
from grpfed import FEDERATIONS, MEASURES, Federation, global_losses, predictions, table
from torch import Tensor

import privfl as pf
from privfl.metrics.personalisation import macro_f1, personalisation
from privfl.simulation.callbacks import Simulation

TUNING_SEED = 1000
RATES = (0.01, 0.03, 0.1)
CHOSEN_BY = "T_l"
GENTLE: dict[str, Any] = {"q": 1.0, "loss_report": "pre_eval"}
"""GRP-FED with weights from which more than a few clients count."""
METHODS: dict[str, pf.Algorithm] = {
    "FedAvg": pf.FedAvg(weighting="uniform"),
    "Local": pf.Local(),
    "AFL": pf.AFL(),
    "q-FFL": pf.QFedAvg(),
    "per-FedAvg": pf.PerFedAvg(weighting="uniform"),
    "pFedMe": pf.PFedMe(weighting="uniform"),
    "LG-FedAvg": pf.LGFedAvg(weighting="uniform"),
    "GRP-FED, q from 10": pf.GRPFed(),
    "GRP-FED, q from 1": pf.GRPFed(**GENTLE),
}
"""The rows of Table 1, GRP-FED as the paper sets it and with a power at which most clients count."""
VARIANTS: dict[str, tuple[str, pf.Algorithm]] = {
    "GRP-FED, q from 1, non-saturating": ("GRP-FED, q from 1", pf.GRPFed(**GENTLE, disc_loss="bce")),
    "GRP-FED, q from 10, non-saturating": ("GRP-FED, q from 10", pf.GRPFed(disc_loss="bce")),
    **{
        f"GRP-FED, q from 1, β = {beta:g}": ("GRP-FED, q from 1", pf.GRPFed(**GENTLE, beta=beta))
        for beta in (0.1, 0.3, 0.7, 0.9, 1.0)
    },
}
"""By name, the method whose rate is taken and what is varied: the regulariser's form, and β (Figure 4)."""
LOSSES_EVERY = 10


def without_test(federation: Federation, seed: int) -> Federation:
    """Only the training rows, of which every client holds out a fifth: what rates are chosen on."""
    task = federation.task
    owners = torch.empty(len(task.targets), dtype=torch.int64)
    for client in range(len(task.clients)):
        owners[task.clients[client]] = client
    inputs = task.inputs[torch.arange(len(owners))]
    return Federation.of(task.name, inputs, task.targets, owners, lambda: task.model(0), seed)


def train(method: str, rate: float, seed: int, tuning: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One run with its scores: on training rows held out when ``tuning``, else on the test rows."""
    began = time.process_time()
    federation = FEDERATIONS[options.dataset](options, seed)
    if tuning:
        federation = without_test(federation, seed)
    algorithm = METHODS[method] if method in METHODS else VARIANTS[method][1]
    rounds = options.tuning_rounds if tuning else options.rounds
    final: dict[str, float] = {}
    patients: dict[str, list[float]] = {}
    losses: list[dict[str, float]] = []

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        ended = line["round"] + 1 == rounds
        if method != "Local" and not tuning and (ended or (line["round"] + 1) % LOSSES_EVERY == 0):
            losses.append({"round": line["round"] + 1, **global_losses(simulation, federation)})
        if ended:
            found = predictions(simulation, federation)
            final.update(personalisation(*found[:2], federation.task.test_targets, found[2]))
            if not tuning:
                patients.update(by_patient(simulation, federation, *found[:2]))

    run = pf.simulate(
        federation.task,
        algorithm,
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=rate, momentum=0.9, batch_size=options.batch_size, epochs=5),
        seed=seed,
        evaluate_every=rounds,
        execution=pf.Execution(device="cpu", engine="vectorised", workers=1),
        callbacks=[watch],
    )
    return {
        "dataset": options.dataset,
        "method": method,
        "rate": rate,
        "seed": seed,
        **{measure: round(final[measure], 4) for measure in MEASURES},
        "patients": {name: [round(value, 4) for value in values] for name, values in patients.items()},
        "lost": sum(run.summary["dropped"].values()),
        "losses": [{name: round(value, 4) for name, value in point.items()} for point in losses],
        "epsilon": str(run.statement.cell("sample", "server").epsilon),
        "processor_seconds": round(time.process_time() - began, 1),
    }


def by_patient(
    simulation: Simulation, federation: Federation, own: list[tuple[Tensor, Tensor]], everywhere: list[Tensor]
) -> dict[str, list[float]]:
    """Figures 1 and 5: what is told of every client by itself.

    ``distance``: total variation between its classes and everybody's; ``own`` and ``everywhere``: macro-F1 of its model
    on its own test and on the global one; ``shared``: of the global model on its own test.
    """
    task, shared = federation.task, simulation.server["parameters"]
    whole = torch.bincount(task.targets, minlength=task.classes).double()
    parts = [torch.bincount(task.targets[rows], minlength=task.classes).double() for rows in task.clients]
    tests = [(simulation.engine.logits(shared, inputs), targets) for inputs, targets in federation.own]
    return {
        "distance": [float((part / part.sum() - whole / whole.sum()).abs().sum() / 2) for part in parts],
        "own": [macro_f1(*pair) for pair in own],
        "everywhere": [macro_f1(logits, task.test_targets) for logits in everywhere],
        "shared": [macro_f1(*pair) for pair in tests],
    }


def chosen(tuning: list[dict[str, Any]], method: str) -> float:
    """The rate of ``method`` with the highest score among those that lost no upload, or among all if every one did."""
    own = VARIANTS[method][0] if method in VARIANTS else method
    tried = [row for row in tuning if row["method"] == own]
    steady = [row for row in tried if not row["lost"]]
    return float(max(steady or tried, key=lambda row: row[CHOSEN_BY])["rate"])


def plan(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Method and seed of every run that is compared, seed by seed, variants last."""
    for methods, seeds in ((METHODS, options.seeds), (VARIANTS, options.variant_seeds)):
        yield from ((method, seed) for seed in range(seeds) for method in methods)


def as_text(stored: dict[str, Any]) -> str:
    """``stored`` as JSON, one line a run."""
    runs = {part: ",\n".join(json.dumps(row) for row in stored[part]) for part in ("tuning", "rows")}
    parts = [f'"{part}": [\n{lines}\n]' for part, lines in runs.items()]
    return "{" + ",\n".join([f'"setting": {json.dumps(stored["setting"])}', *parts]) + "}\n"


def main() -> None:
    """Tune, run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for grpfed-tuned.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variant-seeds", type=int, default=3, help="seeds that the variants run on")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tuning-rounds", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--beats", type=int, default=300, help="of each kind from each patient, at most")
    parser.add_argument("--network", choices=("resnet", "mlp"), default="mlp")
    parser.add_argument("--small", action="store_true", help="digits, 10 clients, 2 rounds, one seed")
    options = parser.parse_args()
    options.dataset = "mitbih"
    if options.small:
        options.dataset, options.rounds, options.tuning_rounds = "digits", 2, 1
        options.seeds = options.variant_seeds = 1
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "grpfed-tuned.json"
    names = ("dataset", "rounds", "tuning_rounds", "batch_size", "beats", "network")
    setting = {name: getattr(options, name) for name in names} | {"tuning_seed": TUNING_SEED, "chosen_by": CHOSEN_BY}
    stored: dict[str, Any] = {"setting": setting, "tuning": [], "rows": []}
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["setting"] != setting:
            raise SystemExit(f"{path} holds runs of other settings; give another folder")

    def add(part: str, method: str, rate: float, seed: int) -> None:
        if any((row["method"], row["rate"], row["seed"]) == (method, rate, seed) for row in stored[part]):
            return
        row = train(method, rate, seed, part == "tuning", options)
        stored[part].append(row)
        path.write_text(as_text(stored), encoding="utf-8")
        found = {measure: row[measure] for measure in MEASURES}
        print(part, method, f"rate {rate:g}, seed {seed}", found, f"{row['processor_seconds']} s", flush=True)

    for method in METHODS:
        for rate in RATES[:2] if options.small else RATES:
            add("tuning", method, rate, TUNING_SEED)
        further = beyond(RATES, chosen(stored["tuning"], method))
        if further is not None and not options.small:
            add("tuning", method, round(further, 4), TUNING_SEED)
    for method, seed in plan(options):
        add("rows", method, chosen(stored["tuning"], method), seed)
    print(table(stored["rows"]))


if __name__ == "__main__":
    main()
