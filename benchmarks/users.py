"""Whether a user took part, from released models, by one and by twenty of the user's records, under DP-SGD and not.

    PRIVFL_DATA=… python benchmarks/users.py --out docs/results/users.json

Some minutes of one core. 100 clients of 20 Fashion-MNIST images against as many made-up users of the same classes,
asked with records that the clients trained on. What is done is written at once.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

import attacks
import privfl as pf
from attacks.membership.game import users_game
from attacks.membership.shadow_models import ShadowTraining

CLIENTS, SIZE, ROUNDS = 100, 20, 20
NOISE_KEY = 20211
"""Repeats the noise, so that the study repeats; a run to be released leaves it out."""
DEFENCES = {"none": None, "ε = 50": 50.0, "ε = 8": 8.0, "ε = 1": 1.0}


def attacked(seed: int, epsilon: float | None) -> dict[str, Any]:
    """One run: AUC over users, over their single records, and the claims."""
    sizes = pf.GivenSizes(sizes=(SIZE,) * CLIENTS)
    task = pf.load("fashion-mnist", partition=sizes, model="two-nn", model_options={"hidden": (100,)}, seed=seed)
    privacy = pf.Privacy()
    if epsilon is not None:
        training = pf.DPSGD(target_epsilon=epsilon, sample_rate=0.25)
        privacy = pf.Privacy(training=training, noise_key=NOISE_KEY + seed)
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=ROUNDS,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=5, epochs=5),
        privacy=privacy,
        seed=seed,
        evaluate_every=ROUNDS,
        record=True,
        execution=pf.Execution(workers=1),
    )
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(seed))
    held = attacks.Records(task.test_inputs[order], task.test_targets[order])
    public, others = held[torch.arange(2000)], held[torch.arange(2000, len(order))]
    rows = [task.clients[client] for client in range(CLIENTS)]
    mine = attacks.Records(task.inputs, task.targets)
    game = users_game(mine, rows, others, public, 10**6, torch.Generator().manual_seed(seed))
    assert game.users is not None
    alone, alike = ShadowTraining(count=4, epochs=20, batch_size=5), ShadowTraining(count=4, federated=True)
    found, weaker = (attacks.UserInference(shadows=shadows).run(run.transcript, game) for shadows in (alike, alone))
    single = attacks.Auxiliary(public, game.candidates, {"members": game.truth["users"][game.users]})
    record = attacks.RMIA(shadows=alone).run(run.transcript, single)
    null = next(iter(found.nulls.keys() - {"chance"}))
    claim = {unit: run.statement.cell(unit, "public").epsilon for unit in ("sample", "client")}
    return {
        "accuracy": run.summary["test_accuracy"],
        "epsilon": {unit: None if math.isinf(value) else value for unit, value in claim.items()},
        "users": [int(found.members.sum()), int((~found.members).sum())],
        "auc": found.metrics["auc"].to_json(),
        "null": found.nulls[null]["auc"].to_json(),
        "auc, references alone": weaker.metrics["auc"].to_json(),
        "single records": record.metrics["auc"].to_json(),
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    for seed in range(options.seeds):
        for name, epsilon in DEFENCES.items():
            key, began = f"{name}, seed {seed}", time.perf_counter()
            if key not in stored:
                stored[key] = attacked(seed, epsilon)
                options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
            row = stored[key]
            told = {
                what: f"{row[what]['value']:.3f}" for what in ("auc", "null", "auc, references alone", "single records")
            }
            print(f"{key}: {told}, users {row['users']} ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
