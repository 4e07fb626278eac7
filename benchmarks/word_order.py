"""Which word stands where in a client's texts: what the updates of a small encoder with positions give away.

    PRIVFL_DATA=… python benchmarks/word_order.py --out docs/results/words.json

Some minutes of one core; the cells lie beside those of words.py. Medical questions (eleven doctors, words) with a
DistilBERT of two blocks that starts untrained. The attacker owns half of the held-out texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from words import fill

import attacks
import privfl as pf
from attacks.metrics.measure import mean_of
from attacks.word_order import WordOrder

NOISE_KEY = 20211
"""Repeats the noise, so that the study repeats; a run to be released leaves it out."""
CLIENTS = 10


@cache
def dataset() -> pf.Dataset:
    """Read once."""
    return pf.load_dataset("medical-questions", seed=0)


def read(
    size: int, privacy: pf.Privacy | None = None, *, width: int = 128, layers: int = 2, rate: float = 0.1
) -> dict[str, Any]:
    """Each of ten clients attacked, who hold ``size`` texts that are dealt at random and make one step on them."""
    options = {"layers": layers, "width": width, "heads": 4, "hidden": 2 * width, "positions": 96, "dropout": 0.0}
    sizes = pf.GivenSizes(sizes=(size,) * CLIENTS)
    task = pf.Task.from_dataset(dataset(), partition=sizes, model="distilbert", model_options=options, seed=0)
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=1,
        training=pf.LocalTraining(learning_rate=rate, batch_size=size, epochs=1),
        privacy=privacy,
        record=True,
        execution=pf.Execution(workers=1),
    )
    assert run.transcript is not None
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(0))[:2000]
    public = attacks.Records(task.test_inputs[order[::2]], task.test_targets[order[::2]])
    rows = []
    for client in range(CLIENTS):
        held = task.inputs[task.clients[client]]
        auxiliary = attacks.Auxiliary(public=public, truth={"tokens_at": held})
        result = WordOrder(client=client, texts=size).run(run.transcript, auxiliary)
        null = next(iter(result.nulls.values()))
        rows.append(
            {
                "words": result.units,
                **{measure: result.metrics[measure].to_json() for measure in ("placed", "whole")},
                "null": {measure: null[measure].to_json() for measure in ("placed", "whole")},
                "seconds": result.seconds,
            }
        )
    told_epsilon = run.statement.cell("sample", "server").epsilon
    return {"epsilon": None if told_epsilon == float("inf") else told_epsilon, "rows": rows}


def noisy(multiplier: float) -> pf.Privacy:
    """DP-SGD at the clients with the noise given over the clipping bound; one text is in every batch."""
    training = pf.DPSGD(noise_multiplier=multiplier, max_grad_norm=1.0, sample_rate=1.0)
    return pf.Privacy(training=training, noise_key=NOISE_KEY)


def cells() -> dict[str, Callable[[], dict[str, Any]]]:
    """The study: a call for each cell, by its name."""
    clip = pf.Privacy(update=(pf.Clip(0.01),))
    return {
        "order: one text": lambda: read(1),
        "order: one text, one block": lambda: read(1, layers=1),
        "order: one text, clipped": lambda: read(1, clip),
        "order: two texts": lambda: read(2),
        "order: two texts, rate 1": lambda: read(2, rate=1.0),
        "order: four texts, rate 1": lambda: read(4, rate=1.0),
        "order: two texts, rate 1, width 256": lambda: read(2, rate=1.0, width=256),
        "order: four texts, rate 1, width 256": lambda: read(4, rate=1.0, width=256),
        "order: one text, noise of 0.0001": lambda: read(1, noisy(0.0001)),
    }


def main() -> None:
    """Run all cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    fill(cells(), told, parser.parse_args().out)


def told(rows: list[Any]) -> str:
    """Means over clients, with the 95 % interval of what the attack gains over its null."""
    parts = []
    for measure in ("placed", "whole"):
        own, null = ([row[measure]["value"] for row in part] for part in (rows, [row["null"] for row in rows]))
        gain = mean_of([one - other for one, other in zip(own, null, strict=True)])
        parts.append(f"{measure} {mean_of(own).value:.3f}, null {mean_of(null).value:.3f}")
        parts.append(f"gain {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]")
    return f"{', '.join(parts)}; {sum(row['words'] for row in rows) / len(rows):.0f} words"


if __name__ == "__main__":
    main()
