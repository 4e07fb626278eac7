"""FedSampling hides sizes by randomised answers; this recovers them from its updates, and from answers asked afresh.

    PRIVFL_DATA=… python examples/attack_sizes.py --out results/attack-sizes
    python examples/attack_sizes.py --out results/small --small       # digits, under half a minute

Clients hold 1 to 99 examples (log-normal, labels dealt at random) and answer about their size by generalised randomised
response at ε = 3 over {1, …, 99}. The server attacks what it saw after 1 to 50 rounds: updates beside memoised answers,
updates inside secure sums, the one memoised answer, and fresh answers of every round. Writes ``results.json`` and
``sizes.png``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import attacks
import privfl as pf
from privfl.randomness import numpy_stream
from privfl.simulation.transcript import Transcript

BOUND = 99
MEASURES = ("relative_error", "exact_match", "auc_twice")
LOOKS = {
    "updates": ("#D55E00", "s", "-"),
    "fresh answers": ("#0072B2", "x", "--"),
    "memoised answer": ("#009E73", "^", "-."),
    "secure sum": ("#CC79A7", "D", (0, (1, 1))),
}
"""Colour, marker and dashes of what the server reads."""


def task_of(options: argparse.Namespace, seed: int) -> pf.Task:
    """Clients whose sizes are log-normal, rounded and clipped to the range of the answers."""
    sizes = numpy_stream(seed, "sizes").lognormal(3.0, 1.0, options.clients)
    whole = tuple(int(size) for size in np.clip(np.ceil(sizes), 1, BOUND))
    return pf.load(options.dataset, partition=pf.GivenSizes(sizes=whole), model="logistic", seed=seed)


def watched(task: pf.Task, options: argparse.Namespace, seed: int, refresh: str, secure: bool) -> Transcript:
    """What the server saw of one run."""
    answers = pf.RandomizedResponse(epsilon=options.epsilon, bound=BOUND, refresh=refresh)  # type: ignore[arg-type]
    chain = (pf.Clip(100.0), pf.SecureSum(mode="ideal")) if secure else ()
    run = pf.simulate(
        task,
        pf.FedSampling(samples_per_round=options.samples),
        rounds=options.rounds,
        training=pf.LocalTraining(learning_rate=0.1),
        privacy=pf.Privacy(size=answers, update=chain, max_size_error=1e6, noise_key=seed),
        seed=seed,
        evaluate_every=options.rounds,
        record=("server",),
    )
    assert run.transcript is not None
    return run.transcript


def measured(attack: Any, seen: Transcript, auxiliary: attacks.Auxiliary) -> tuple[dict[str, Any], list[float]]:
    """The measures of the attack and of its null, its cost, and what it believes of every client."""
    began = time.perf_counter()
    guess = attack.guess(seen, auxiliary.for_attacker())
    result, believed = attack.judge(guess, auxiliary, time.perf_counter() - began), guess.sizes
    row = {name: result.metrics[name].value for name in MEASURES}
    row |= {f"null_{name}": result.nulls["true mean size"][name].value for name in MEASURES}
    row["seconds_per_client"] = result.seconds_per_unit
    return row, [round(believed[client], 2) for client in sorted(believed)]


def study(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """All attacks at all numbers of rounds, for one seed."""
    task = task_of(options, seed)
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(seed))[: options.public]
    public = attacks.Records(task.test_inputs[order], task.test_targets[order])
    auxiliary = attacks.Auxiliary(public=public, truth={"sizes": torch.from_numpy(task.clients.sizes)})
    memoised, fresh, secure = (
        watched(task, options, seed, *way) for way in (("once", False), ("every_round", False), ("once", True))
    )
    found: dict[str, Any] = {"seed": seed, "sizes": task.clients.sizes.tolist(), "rows": [], "believed": {}}
    for rounds in [count for count in (1, 2, 5, 10, 50) if count <= options.rounds]:
        ways = {
            "updates": (attacks.SizeFromUpdates(rounds=rounds), memoised),
            "fresh answers": (attacks.SizeFromResponses(rounds=rounds), fresh),
            "memoised answer": (attacks.SizeFromResponses(rounds=rounds), memoised),
            "secure sum": (attacks.SizeFromUpdates(rounds=rounds), secure),
        }
        for name, (attack, seen) in ways.items():
            row, believed = measured(attack, seen, auxiliary)
            found["rows"].append({"from": name, "rounds": rounds, **row})
            found["believed"][name] = believed
            print(
                f"seed {seed}  {name:16} {rounds:3} rounds  error {row['relative_error']:6.3f} "
                f"(null {row['null_relative_error']:.3f})  exact {row['exact_match']:.2f}  AUC {row['auc_twice']:.3f}",
                flush=True,
            )
    return found


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Left: error against the number of rounds. Right: believed against true sizes after all rounds, first seed."""
    figure = Figure(figsize=(9.5, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = [row for seed in results["seeds"] for row in seed["rows"]]
    rounds = sorted({row["rounds"] for row in rows})
    for name, (colour, marker, dashes) in LOOKS.items():
        means = [_mean(rows, name, count, "relative_error") for count in rounds]
        left.plot(rounds, means, marker=marker, linestyle=dashes, color=colour, label=name, linewidth=1.6)
    null = [statistics.mean(row["null_relative_error"] for row in rows if row["from"] == "updates")] * len(rounds)
    left.plot(rounds, null, color="0.5", linestyle=":", label="null: true mean size")
    left.set(xscale="log", yscale="log", xlabel="rounds that the server saw", ylabel="mean relative error of a size")
    left.set_xticks(rounds, [str(count) for count in rounds])
    left.minorticks_off()
    left.legend(frameon=False, fontsize=8)
    first = results["seeds"][0]
    for name in ("memoised answer", "secure sum", "updates", "fresh answers"):
        colour, marker, _ = LOOKS[name]
        right.scatter(first["sizes"], first["believed"][name], s=20, marker=marker, color=colour, label=name)
    right.plot([1, BOUND], [1, BOUND], color="0.5", linewidth=1, linestyle=":")
    right.set(xlabel="true size of a client", ylabel=f"believed size after {rounds[-1]} rounds")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _mean(rows: list[dict[str, Any]], name: str, rounds: int, measure: str) -> float:
    return statistics.mean(row[measure] for row in rows if row["from"] == name and row["rounds"] == rounds)


def table(results: Mapping[str, Any]) -> str:
    """The means over the seeds as a Markdown table."""
    rows = [row for seed in results["seeds"] for row in seed["rows"]]
    lines = ["| from | rounds | relative error | exact | AUC, twice the size |", "|---|---|---|---|---|"]
    for name in LOOKS:
        for rounds in sorted({row["rounds"] for row in rows}):
            error, exact, auc = (_mean(rows, name, rounds, measure) for measure in MEASURES)
            lines.append(f"| {name} | {rounds} | {error:.3f} | {exact:.0%} | {auc:.3f} |")
    null = [row for row in rows if row["from"] == "updates"]
    error, exact = (statistics.mean(row[f"null_{name}"] for row in null) for name in MEASURES[:2])
    return "\n".join([*lines, f"| null: true mean size | | {error:.3f} | {exact:.0%} | 0.500 |"])


def main() -> None:
    """Run all seeds; write ``results.json`` and ``sizes.png``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--samples", type=int, default=500, help="K, the samples wanted in a round")
    parser.add_argument("--epsilon", type=float, default=3.0, help="of one answer about a size")
    parser.add_argument("--public", type=int, default=2000, help="held-out examples that the attacker owns")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="digits, 20 clients, 10 rounds, one seed")
    options = parser.parse_args()
    if options.small:
        options.dataset, options.clients, options.rounds, options.seeds = "digits", 20, 10, 1
        options.samples, options.public = 150, 200
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    results: dict[str, Any] = {"settings": settings, "seeds": []}
    for seed in range(options.seeds):
        results["seeds"].append(study(options, seed))
        (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, options.out / "sizes.png")
    print(table(results))


if __name__ == "__main__":
    main()
