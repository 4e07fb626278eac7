"""Which words of a client's texts its updates give away: plain, clipped, in sums, and under DP-SGD.

    PRIVFL_DATA=… python benchmarks/words.py --out docs/results/words.json

Some minutes of one core. Medical questions (eleven doctors, words) with a Text-CNN, and Shakespeare (roles, characters)
with an LSTM. The attacker owns half of the held-out texts. What is done is written at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import attacks
import privfl as pf
from attacks.metrics.measure import mean_of
from attacks.words import Words

NOISE_KEY = 20211
"""Repeats the noise, so that the study repeats; a run to be released leaves it out."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "medical-questions": ("text-cnn", {"embedding_dim": 50, "filters": 32, "hidden": 32}),
    "shakespeare": ("lstm", {"embedding_dim": 8, "hidden": 32, "layers": 1}),
}


@cache
def dataset(name: str) -> pf.Dataset:
    """Read once."""
    return pf.load_dataset(name, seed=0)


def read(name: str, clients: int, size: int, privacy: pf.Privacy | None, rounds: int = 1, batch: int = 0) -> Any:
    """Each of ten clients, or the sum of all, attacked; clients of ``size`` texts that are dealt at random."""
    model, options = MODELS[name]
    sizes = pf.GivenSizes(sizes=(size,) * clients)
    task = pf.Task.from_dataset(dataset(name), partition=sizes, model=model, model_options=options, seed=0)
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=batch or size, epochs=1),
        privacy=privacy,
        evaluate_every=rounds,
        record=True,
        execution=pf.Execution(workers=1),
    )
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(0))[:2000]
    public = attacks.Records(task.test_inputs[order[::2]], task.test_targets[order[::2]])
    single = run.transcript[0].training.uploads is not None
    rows: list[Any] = []
    for client in range(clients) if single else [None]:
        held = task.inputs[task.clients.rows if client is None else task.clients[client]]
        assert task.vocabulary is not None
        truth = torch.zeros(task.vocabulary, dtype=torch.bool).index_fill_(0, held.flatten(), True)
        attack = Words(client=client, texts=len(held))
        result = attack.run(run.transcript, attacks.Auxiliary(public=public, truth={"tokens": truth}))
        null = next(iter(result.nulls.values()))
        rows.append(
            {
                "tokens": int(truth.sum()),
                "vocabulary": len(truth),
                **{measure: result.metrics[measure].to_json() for measure in ("auc", "found")},
                "null": {measure: null[measure].to_json() for measure in ("auc", "found")},
                "seconds": result.seconds,
            }
        )
    told = run.statement.cell("sample", "server").epsilon
    return {"epsilon": None if told == float("inf") else told, "rows": rows}


def private(epsilon: float, rate: float) -> pf.Privacy:
    """DP-SGD at the clients."""
    return pf.Privacy(training=pf.DPSGD(target_epsilon=epsilon, sample_rate=rate), noise_key=NOISE_KEY)


def noisy(multiplier: float) -> pf.Privacy:
    """DP-SGD at the clients with the noise given over the clipping bound."""
    training = pf.DPSGD(noise_multiplier=multiplier, max_grad_norm=1.0, sample_rate=0.1)
    return pf.Privacy(training=training, noise_key=NOISE_KEY)


def cells() -> dict[str, Callable[[], Any]]:
    """The study: a call for each cell, by its name."""
    clip, total = pf.Clip(0.1), pf.SecureSum(mode="ideal")
    found: dict[str, Callable[[], Any]] = {}
    for name in MODELS:
        made = {
            "one text": lambda name=name: read(name, 10, 1, None),
            "100 texts": lambda name=name: read(name, 10, 100, None),
            "100 texts, batches of ten": lambda name=name: read(name, 10, 100, None, batch=10),
            "100 texts, clipped": lambda name=name: read(name, 10, 100, pf.Privacy(update=(clip,)), batch=10),
            "sum of ten clients of 20": lambda name=name: read(name, 10, 20, pf.Privacy(update=(clip, total))),
            **{
                f"100 texts, noise of {noise:g}, ten rounds": (
                    lambda name=name, noise=noise: read(name, 10, 100, noisy(noise), 10, 10)
                )
                for noise in (0.0001, 0.001, 0.01, 0.1)
            },
            "100 texts, ε = 50, ten rounds": lambda name=name: read(name, 10, 100, private(50, 0.1), 10, 10),
            "100 texts, ε = 8, ten rounds": lambda name=name: read(name, 10, 100, private(8, 0.1), 10, 10),
            "100 texts, ε = 1, ten rounds": lambda name=name: read(name, 10, 100, private(1, 0.1), 10, 10),
        }
        if name == "shakespeare":  # under DP-SGD its LSTM takes too long
            made = {what: call for what, call in made.items() if "rounds" not in what}
        found |= {f"{name}: {what}": call for what, call in made.items()}
    return found


def main() -> None:
    """Run all cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--only", default="", help="cells whose name begins so")
    options = parser.parse_args()
    fill({name: call for name, call in cells().items() if name.startswith(options.only)}, told, options.out)


def fill(cells: dict[str, Callable[[], Any]], told: Callable[[list[Any]], str], out: Path) -> None:
    """Run the ``cells`` that ``out`` lacks, write each at once, and print what all are ``told`` to be."""
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for name, call in cells.items():
        if name not in stored:
            began = time.perf_counter()
            stored[name] = {**call(), "seconds": time.perf_counter() - began}
            out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
        print(f"{name}: {told(stored[name]['rows'])}", flush=True)


def told(rows: list[Any]) -> str:
    """Means over clients, with the 95 % interval of what the attack gains over its null."""
    parts = []
    for measure in ("auc", "found"):
        own, null = ([row[measure]["value"] for row in part] for part in (rows, [row["null"] for row in rows]))
        parts.append(f"{measure} {mean_of(own).value:.3f}, null {mean_of(null).value:.3f}")
        if len(rows) > 1:
            gain = mean_of([one - other for one, other in zip(own, null, strict=True)])
            parts.append(f"gain {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]")
    tokens = sum(row["tokens"] for row in rows) / len(rows)
    return f"{', '.join(parts)}; {tokens:.0f} tokens of {rows[0]['vocabulary']}"


if __name__ == "__main__":
    main()
