"""What adversaries of rising power learn of members under each defence, with intervals, nulls and ceilings.

    PRIVFL_DATA=… python benchmarks/adversaries.py --out docs/results/adversaries.json

Some minutes of one core. One federation of ten clients for each defence, attacked by whoever sees released models, by a
client that poisons, by a server that watches and, where only sums are seen, by the same on sums. Every cell pools the
records of all clients against as many others. What is done is written at once, and a repeat goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from membership_seeds import NOISE_KEY, task_of

import attacks
import privfl as pf
from attacks.membership.matched_filter import filtered
from attacks.membership.shadow_models import ShadowTraining, join
from attacks.metrics.distinguishing import auc, auc_ceiling, tpr_at_fpr

DEFENCES = ("none", "larger batch", "secure sum", "ε = 50", "ε = 8", "ε = 1")
COMPARED = "a server that watches and compares clients"
FEDERATED = "released models, 4 federated references"
EPSILONS = {"ε = 50": 50.0, "ε = 8": 8.0, "ε = 1": 1.0}


def run_of(options: argparse.Namespace, task: pf.Task, defence: str) -> Any:
    """The recorded run of FedAvg on ``task`` under ``defence``."""
    privacy = pf.Privacy()
    batch = options.size if defence == "larger batch" else options.batch
    if defence == "secure sum":
        privacy = pf.Privacy(update=(pf.Clip(100.0), pf.SecureSum(mode="ideal")))
    if defence in EPSILONS:
        training = pf.DPSGD(target_epsilon=EPSILONS[defence], sample_rate=batch / options.size)
        privacy = pf.Privacy(training=training, noise_key=NOISE_KEY)
    return pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=options.rounds,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=batch, epochs=options.epochs),
        privacy=privacy,
        seed=options.seed,
        evaluate_every=options.rounds,
        record=True,
        execution=pf.Execution(workers=1),
    )


def cell(scores: Any, null: Any, members: Any, ceiling: float) -> dict[str, Any]:
    """AUC and TPR at 1 % with their intervals, the null's AUC, and the AUC that the claim allows."""
    values, guessed, inside = np.asarray(scores), np.asarray(null), np.asarray(members, dtype=bool)
    return {
        "auc": auc(values[inside], values[~inside]).to_json(),
        "tpr": tpr_at_fpr(values[inside], values[~inside], 0.01).to_json(),
        "null": auc(guessed[inside], guessed[~inside]).to_json(),
        "ceiling": ceiling,
    }


def games_of(options: argparse.Namespace, task: pf.Task) -> tuple[list[Any], Any]:
    """One membership game for each client, and the attacker's public records."""
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(options.seed))
    held = attacks.Records(task.test_inputs[order], task.test_targets[order])
    public, others = held[torch.arange(options.public)], held[torch.arange(options.public, len(order))]
    games = []
    for client in range(options.clients):
        rows = task.clients[client]
        mine = attacks.Records(task.inputs[rows], task.targets[rows])
        apart = others[torch.arange(client, len(others), options.clients)]
        games.append(attacks.membership_game(mine, apart, torch.Generator().manual_seed(options.seed), public))
    return games, public


def on_updates(options: argparse.Namespace, seen: Any, games: list[Any], public: Any) -> tuple[Any, Any]:
    """Scores and null's scores of a watching server: the matched filter of each client, or alignment with sums."""
    asked = join(*(game.candidates for game in games))
    if seen[0].training.uploads is None:
        found = attacks.GradientAlignment(client=None, rounds=options.read).guess(seen, attacks.Auxiliary(None, asked))
        return found.scores, next(iter(found.nulls.values()))
    known = public[torch.arange(options.references)]
    generator = torch.Generator().manual_seed(0)
    every = filtered(seen, asked, known, rounds=options.read, width=4096, generator=generator)
    owners = np.repeat(np.arange(options.clients), [len(game.candidates) for game in games])
    scores, null = np.zeros(len(asked)), np.zeros(len(asked))
    for client in range(options.clients):
        rows = torch.from_numpy(owners == client)
        part = replace(every, signal=every.signal[:, rows], energy=every.energy[:, rows])
        rival = (client + 1) % options.clients
        scores[rows.numpy()] = part.rows([client]).held().numpy()
        null[rows.numpy()] = part.rows([rival]).held().numpy()
    return scores, null


def compared(options: argparse.Namespace, run: Any, games: list[Any], ceiling: float) -> dict[str, Any]:
    """A watching server that compares each client with the others over all rounds: FedMIA."""
    scores, null = [], []
    for client, game in enumerate(games):
        guess = attacks.FedMIA(client=client).guess(run.transcript, game.for_attacker())
        scores.append(guess.scores)
        null.append(next(iter(guess.nulls.values())))
    members = np.concatenate([game.answer("members").numpy() for game in games])
    return cell(np.concatenate(scores), np.concatenate(null), members, ceiling)


