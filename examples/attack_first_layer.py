"""Images out of a first layer: batches and secure sums by SPEAR, and by a server that imprints the layer.

    PRIVFL_DATA=… python examples/attack_first_layer.py --out results/first-layer
    python examples/attack_first_layer.py --out results/small --small      # digits, seconds

Every row is a recorded run in which clients take one full-batch step, attacked message by message. What is done is
written to ``results.json`` at once, and an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

import attacks
import privfl as pf
from attacks.gradient_inversion.imprint import imprinting_server, parallel_units
from attacks.images.pixels import Pixels
from attacks.metrics.measure import mean_of
from privfl.metrics.classification import accuracy

SHARP = 30.0
"""PSNR in dB above which an image counts as found."""
SUM = (pf.SecureSum(mode="ideal"),)
DATASET = "fashion-mnist"


@cache
def dataset(name: str) -> Any:
    """The dataset ``name``, read once."""
    return pf.load_dataset(name, seed=0)


def federation(
    clients: int, size: int, seed: int, *, hidden: tuple[int, ...] = (200, 200), rounds: int = 1, **more: Any
) -> tuple[pf.Task, Any]:
    """A task of clients of ``size`` images each, and its recorded run of full-batch steps."""
    partition = pf.GivenSizes(sizes=(size,) * clients)
    options = {"hidden": hidden}
    task = pf.Task.from_dataset(dataset(DATASET), partition=partition, model="two-nn", model_options=options, seed=seed)
    run = pf.simulate(
        task,
        more.pop("algorithm", pf.FedAvg(weighting="uniform")),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=size, epochs=1),
        seed=seed,
        evaluate_every=rounds,
        record=True,
        execution=pf.Execution(engine="loop", workers=1),
        **more,
    )
    return task, run


@cache
def public_records(name: str, count: int = 1000) -> attacks.Records:
    """Held-out examples of the dataset ``name`` that the attacker owns."""
    held = dataset(name)
    rows = torch.randperm(len(held.test_targets), generator=torch.Generator().manual_seed(0))[:count]
    return attacks.Records(held.test_inputs[rows], held.test_targets[rows])


def attacked(task: pf.Task, transcript: Any, attack: Any) -> tuple[dict[str, Any], Any]:
    """What an attack on one client, or on the sum of a round, reached; and the result itself."""
    victims = transcript[attack.round].training.members if attack.client is None else [attack.client]
    rows = torch.cat([task.clients[client] for client in victims])
    truth = {"images": Pixels.of(task.name).images(task.inputs[rows])}
    found = attack.run(transcript, attacks.Auxiliary(public=public_records(task.name), truth=truth))
    return {
        "psnr": [round(value, 3) for value in found.per_image["psnr"].tolist()],
        "mean": round(found.metrics["psnr"].value, 3),
        "nulls": {name: round(measures["psnr"].value, 3) for name, measures in found.nulls.items()},
        "seconds": round(found.seconds, 3),
    }, found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the attacked messages: how many came back wholly, how many images, and the best null's mean."""
    images = [value for row in rows for value in row["psnr"]]
    return {
        "messages": len(rows),
        "messages with a mean of 90 dB": sum(row["mean"] >= 90 for row in rows),
        "messages with every image above 90 dB": sum(min(row["psnr"]) >= 90 for row in rows),
        "images": len(images),
        "images above 30 dB": sum(value > SHARP for value in images),
        "median psnr": statistics.median(images),
        "best null": max(statistics.mean(row["nulls"][name] for row in rows) for name in rows[0]["nulls"]),
        "median seconds": statistics.median(row["seconds"] for row in rows),
    }


def batches(clients: int, size: int, **more: Any) -> dict[str, Any]:
    """SPEAR on each client's message of the last round."""
    task, run = federation(clients, size, seed=0, **more)
    attack = [
        attacks.GradientInversion(client=k, method="spear", batch=size, round=len(run.transcript) - 1)
        for k in range(clients)
    ]
    rows = [attacked(task, run.transcript, one)[0] for one in attack]
    return {**summary(rows), "rows": rows}


def sums(seeds: int, chain: tuple[Any, ...], clients: int = 10, size: int = 1, **more: Any) -> dict[str, Any]:
    """SPEAR on the secure sum of ten clients, one run for each seed."""
    rows = []
    for seed in range(seeds):
        task, run = federation(clients, size, seed, privacy=pf.Privacy(update=chain), **more)
        attack = attacks.GradientInversion(client=None, method="spear", batch=clients * size)
        rows.append(attacked(task, run.transcript, attack)[0])
    return {**summary(rows), "rows": rows}


