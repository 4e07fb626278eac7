"""Active servers through secure sums: stealthy imprints, models that differ by client, fishing; and who would notice.

    PRIVFL_DATA=… python benchmarks/active_servers.py --out docs/results/active-servers.json

Some minutes of one core. Fashion-MNIST, `two-nn`, ten clients a round, full-batch steps, as in
``examples/attack_first_layer.py``. What is done is written at once, and a repeat goes on from there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from attack_first_layer import SUM, accuracy_of, attacked, federation, public_records, summary

import attacks
import privfl as pf
from attacks.detection import fingerprint, signs
from attacks.gradient_inversion.fishing import Fishing, fishing_server
from attacks.gradient_inversion.imprint import imprinting_server
from attacks.gradient_inversion.model_inconsistency import ModelInconsistency, inconsistent_server
from attacks.images.pixels import Pixels

CHAIN = pf.Privacy(update=(pf.Clip(100.0), *SUM))
BITES = pf.Privacy(update=(pf.Clip(0.1), *SUM))
THRESHOLDS = {"parallel units": 0.1, "dead units": 0.9, "equal head rows": 0.5, "own loss": 10.0}
"""Beyond these a client refuses to train."""


def stealthy(seeds: int, units: int, directions: int, gain: float, rounds: int = 50) -> dict[str, Any]:
    """A server that imprints in the last round alone: images of that round, and what its models lose."""
    rows = []
    for seed in range(seeds):
        more: dict[str, Any] = {"privacy": CHAIN, "rounds": rounds, "cohort": pf.FixedCohort(10)}
        task, plain = federation(1000, 2, seed, **more)
        public = public_records(task.name).inputs
        honest_server, last = pf.FedAvg(weighting="uniform"), {rounds - 1}
        server = imprinting_server(
            honest_server, public, units=units, directions=directions, gain=gain, seed=seed, rounds=last
        )
        _, run = federation(1000, 2, seed, algorithm=server, **more)
        row, _ = attacked(task, run.transcript, attacks.Imprint(batch=20, round=rounds - 1))
        seen, honest = run.transcript[rounds - 1], plain.transcript[rounds - 1]
        sent = run.transcript.network(seen.broadcast["parameters"])
        victims = [task.clients[client] for client in seen.training.members]
        checks = [signs(sent, attacks.Records(task.inputs[part], task.targets[part])) for part in victims]
        rows.append(
            {
                **row,
                "accuracy of the broadcast": accuracy_of(task, sent),
                "accuracy of an honest broadcast": accuracy_of(
                    task, plain.transcript.network(honest.broadcast["parameters"])
                ),
                "accuracy of the released model": accuracy_of(task, run.transcript.network(seen.released)),
                "accuracy of the honest run": accuracy_of(task, run.transcript.network(honest.released)),
                "refused by": {name: sum(one[name] > most for one in checks) for name, most in THRESHOLDS.items()},
                "clients": len(checks),
            }
        )
    told = [name for name in rows[0] if name.startswith("accuracy")]
    means = {name: statistics.mean(row[name] for row in rows) for name in told}
    return {**summary(rows), **means, "rows": rows}


def inconsistency(clients: int, size: int, chain: pf.Privacy) -> dict[str, Any]:
    """Each of ten clients in turn is the one whose images are left in the sum of all; who would refuse."""
    rows = []
    for target in range(clients):
        server = inconsistent_server(pf.FedAvg(weighting="uniform"), target)
        task, run = federation(clients, size, seed=0, algorithm=server, privacy=chain)
        attack = ModelInconsistency(client=target, batch=size)
        truth_rows = task.clients[target]
        truth = {"images": Pixels.of(task.name).images(task.inputs[truth_rows])}
        result = attack.run(run.transcript, attacks.Auxiliary(public=public_records(task.name), truth=truth))
        sent = run.transcript[0].broadcast
        rows.append(
            {
                "psnr": [round(value, 3) for value in result.per_image["psnr"].tolist()],
                "mean": round(result.metrics["psnr"].value, 3),
                "nulls": {name: round(measures["psnr"].value, 3) for name, measures in result.nulls.items()},
                "seconds": round(result.seconds, 3),
                "refused by": _refusals(task, run, "parameters, version 1", target),
                "target refuses by": _refusals(task, run, "parameters", None, only=target),
                "fingerprints": len({fingerprint(value) for value in sent.values()}),
            }
        )
    return {**summary(rows), "rows": rows}


def fished(seeds: int, clients: int, size: int, chain: pf.Privacy | None) -> dict[str, Any]:
    """Ten rounds, one for each class, at single clients or at the sum of all."""
    rows = []
    for seed in range(seeds):
        server = fishing_server(pf.FedAvg(weighting="uniform"))
        more = {} if chain is None else {"privacy": chain}
        task, run = federation(clients, size, seed, algorithm=server, rounds=10, **more)
        for client in range(clients) if chain is None else [None]:
            attack = Fishing(client=client, batch=size if chain is None else size * clients)
            held = task.clients.rows if client is None else task.clients[client]
            truth = {"images": Pixels.of(task.name).images(task.inputs[held])}
            result = attack.run(run.transcript, attacks.Auxiliary(public=public_records(task.name), truth=truth))
            rows.append(
                {
                    "psnr": [round(value, 3) for value in result.per_image["psnr"].tolist()],
                    "mean": round(result.metrics["psnr"].value, 3),
                    "nulls": {name: round(measures["psnr"].value, 3) for name, measures in result.nulls.items()},
                    "seconds": round(result.seconds, 3),
                    "read": result.settings["read"],
                    "refused by": _refusals(task, run, "parameters", None),
                }
            )
    return {**summary(rows), "rows": rows}


def _refusals(task: Any, run: Any, name: str, spared: int | None, only: int | None = None) -> dict[str, Any]:
    """How many clients would refuse round 0's broadcast by each check, and of how many."""
    network = run.transcript.network(run.transcript[0].broadcast[name])
    asked = [k for k in range(len(task.clients)) if k != spared and (only is None or k == only)]
    held = [attacks.Records(task.inputs[task.clients[k]], task.targets[task.clients[k]]) for k in asked]
    found = [signs(network, records) for records in held]
    return {key: sum(one[key] > most for one in found) for key, most in THRESHOLDS.items()} | {"clients": len(asked)}