def federated(options: argparse.Namespace, run: Any, games: list[Any], public: Any, ceiling: float) -> dict[str, Any]:
    """RMIA on the released model with references that are federations with the victim's mechanism."""
    members = torch.cat([game.answer("members") for game in games])
    game = attacks.Auxiliary(public, join(*(one.candidates for one in games)), {"members": members})
    found = attacks.RMIA(shadows=ShadowTraining(count=4, federated=True)).run(run.transcript, game)
    return cell(found.scores, next(iter(found.null_scores.values())), members, ceiling)


def attacked(options: argparse.Namespace, task: pf.Task, defence: str) -> dict[str, Any]:
    """One column of the table."""
    run = run_of(options, task, defence)
    games, public = games_of(options, task)
    truth = {"members": torch.cat([game.answer("members") for game in games])}
    game = attacks.Auxiliary(public, join(*(one.candidates for one in games)), truth)
    members = truth["members"].numpy()
    claims = {name: run.statement.cell("sample", name).epsilon for name in ("server", "public")}
    top = {name: auc_ceiling(epsilon, run.statement.delta) for name, epsilon in claims.items()}
    shadows = ShadowTraining(count=4, epochs=options.shadow_epochs, batch_size=options.batch)
    rmia = attacks.RMIA(shadows=shadows).run(run.transcript, game)
    poison = attacks.PoisonedMembership(shadows=shadows)
    poisoned, _ = poison.staged(task, pf.FedAvg(), game.for_attacker())
    repeat = poison.run(run_of(options, poisoned, defence).transcript, game)
    scores, null = on_updates(options, run.transcript, games, public)
    blind, poisoned_blind = (next(iter(found.null_scores.values())) for found in (rmia, repeat))
    comparison = (
        {} if run.transcript[0].training.uploads is None else {COMPARED: compared(options, run, games, top["server"])}
    )
    return {
        "accuracy": run.summary["test_accuracy"],
        "epsilon": {name: None if math.isinf(epsilon) else epsilon for name, epsilon in claims.items()},
        "members": int(members.sum()),
        "others": int((~members).sum()),
        "adversaries": {
            "released models, 4 references": cell(rmia.scores, blind, members, top["public"]),
            "a poisoning client": cell(repeat.scores, poisoned_blind, members, top["public"]),
            "a server that watches": cell(scores, null, members, top["server"]),
            **comparison,
        },
    }


def detectable(members: int, others: int) -> float:
    """How far above ½ an AUC must lie to be told from it: 1.96 of the rank statistic's deviations if nothing leaks."""
    return 1.96 * math.sqrt((members + others + 1) / (12 * members * others))


def table(cells: dict[str, Any]) -> str:
    """AUCs with their intervals; adversaries in rows, defences in columns."""
    names = [name for name in DEFENCES if name in cells]
    lines = ["| adversary | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for adversary in cells[names[0]]["adversaries"]:
        texts = []
        for name in names:
            if adversary not in cells[name]["adversaries"]:
                texts.append("–")
                continue
            found, many = cells[name]["adversaries"][adversary], (cells[name]["members"], cells[name]["others"])
            own, least = found["auc"], detectable(*many)
            text = f"{own['value']:.3f} [{own['low']:.3f}, {own['high']:.3f}], null {found['null']['value']:.3f}"
            texts.append(text if own["value"] > 0.5 + least else f"{text}; below {0.5 + least:.3f}")
        lines.append(f"| {adversary} | {' | '.join(texts)} |")
    ceilings = [f"{cells[name]['adversaries']['a server that watches']['ceiling']:.4g}" for name in names]
    lines.append("| *ceiling of the claim* | " + " | ".join(ceilings) + " |")
    lines.append("| *test accuracy* | " + " | ".join(f"{cells[name]['accuracy']:.3f}" for name in names) + " |")
    return "\n".join(lines)


def main() -> None:
    """Attack the runs that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--only", nargs="*", default=DEFENCES, choices=DEFENCES, help="defences that are tried")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--size", type=int, default=100, help="images of a client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--read", type=int, default=10, help="rounds that attacks on updates read, the last ones")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=100, help="hidden units")
    parser.add_argument("--public", type=int, default=2000, help="held-out images that the attacker owns")
    parser.add_argument("--references", type=int, default=500, help="of the matched filter")
    parser.add_argument("--shadow-epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "only")}
    stored = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else None
    stored = stored or {"settings": settings, "cells": {}}
    if stored["settings"] != settings:
        raise pf.ConfigError(f"{options.out} holds results of other settings; give another --out")
    task = task_of(options, options.seed)
    for defence in options.only:
        began = time.perf_counter()
        if defence not in stored["cells"]:
            stored["cells"][defence] = attacked(options, task, defence)
            options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
            print(f"{defence}: {time.perf_counter() - began:.0f} s", flush=True)
    for defence in options.only:
        adversaries, began = stored["cells"][defence]["adversaries"], time.perf_counter()
        if FEDERATED not in adversaries:  # four runs more
            run, (games, public) = run_of(options, task, defence), games_of(options, task)
            ceiling = adversaries["a poisoning client"]["ceiling"]
            adversaries[FEDERATED] = federated(options, run, games, public, ceiling)
            options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
            print(f"{defence}, {FEDERATED}: {time.perf_counter() - began:.0f} s", flush=True)
    print(table(stored["cells"]))


if __name__ == "__main__":
    main()