def imprints(
    seeds: int, size: int, chain: tuple[Any, ...], units: int, *, clients: int = 10, rounds: int = 1, gain: float = 1.0
) -> dict[str, Any]:
    """An imprinting server, ten clients a round; what clients and the public could see beside what it reads."""
    rows = []
    more: dict[str, Any] = {"privacy": pf.Privacy(update=chain), "rounds": rounds}
    if clients > 10:
        more["cohort"] = pf.FixedCohort(10)
    for seed in range(seeds):
        task, plain = federation(clients, size, seed, **more)
        public = public_records(task.name).inputs
        server = imprinting_server(pf.FedAvg(weighting="uniform"), public, units=units, gain=gain)
        _, run = federation(clients, size, seed, algorithm=server, **more)
        last, images = rounds - 1, size * 10 if chain else size
        tried = [attacks.Imprint(client=k, batch=images, round=last) for k in ([None] if chain else range(clients))]
        found = [attacked(task, run.transcript, attack)[0] for attack in tried]
        seen, honest = (one.transcript[last] for one in (run, plain))
        sent = run.transcript.network(seen.broadcast["parameters"])
        usual = run.transcript.network(honest.broadcast["parameters"])
        rows.append(
            {
                "psnr": [value for one in found for value in one["psnr"]],
                "mean": statistics.mean(one["mean"] for one in found),
                "nulls": {name: statistics.mean(one["nulls"][name] for one in found) for name in found[0]["nulls"]},
                "seconds": sum(one["seconds"] for one in found),
                "accuracy of the broadcast": accuracy_of(task, sent),
                "accuracy of the released model": accuracy_of(task, run.transcript.network(seen.released)),
                "accuracy of the honest run": accuracy_of(task, run.transcript.network(honest.released)),
                "parallel units": parallel_units(sent),
                "parallel units, honest": parallel_units(usual),
            }
        )
    told = {name: statistics.mean(row[name] for row in rows) for name in list(rows[0])[4:]}
    return {**summary(rows), **told, "rows": rows}


def noises(clients: int, multiplier: float, method: str) -> dict[str, Any]:
    """One image of each client behind one step of DP-SGD, by an inversion that knows noise and classes or does not."""
    privacy = pf.Privacy()
    if multiplier:
        training = pf.DPSGD(noise_multiplier=multiplier, max_grad_norm=1.0, sample_rate=1.0)
        privacy = pf.Privacy(training=training, noise_key=20211)
    task, run = federation(clients, 1, seed=0, privacy=privacy)
    tried = [attacks.GradientInversion(client=k, method=method) for k in range(clients)]  # type: ignore[arg-type]
    rows = [attacked(task, run.transcript, one)[0] for one in tried]
    best = max(rows[0]["nulls"], key=lambda name: statistics.mean(row["nulls"][name] for row in rows))
    gains = mean_of([row["mean"] - row["nulls"][best] for row in rows])
    told = {
        "multiplier": multiplier,
        "mean psnr": statistics.mean(row["mean"] for row in rows),
        "null": best,
        "gain": gains.to_json(),
    }
    return {**summary(rows), **told, "rows": rows}


@cache
def repeated(clients: int, multiplier: float, rounds: int, rate: float) -> tuple[pf.Task, Any]:
    """A recorded run in which clients of one image take a step of DP-SGD in every round, small beside the weights."""
    protection = pf.DPSGD(noise_multiplier=multiplier, max_grad_norm=1.0, sample_rate=rate)
    options = {"hidden": (200, 200)}
    partition = pf.GivenSizes(sizes=(1,) * clients)
    task = pf.Task.from_dataset(dataset(DATASET), partition=partition, model="two-nn", model_options=options, seed=0)
    return task, pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.01, batch_size=1, steps=1),
        privacy=pf.Privacy(training=protection, noise_key=20211),
        evaluate_every=rounds,
        record=True,
        execution=pf.Execution(engine="loop", workers=1),
    )


def pooled(clients: int, multiplier: float, rounds: int, rate: float = 1.0) -> dict[str, Any]:
    """One image of each client behind the noisy updates of several rounds, and the ε of the run that sent them."""
    task, run = repeated(clients, multiplier, rounds, rate)
    tried = [
        attacks.GradientInversion(client=k, method="wiener", round=rounds - 1, rounds=rounds) for k in range(clients)
    ]
    found = [attacked(task, run.transcript, one) for one in tried]
    rows = [row for row, _ in found]
    labels = [int(task.targets[task.clients[k]]) for k in range(clients)]
    best = max(rows[0]["nulls"], key=lambda name: statistics.mean(row["nulls"][name] for row in rows))
    told = {
        "multiplier": multiplier,
        "rounds": rounds,
        "rate": rate,
        "epsilon": run.statement.cell("sample", "server").epsilon,
        "mean psnr": mean_of([row["mean"] for row in rows]).to_json(),
        "null": best,
        "gain": mean_of([row["mean"] - row["nulls"][best] for row in rows]).to_json(),
        "labels right": sum(one.settings["labels"] == [label] for (_, one), label in zip(found, labels, strict=True)),
    }
    return {**summary(rows), **told, "rows": rows}