def false_alarms(seeds: int, rounds: int, size: int) -> dict[str, Any]:
    """What the checks say of the honest broadcasts of whole runs, at the clients who were sent them."""
    found: dict[str, list[float]] = {name: [] for name in THRESHOLDS}
    for seed in range(seeds):
        task, run = federation(100, size, seed, rounds=rounds, cohort=pf.FixedCohort(10))
        for seen in run.transcript:
            network = run.transcript.network(seen.broadcast["parameters"])
            for client in seen.training.members:
                held = task.clients[client]
                for name, value in signs(network, attacks.Records(task.inputs[held], task.targets[held])).items():
                    found[name].append(value)
    return {
        name: {
            "checks": len(values),
            "alarms": sum(value > THRESHOLDS[name] for value in values),
            "threshold": THRESHOLDS[name],
            "largest": max(values),
            "median": statistics.median(values),
        }
        for name, values in found.items()
    }


def cells(seeds: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """The study: a call for each cell, by its name."""
    return {
        "imprint once, 100 of 200 units, two directions": lambda: stealthy(seeds, 100, 2, 0.3),
        "imprint once, 80 of 200 units, two directions": lambda: stealthy(seeds, 80, 2, 0.3),
        "inconsistent models, sum of ten clients of eight": lambda: inconsistency(10, 8, CHAIN),
        "inconsistent models, sum of ten clients of eight, clipped to 0.1": lambda: inconsistency(10, 8, BITES),
        "fishing, single clients of 64": lambda: fished(1, 4, 64, None),
        "fishing, sum of ten clients of eight": lambda: fished(3, 10, 8, CHAIN),
        "fishing, sum of ten clients of eight, clipped to 0.1": lambda: fished(1, 10, 8, BITES),
        "false alarms, clients of two": lambda: false_alarms(3, 50, 2),
        "false alarms, clients of 20": lambda: false_alarms(3, 50, 20),
    }


def main() -> None:
    """Run all cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--seeds", type=int, default=10, help="of stealthy imprints")
    parser.add_argument("--only", default="", help="cells whose name begins so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    for name, call in cells(options.seeds).items():
        if name in stored or not name.startswith(options.only):
            continue
        began = time.perf_counter()
        stored[name] = call()
        options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
        told = {key: value for key, value in stored[name].items() if key != "rows"}
        print(f"{name}: {told} ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
