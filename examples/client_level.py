"""What it costs to protect whole clients: noise at the server, at every client, and in shares inside a secure sum.

    PRIVFL_DATA=… python examples/client_level.py --out results/client-level
    python examples/client_level.py --out results/small --small      # digits, a few seconds

FedAvg and FedSampling on Fashion-MNIST with 100 and 1,000 clients, all of whom take part in every round. Every noise
gets the multiplier that keeps the run's updates within the same ε for whoever the noise covers. What is done is
written to ``results.json`` at once; call again to go on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import dp_accounting as dp

import privfl as pf
from privfl.privacy.accounting.accountant import epsilon

DELTA = 1e-5
ROWS = ("none", "central", "banded", "local", "discrete Gaussian shares", "Skellam shares")
CELLS = [(unit, observer) for unit in ("client", "sample") for observer in ("server", "public")]


def multiplier(target: float, rounds: int) -> float:
    """The smallest noise multiplier, to four digits, with which ``rounds`` Gaussian sums keep ``target`` by zCDP.

    All kinds of noise get this one, so that only their laws and their places differ.
    """
    low, high = 0.01, 1000.0
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        event = dp.ZCDpEvent(rounds / (2 * middle**2))
        spent = epsilon({(event, dp.NeighboringRelation.REPLACE_SPECIAL): 1}, DELTA, interval=False).epsilon
        low, high = (low, middle) if spent <= target else (middle, high)
    return high


def chain(row: str, max_norm: float, noise: float, secure: pf.SecureSum) -> tuple[Any, ...]:
    """The links of one row's chain."""
    clip = pf.Clip(max_norm)
    return {
        "none": (secure,),
        "central": (clip, secure, pf.GaussianNoise(noise)),
        "banded": (clip, secure, pf.BandedNoise(noise)),
        "local": (clip, pf.GaussianNoise(noise, at="client"), secure),
        "discrete Gaussian shares": (clip, pf.DiscreteGaussianNoise(noise), secure),
        "Skellam shares": (clip, pf.SkellamNoise(noise), secure),
    }[row]


def published(row: str, run: pf.Run, noise: float, rounds: int) -> float | None:
    """ε of the run's updates for one client as dp_accounting computes it for the same events; ``None`` for no claim."""
    if row == "none" or row == "Skellam shares":  # dp_accounting has no Skellam event
        return None
    if row == "discrete Gaussian shares":
        accountant: Any = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
        accountant.compose(dp.ZCDpEvent(1 / (2 * noise**2)), rounds)
    else:
        accountant = dp.pld.PLDAccountant()
        accountant.compose(dp.GaussianDpEvent(noise), 1 if row == "banded" else rounds)
    return float(accountant.get_epsilon(DELTA))


SETTINGS: dict[tuple[str, int], dict[str, float]] = {
    ("FedAvg", 100): {"max_norm": 0.25, "learning_rate": 0.05, "rounds": 15},
    ("FedAvg", 1000): {"max_norm": 0.5, "learning_rate": 0.05, "rounds": 15},
    ("FedSampling", 100): {"max_norm": 0.02, "learning_rate": 0.2, "rounds": 30},
    ("FedSampling", 1000): {"max_norm": 0.002, "learning_rate": 0.2, "rounds": 30},
}


def simulate(method: str, clients: int, row: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run, as a row of ``results.json``."""
    settings = SETTINGS[method, clients if not options.small else 100]
    rounds = 5 if options.small else int(settings["rounds"])
    noise = multiplier(options.epsilon, 1 if row == "banded" else rounds)  # banded noise counts the whole run as one
    # A run of the protocol with 1,000 clients gives the same sums and takes hours; the statement says which it was.
    secure = pf.SecureSum(corrupt=0.1, dropout=0.3, mode="protocol" if clients <= 100 else "ideal")
    samples = 1437 if options.small else 60_000
    each = samples // clients
    privacy = pf.Privacy(
        update=chain(row, settings["max_norm"], noise, secure),
        size=pf.LaplaceSize(epsilon=1.0, lower=each // 2, bound=2 * each) if method == "FedSampling" else None,
        max_size_error=100.0 if options.small else 1.0,
        target_delta=DELTA,
    )
    algorithm: pf.FedAvg | pf.FedSampling = pf.FedAvg(weighting="uniform")
    if method == "FedSampling":
        algorithm = pf.FedSampling(samples_per_round=samples // 30)
    run = pf.simulate(
        pf.load(options.dataset, partition=pf.IID(clients=clients), model="logistic", seed=seed),
        algorithm,
        training=pf.LocalTraining(learning_rate=settings["learning_rate"], batch_size=20),
        privacy=privacy,
        cohort=pf.Rotation(period=5) if row == "banded" else pf.Everyone(),
        rounds=rounds,
        seed=seed,
        evaluate_every=5,
        execution=pf.Execution(workers=1),
    )
    return {
        "method": method,
        "clients": clients,
        "noise": row,
        "seed": seed,
        "rounds": rounds,
        "noise_multiplier": noise,
        **settings,
        "mode": secure.mode,
        "accuracy": [line["test_accuracy"] for line in run.metrics if "test_accuracy" in line],
        "epsilon": {f"{unit}/{observer}": run.statement.cell(unit, observer).epsilon for unit, observer in CELLS},
        "dp_accounting": published(row, run, noise, rounds),
        "dropped": run.summary["dropped"],
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The results as a Markdown table, the seeds of a setting together."""
    yield "| algorithm | clients | noise | client/server | client/public | dp_accounting | sample/server | accuracy |"
    yield "|---|---|---|---|---|---|---|---|"
    for method, clients, noise in dict.fromkeys((row["method"], row["clients"], row["noise"]) for row in rows):
        same = [row for row in rows if (row["method"], row["clients"], row["noise"]) == (method, clients, noise)]
        cells = [max(row["epsilon"][cell] for row in same) for cell in ("client/server", "client/public")]
        sample = max(row["epsilon"]["sample/server"] for row in same)
        known = same[0]["dp_accounting"]
        last = [100 * row["accuracy"][-1] for row in same]
        spread = f" ± {statistics.stdev(last):.1f}" if len(last) > 1 else ""
        numbers = [*(f"{value:.2f}" for value in cells), "" if known is None else f"{known:.2f}", f"{sample:.2f}"]
        words = " | ".join(number.replace("inf", "∞") for number in numbers)
        yield f"| {method} | {clients:,} | {noise} | {words} | {statistics.mean(last):.1f}{spread} |"


def main() -> None:
    """Run what is missing of the grid, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results.json")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument(
        "--epsilon", type=float, default=8.0, help="of a run's updates, before whoever the noise covers"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="digits, 20 clients, two kinds of noise")
    options = parser.parse_args()
    counts, kinds = (100, 1000), ROWS
    if options.small:
        options.dataset, options.seeds, counts, kinds = "digits", 1, (20,), ("central", "discrete Gaussian shares")
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else []
    done = {(row["method"], row["clients"], row["noise"], row["seed"]) for row in rows}
    for seed, clients, method, noise in product(range(options.seeds), counts, ("FedAvg", "FedSampling"), kinds):
        if (method, clients, noise, seed) not in done:
            rows.append(simulate(method, clients, noise, seed, options))
            store.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(
                method,
                clients,
                noise,
                f"seed {seed}:",
                f"{rows[-1]['accuracy'][-1]:.3f}",
                rows[-1]["epsilon"],
                flush=True,
            )
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