def calibrated(epsilon: float) -> float:
    """The noise multiplier of DP-SGD that gives one full-batch step this ε for one example, at δ = 1e-5."""
    training = pf.DPSGD(target_epsilon=epsilon, max_grad_norm=1.0, sample_rate=1.0)
    return float(federation(1, 1, seed=0, privacy=pf.Privacy(training=training))[1].summary["noise_multiplier"])


def accuracy_of(task: pf.Task, network: torch.nn.Module) -> float:
    """Test accuracy of a network."""
    with torch.no_grad():
        return float(accuracy(network(task.test_inputs), task.test_targets))


def figures(out: Path) -> None:
    """Contact sheets: eight images from one gradient, and ten images through a secure sum, beside their nulls."""
    task, run = federation(1, 8, seed=0)
    attack: Any = attacks.GradientInversion(client=0, method="spear", batch=8)
    attacked(task, run.transcript, attack)[1].figure().savefig(out / "batch.png", dpi=110)
    chain = pf.Privacy(update=(pf.Clip(100.0), *SUM))
    server = imprinting_server(pf.FedAvg(weighting="uniform"), public_records(DATASET).inputs, units=200)
    task, run = federation(10, 1, seed=0, algorithm=server, privacy=chain)
    attacked(task, run.transcript, attacks.Imprint(batch=10))[1].figure().savefig(out / "sum.png", dpi=110)


def cells(small: bool) -> dict[str, Any]:
    """The study: a call for each cell, by its name."""
    few = 2 if small else 10
    clip, bites = pf.Clip(100.0), pf.Clip(0.1)
    if small:
        return {
            "spear, B = 4": lambda: batches(2, 4),
            "spear, sum of ten, clipped to 0.1": lambda: sums(1, (bites, *SUM)),
            "imprint, sum of ten": lambda: imprints(1, 1, (clip, *SUM), 200),
            "rounds 4, noise 0.1, wiener": lambda: pooled(4, 0.1, 4),
        }
    spear = {
        f"spear, B = {size}": (lambda size=size: batches(16 if size == 8 else 8, size))
        for size in (8, 2, 4, 12, 16, 20, 24, 28)
    }
    noise = {
        f"noise {multiplier:g}, {method}": (
            lambda multiplier=multiplier, method=method: noises(100, multiplier, method)
        )
        for method in ("wiener", "analytic")
        for multiplier in (0.0, 0.01, 0.05, 0.1, 0.3, 1.0)
    }
    several = {
        f"rounds {rounds}, noise {multiplier:g}, wiener": (
            lambda multiplier=multiplier, rounds=rounds: pooled(40, multiplier, rounds)
        )
        for rounds in (1, 4, 16, 64)
        for multiplier in (0.1, 0.3, 1.0, 3.0)
    }
    return {
        **spear,
        **noise,
        **several,
        **{
            f"ε = {epsilon:g}, wiener": (lambda epsilon=epsilon: noises(100, calibrated(epsilon), "wiener"))
            for epsilon in (50, 8, 1)
        },
        "spear, B = 8, 100 units": lambda: batches(16, 8, hidden=(100,)),
        "spear, B = 8, round 30": lambda: batches(16, 8, rounds=30),
        "spear, sum of ten": lambda: sums(3, (clip, *SUM)),
        "spear, sum of ten, 100 units": lambda: sums(3, (clip, *SUM), hidden=(100,)),
        "spear, sum of ten, clipped to 0.1": lambda: sums(3, (bites, *SUM)),
        "spear, sum of ten clients of two": lambda: sums(3, (clip, *SUM), size=2),
        "imprint, single clients of four": lambda: imprints(few, 4, (), 200),
        "imprint, sum of ten": lambda: imprints(few, 1, (clip, *SUM), 200),
        "imprint, sum of ten clients of four": lambda: imprints(few, 4, (clip, *SUM), 200),
        "imprint, sum of ten clients of four, clipped to 0.1": lambda: imprints(few, 4, (bites, *SUM), 200),
        "imprint 150 of 200 units, sum of ten of 1,000 clients of two, round 50": lambda: imprints(
            1, 2, (clip, *SUM), 150, clients=1000, rounds=50, gain=0.1
        ),
        "spear, B = 32": lambda: batches(8, 32),
    }


def main() -> None:
    """Run all cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", default="", help="cells whose name begins so")
    parser.add_argument("--small", action="store_true", help="digits, three cells")
    parser.add_argument("--figures", action="store_true", help="draw the contact sheets and nothing else")
    options = parser.parse_args()
    if options.small:
        global DATASET
        DATASET = "digits"
    options.out.mkdir(parents=True, exist_ok=True)
    if options.figures:
        return figures(options.out)
    path = options.out / "results.json"
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, call in cells(options.small).items():
        if name in stored or not name.startswith(options.only):
            continue
        began = time.perf_counter()
        stored[name] = call()
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        told = {key: value for key, value in stored[name].items() if key != "rows"}
        print(f"{name}: {told} ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
