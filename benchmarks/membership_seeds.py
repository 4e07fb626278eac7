"""Membership attacks over ten seeds, with and without DP-SGD: alignment, FedMIA, matched filter, owners, LiRA, RMIA.

    PRIVFL_DATA=… python benchmarks/membership_seeds.py --out docs/results/membership-seeds.json

A quarter of an hour of one core. A seed is one federation of ten clients and its repeat under DP-SGD. The server's
attacks read all updates; the public's read the released model, with reference models that are shared between both
victims. Every cell holds measures of attack and null; what is done is written at once, and a repeat goes on from there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attacks
import privfl as pf
from attacks.membership.cosines import Standardised, steps
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.matched_filter import filtered
from attacks.membership.scores import Models
from attacks.membership.shadow_models import Shadows, ShadowTraining, join, train_shadows
from attacks.membership.source import same_classes
from attacks.metrics.distinguishing import auc, tpr_at_fpr
from attacks.metrics.measure import mean_of

NOISE_KEY = 20211
"""Repeats the noise, so that the study repeats; a run to be released leaves it out."""
REFERENCES = (1, 2, 4)
LIRA = (4, 16)
ALIGNED = ("gradient-alignment", "gradient-alignment, all rounds", "fedmia", "fedmia, as published")
"""``fedmia`` reads all rounds; as published it multiplies one-sided probabilities of cosines, round by round."""
VICTIMS = {"undefended": None, "ε = 50": 50.0}


def task_of(options: argparse.Namespace, seed: int) -> pf.Task:
    """Clients of equal size, images dealt at random."""
    sizes = pf.GivenSizes(sizes=(options.size,) * options.clients)
    width = {"hidden": (options.width,)}
    return pf.load(options.dataset, partition=sizes, model="two-nn", model_options=width, seed=seed)


def victim(options: argparse.Namespace, task: pf.Task, seed: int, epsilon: float | None) -> Any:
    """The recorded run of FedAvg on ``task``."""
    noise = pf.Privacy()
    if epsilon is not None:
        training = pf.DPSGD(target_epsilon=epsilon, sample_rate=options.batch / options.size)
        noise = pf.Privacy(training=training, noise_key=NOISE_KEY + seed)
    return pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=options.rounds,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=options.batch, epochs=options.epochs),
        privacy=noise,
        seed=seed,
        evaluate_every=options.rounds,
        record=True,
        execution=pf.Execution(workers=1),
    )


def measures(scores: Any, members: Any) -> dict[str, float]:
    """AUC and TPR at 1 % false positives."""
    values, inside = np.asarray(scores), np.asarray(members, dtype=bool)
    ins, outs = values[inside], values[~inside]
    return {"auc": auc(ins, outs).value, "tpr": tpr_at_fpr(ins, outs, 0.01).value}


def by_server(options: argparse.Namespace, seen: Any, games: list[Any], public: Any) -> dict[str, Any]:
    """Attacks on updates. A game asks whether records are its client's; their scores are judged together."""
    asked = join(*(game.candidates for game in games))
    models, n, rounds = Models(seen.factory), len(asked), options.read
    members = np.concatenate([game.answer("members").numpy() for game in games])
    owners = np.repeat(np.arange(options.clients), [len(game.candidates) for game in games])
    last = options.clients - 1
    rivals = {client: last if client != last else 0 for client in range(options.clients)}
    scores = {f"{name}{null}": np.zeros(n) for name in ALIGNED for null in ("", ", null")}
    sums = {(client, role): Standardised() for client in rivals for role in ("", ", null")}
    for place, one in enumerate(seen):
        stacked = torch.stack([one.uploads[client]["update"] for client in range(options.clients)])
        made, slopes = steps(models, one.broadcast["parameters"], asked, stacked)
        cosines = made / slopes
        for client, rival in rivals.items():
            rows = torch.from_numpy(owners == client)
            for who, null in ((client, ""), (rival, ", null")):
                rest = [other for other in rivals if other not in (client, who)]
                sums[client, null].add(made[who, rows], made[rest][:, rows])
                apart = (cosines[who, rows] - cosines[rest][:, rows].mean(0)) / cosines[rest][:, rows].std(0)
                scores[f"fedmia, as published{null}"][rows.numpy()] += torch.special.log_ndtr(apart).numpy()
                scores[f"gradient-alignment, all rounds{null}"][rows.numpy()] += cosines[who, rows].numpy()
                if place >= len(seen) - rounds:
                    scores[f"gradient-alignment{null}"][rows.numpy()] += cosines[who, rows].numpy()
    for (client, null), found in sums.items():
        rows = torch.from_numpy(owners == client)
        scores[f"fedmia{null}"][rows.numpy()] = found.scores(asked.targets[rows]).numpy()
    known, apart = public[torch.arange(0, len(public), 2)], public[torch.arange(1, len(public), 2)]
    inside = torch.from_numpy(members)
    likes = same_classes(apart, asked.targets[inside])  # nobody's, of the members' classes
    generator = torch.Generator().manual_seed(0)
    known = known[torch.arange(options.references)]
    every = filtered(seen, join(asked, likes), known, rounds=rounds, width=4096, generator=generator)
    candidates = replace(every, signal=every.signal[:, :n], energy=every.energy[:, :n])
    scores["filter"], scores["filter, null"] = np.zeros(n), np.zeros(n)
    for client, rival in rivals.items():
        rows = torch.from_numpy(owners == client)
        part = replace(candidates, signal=candidates.signal[:, rows], energy=candidates.energy[:, rows])
        scores["filter"][rows.numpy()] = part.rows([client]).held().numpy()
        scores["filter, null"][rows.numpy()] = part.rows([rival]).held().numpy()
    named = every.standardised().argmax(0)
    true = torch.from_numpy(owners)[inside]
    right = [float((part == true).double().mean()) for part in (named[:n][inside], named[n:])]
    cells = {
        name: {**measures(scores[key], members), "null": measures(scores[f"{key}, null"], members)}
        for name, key in (*((name, name) for name in ALIGNED), ("matched-filter", "filter"))
    }
    cells["matched-filter, anybody's"] = {**measures(candidates.held(), members), "null": {"auc": 0.5, "tpr": 0.01}}
    cells["source-inference"] = {
        "accuracy": right[0],
        "null": {"accuracy": right[1]},
        "chance": 1 / options.clients,
    }
    return cells


def by_public(seen: Any, game: Any, shadows: Shadows) -> dict[str, Any]:
    """Attacks on the released model by reference models that know neither DP nor the federation."""
    members, asked = game.answer("members").numpy(), game.candidates
    threshold = LossThreshold().run(seen, game)
    found = {"loss-threshold": {**measures(threshold.scores, members), "null": {"auc": 0.5, "tpr": 0.01}}}

    def judged(guess: Any) -> dict[str, Any]:
        null = next(iter(guess.nulls.values()))
        return {**measures(guess.scores, members), "null": measures(null, members)}

    def few(count: int) -> Shadows:
        return replace(shadows, parameters=shadows.parameters[:count], inside=shadows.inside[:count])

    for count in LIRA:
        attack: Any = attacks.LiRA(mode="offline", shadows=ShadowTraining(count=count))
        found[f"lira, offline, {count}"] = judged(attack.compare(seen, asked, few(count), candidates_inside=False))
    for count in REFERENCES:
        attack = attacks.RMIA(shadows=ShadowTraining(count=count))
        guess = attack.compare(seen, asked, shadows.pool, few(count), candidates_inside=False)
        found[f"rmia, offline, {count}"] = judged(guess)
    return found


def one_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Both victims of a seed, attacked."""
    task = task_of(options, seed)
    order = torch.randperm(len(task.test_targets), generator=torch.Generator().manual_seed(seed))
    held = attacks.Records(task.test_inputs[order], task.test_targets[order])
    public = held[torch.arange(options.public)]
    others = held[torch.arange(options.public, len(order))]
    games = []
    for client in range(options.clients):
        rows = task.clients[client]
        apart = others[torch.arange(client, len(others), options.clients)]
        mine = attacks.Records(task.inputs[rows], task.targets[rows])
        games.append(attacks.membership_game(mine, apart, torch.Generator().manual_seed(seed), public))
    truth = {"members": torch.cat([game.answer("members") for game in games])}
    whole = attacks.Auxiliary(public, join(*(game.candidates for game in games)), truth)
    found: dict[str, Any] = {"members": int(truth["members"].sum()), "others": int((~truth["members"]).sum())}
    shadows: Shadows | None = None
    for name, epsilon in VICTIMS.items():
        began = time.perf_counter()
        run = victim(options, task, seed, epsilon)
        trained = time.perf_counter() - began
        if shadows is None:
            plan = ShadowTraining(count=max(LIRA), epochs=options.shadow_epochs, seed=seed)
            shadows = train_shadows(run.transcript, public, plan)
        cells = by_server(options, run.transcript, games, public) | by_public(run.transcript, whole, shadows)
        rest = time.perf_counter() - began - trained
        told = run.statement.cell("sample", "server").epsilon
        found[name] = {
            "attacks": cells,
            "accuracy": run.summary["test_accuracy"],
            "epsilon": None if told == float("inf") else told,
            "seconds": [round(trained, 1), round(rest, 1)],
        }
    return found


def mean(values: list[float]) -> str:
    """Mean and half width of its 95 % interval over seeds."""
    found = mean_of(values)
    return f"{found.value:.4f} ± {found.high - found.value:.4f}" if len(values) > 1 else f"{found.value:.4f}"


def table(seeds: Mapping[str, Any]) -> str:
    """Means over seeds with intervals, and of every seed's ratio of FedMIA to alignment and of RMIA to LiRA."""
    lines = []
    for name in VICTIMS:
        cells = [seed[name]["attacks"] for seed in seeds.values()]
        lines += [f"| {name} | AUC | null | TPR at 1 % | null |", "|---|---|---|---|---|"]
        for attack in cells[0]:
            if attack == "source-inference":
                continue
            columns = [
                mean([pick(cell[attack]) for cell in cells])
                for pick in (
                    lambda row: row["auc"],
                    lambda row: row["null"]["auc"],
                    lambda row: row["tpr"],
                    lambda row: row["null"]["tpr"],
                )
            ]
            lines.append(f"| {attack} | " + " | ".join(columns) + " |")
        source = [cell["source-inference"] for cell in cells]
        right, null = (mean([row["accuracy"] for row in rows]) for rows in (source, [row["null"] for row in source]))
        lines += ["", f"source-inference: {right} right, null {null}, chance {source[0]['chance']:.3f}"]
        pairs = [(one, base) for base in ALIGNED[:2] for one in (*ALIGNED[2:], "matched-filter")]
        pairs += [(f"rmia, offline, {count}", f"lira, offline, {many}") for count in REFERENCES for many in LIRA]
        for one, other in pairs:
            ratio = statistics.mean(c[one]["tpr"] for c in cells) / statistics.mean(c[other]["tpr"] for c in cells)
            gap = {key: mean([c[one][key] - c[other][key] for c in cells]) for key in ("auc", "tpr")}
            lines.append(f"{one} / {other}: TPR × {ratio:.2f}, TPR + {gap['tpr']}, AUC + {gap['auc']}")
        lines.append("accuracy: " + mean([seed[name]["accuracy"] for seed in seeds.values()]) + "\n")
    return "\n".join(lines)


def main() -> None:
    """Run the seeds that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--size", type=int, default=100, help="images of a client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--read", type=int, default=10, help="rounds that the server's attacks read, the last ones")
    parser.add_argument("--references", type=int, default=500, help="of the matched filter")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=100, help="hidden units")
    parser.add_argument("--public", type=int, default=2000, help="held-out images that the attacker owns")
    parser.add_argument("--shadow-epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "seeds")}
    stored = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else None
    stored = stored or {"settings": settings, "seeds": {}}
    if stored["settings"] != settings:
        raise pf.ConfigError(f"{options.out} holds results of other settings; give another --out")
    for seed in range(options.seeds):
        if str(seed) not in stored["seeds"]:
            stored["seeds"][str(seed)] = one_seed(options, seed)
            options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
            print(f"seed {seed}: {[stored['seeds'][str(seed)][name]['seconds'] for name in VICTIMS]} s", flush=True)
    print(table(stored["seeds"]))


if __name__ == "__main__":
    main()
