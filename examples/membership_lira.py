"""Who trained this model? Membership attacks on a federated model, on single updates, and on a private run.

    python examples/membership_lira.py --out results/membership            # Fashion-MNIST, 64 shadows, ten minutes
    python examples/membership_lira.py --out results/membership --small    # digits, half a minute

Victims are one model trained centrally, a federation of the same clients, and the same federation under DP-SGD. The
public attacks them by their last released model and shares one set of shadow models among all attacks; the server
attacks the updates of client 0, watching or actively. What is finished is kept: an interrupted call goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from membership_figures import curves, rates

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.active_server import gradient_ascent_server
from attacks.membership.game import membership_game
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.result import MembershipResult, membership_result
from attacks.membership.rmia import RMIA
from attacks.membership.scores import Models
from attacks.membership.shadow_models import Shadows, ShadowTraining, join, train_shadows
from attacks.membership.update_attacks import (
    FederatedMembership,
    GradientAlignment,
    GradientDifference,
    LossDrop,
    LossTrajectory,
)
from attacks.metrics.distinguishing import auc_ceiling, roc, tpr_ceiling
from privfl.files import write_whole

CENTRAL, FEDERATED, PRIVATE = "central", "federated", "DP-SGD"
DELTA = 1e-5


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    dataset: str
    hidden: int
    clients: int
    rows: int
    others: int
    public: int
    rounds: int
    batch: int
    epsilon: float
    central_epochs: int
    shadows: int
    server_rounds: int
    ascents: int


FULL = Scale("fashion-mnist", 100, 10, 1000, 10_000, 5000, 30, 50, 8.0, 20, 64, 5, 5)
SMALL = Scale("digits", 24, 4, 80, 400, 200, 5, 20, 8.0, 10, 6, 2, 1)
TARGETS, STEP = 20, 1.0
"""Records that an active server ascends in one run, and the length of its step."""
SMALL_RATES = ("tpr_at_fpr_0.01", "tpr_at_fpr_0.001")


class Store:
    """Results by (victim, attack) in ``results.json``."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "results.json"
        self.content: dict[str, Any] = (
            json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {"rows": []}
        )

    def has(self, victim: str, attack: str) -> bool:
        """Whether this attack on this victim is finished."""
        return any(row["victim"] == victim and row["name"] == attack for row in self.content["rows"])

    def add(self, victim: str, attack: str, result: MembershipResult) -> None:
        """Keep a result, with a thinned ROC."""
        inside = result.members
        fpr, tpr = roc(result.scores[inside], result.scores[~inside])
        grid = np.geomspace(1 / (2 * (~inside).sum()), 1, 120)
        curve = tpr[np.searchsorted(fpr, grid, side="right") - 1]  # the rate at the largest FPR that is not above
        points = [[float(f"{value:.5g}") for value in values] for values in (grid, curve)]
        row = {"victim": victim, "name": attack, **result.to_json(), "roc": points}
        self.content["rows"].append(row)
        self.save()
        print(f"\n{victim}\n{result}", flush=True)

    def save(self) -> None:
        """Write the file whole."""
        write_whole(self.file, (json.dumps(self.content, indent=1) + "\n").encode())


def records_of(scale: Scale) -> tuple[list[Records], Records, Records, tuple[torch.Tensor, torch.Tensor]]:
    """The clients' records, non-members, the attacker's public records, and a test set; no record is in two of them."""
    data = pf.load_dataset(scale.dataset)
    order = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(0))
    counts = [scale.rows] * scale.clients + [scale.others, scale.public]
    parts = [Records(data.inputs[rows], data.targets[rows]) for rows in order[: sum(counts)].split(counts)]
    return parts[: scale.clients], parts[-2], parts[-1], (data.test_inputs, data.test_targets)


def victim(name: str, scale: Scale, task: pf.Task, out: Path) -> pf.Run:
    """Train the victim ``name`` and record it; a finished run is read again instead of repeated."""
    central = name == CENTRAL
    training = pf.LocalTraining(
        learning_rate=0.1, batch_size=scale.batch, epochs=scale.central_epochs if central else 2
    )
    privacy = None
    if name == PRIVATE:
        mechanism = pf.DPSGD(target_epsilon=scale.epsilon, max_grad_norm=1.0, sample_rate=scale.batch / scale.rows)
        privacy = pf.Privacy(training=mechanism, target_delta=DELTA)
    return pf.simulate(
        task,
        pf.Centralized() if central else pf.FedAvg(weighting="uniform"),
        rounds=1 if central else scale.rounds,
        evaluate_every=scale.rounds,
        training=training,
        privacy=privacy,
        record=True,
        out=out / name,
        resume=(out / name).exists(),
        execution=pf.Execution(engine="loop", workers=1, checkpoint_seconds=30.0),
    )


def shadows_of(scale: Scale, seen: pf.Transcript, pool: Records, out: Path) -> Shadows:
    """The shadow models that all public attacks share."""
    file = out / "shadows.npz"
    if file.exists():
        with np.load(file, allow_pickle=False) as stored:
            parameters, inside = (torch.from_numpy(stored[name]) for name in ("parameters", "inside"))
            return Shadows(Models(seen.factory), parameters, pool, inside, float(stored["seconds"]))
    found = train_shadows(seen, pool, ShadowTraining(count=scale.shadows, seed=1))
    np.savez(file, parameters=found.parameters.numpy(), inside=found.inside.numpy(), seconds=found.seconds)
    return found


def public_attacks(shadows: int) -> Iterator[tuple[str, LossThreshold | LiRA | RMIA]]:
    """The attacks on a released model, by name."""
    of = ShadowTraining(count=shadows)
    yield "loss threshold", LossThreshold()
    yield "gap", LossThreshold(statistic="correct")
    yield "LiRA online", LiRA(shadows=of)
    yield "LiRA online, 3 queries", LiRA(shadows=of, queries=("identity", "left", "right"))
    yield "LiRA offline", LiRA(mode="offline", shadows=of)
    yield "RMIA online", RMIA(mode="online", shadows=of)
    yield "RMIA offline", RMIA(mode="offline", shadows=of)


def server_attacks(rounds: int) -> Iterator[tuple[str, FederatedMembership]]:
    """The attacks on the updates of client 0, and on the sum of all updates."""
    yield "gradient alignment", GradientAlignment(rounds=rounds)
    yield "gradient difference", GradientDifference(rounds=rounds)
    yield "loss trajectory", LossTrajectory(rounds=rounds)
    yield "loss drop", LossDrop(rounds=rounds)
    yield "gradient alignment, sums only", GradientAlignment(client=None, rounds=rounds)


def attack_model(run: pf.Run, name: str, asked: Auxiliary, shadows: Shadows, store: Store) -> None:
    """All attacks on the last released model."""
    assert run.transcript is not None
    seen = run.transcript.before_public()
    candidates, public = asked.need_candidates(), asked.need_public()
    for title, attack in public_attacks(len(shadows.parameters)):
        if store.has(name, title):
            continue
        began = time.perf_counter()
        if isinstance(attack, LossThreshold):
            guess, training = attack.guess(seen, asked.for_attacker()), 0.0
        elif isinstance(attack, RMIA):
            guess = attack.compare(seen, candidates, public, shadows, candidates_inside=True)
            training = shadows.seconds
        else:
            guess, training = attack.compare(seen, candidates, shadows, candidates_inside=True), shadows.seconds
        store.add(name, title, attack.judge(guess, asked, time.perf_counter() - began + training))


def attack_client(run: pf.Run, name: str, asked: Auxiliary, rounds: int, store: Store) -> None:
    """All attacks on the messages of client 0."""
    assert run.transcript is not None
    for title, attack in server_attacks(rounds):
        if not store.has(name, title):
            store.add(name, title, attack.run(run.transcript, asked))


def attack_actively(run: pf.Run, scale: Scale, task: pf.Task, asked: Auxiliary, store: Store) -> None:
    """Ascend a few candidates in every one of ``scale.ascents`` runs; the passive attack on the same ones beside it."""
    assert run.transcript is not None
    attack, candidates = LossDrop(rounds=10), asked.need_candidates()
    few = torch.arange(scale.ascents * TARGETS)
    some = Auxiliary(None, candidates[few], {"members": asked.answer("members")[few]})
    passive, active = (f"loss drop, {len(few)} records", f"loss drop, {len(few)} records, active server")
    if not store.has(FEDERATED, passive):
        store.add(FEDERATED, passive, attack.run(run.transcript, some))
    if store.has(FEDERATED, active):
        return
    began, found, nulls = time.perf_counter(), [], []
    for rows in few.split(TARGETS):
        group = Auxiliary(None, candidates[rows])
        algorithm = gradient_ascent_server(pf.FedAvg(weighting="uniform"), candidates[rows], step=STEP)
        attacked = pf.simulate(
            task,
            algorithm,
            rounds=scale.rounds,
            evaluate_every=scale.rounds,
            training=pf.LocalTraining(learning_rate=0.1, batch_size=scale.batch, epochs=2),
            record=True,
            execution=pf.Execution(engine="loop", workers=1),
        )
        assert attacked.transcript is not None
        guess = attack.guess(attacked.transcript, group)
        found.append(guess.scores)
        nulls.append(next(iter(guess.nulls.values())))
        store.content.setdefault("active_test_accuracy", []).append(attacked.summary["test_accuracy"])
    result = membership_result(
        "loss-drop, active server",
        np.concatenate(found),
        some.answer("members").numpy(),
        null_scores={"another client's updates": np.concatenate(nulls)},
        labels=candidates.targets[few].numpy(),
        seconds=time.perf_counter() - began,
    )
    store.add(FEDERATED, active, result)


def table(store: Store) -> str:
    """All results as a Markdown table."""
    lines = [
        "| victim | attack | AUC | best null | balanced accuracy | TPR at 1 % FPR | at 0.1 % | s per score |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in store.content["rows"]:
        found = row["metrics"]
        best = max(null["auc"]["value"] for null in row["nulls"].values())
        small = " | ".join(f"{found[name]['value']:.3f}" if name in found else "–" for name in SMALL_RATES)
        lines.append(
            f"| {row['victim']} | {row['name']} | {found['auc']['value']:.3f} [{found['auc']['low']:.3f}, "
            f"{found['auc']['high']:.3f}] | {best:.3f} | {found['balanced_accuracy']['value']:.3f} | {small} | "
            f"{row['seconds_per_unit']:.2g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train the victims and the shadows, attack, and write results, table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--small", action="store_true", help="digits and eight shadows instead of Fashion-MNIST and 64")
    options = parser.parse_args()
    scale, out = SMALL if options.small else FULL, options.out
    out.mkdir(parents=True, exist_ok=True)
    store = Store(out)
    if "ceiling" not in store.content:
        study(scale, out, store)
    rows, epsilon = store.content["rows"], store.content["victims"][PRIVATE]["epsilon"]
    rates(rows).savefig(out / "membership-rates.png", dpi=150)
    curves(rows, epsilon, DELTA).savefig(out / "membership-roc.png", dpi=150)
    write_whole(out / "table.md", (table(store) + "\n").encode())


def study(scale: Scale, out: Path, store: Store) -> None:
    """Train what is not trained yet, and attack."""
    clients, others, public, test = records_of(scale)
    everyone = join(*clients)
    owners = torch.arange(scale.clients).repeat_interleave(scale.rows)
    dataset = pf.Dataset.from_arrays(everyone.inputs, everyone.targets, clients=owners, test=test)
    task = pf.Task.from_dataset(dataset, model="two-nn", model_options={"hidden": [scale.hidden]})
    coins = torch.Generator().manual_seed(1)
    asked = membership_game(everyone, others, coins, public)
    asked_client = membership_game(clients[0], others, coins, public)
    runs = {name: victim(name, scale, task, out) for name in (CENTRAL, FEDERATED, PRIVATE)}
    store.content["victims"] = {}
    for name, run in runs.items():
        assert run.transcript is not None
        logits = Models(run.transcript.factory).logits(run.parameters, everyone.inputs)
        store.content["victims"][name] = {
            "train_accuracy": float((logits.argmax(1) == everyone.targets).double().mean()),
            "test_accuracy": run.summary["test_accuracy"],
            "epsilon": run.statement.cell("sample", "public").epsilon if name == PRIVATE else None,
        }
    central = runs[CENTRAL].transcript
    assert central is not None
    shadows = shadows_of(scale, central, join(asked.candidates, public), out)
    store.content["shadow_seconds"], store.content["shadows"] = shadows.seconds, scale.shadows
    for name, run in runs.items():
        attack_model(run, name, asked, shadows, store)
        if name != CENTRAL:
            attack_client(run, name, asked_client, scale.server_rounds, store)
    attack_actively(runs[FEDERATED], scale, task, asked_client, store)
    epsilon = store.content["victims"][PRIVATE]["epsilon"]
    store.content["ceiling"] = {
        "auc": auc_ceiling(epsilon, DELTA),
        "tpr_at_fpr_0.01": tpr_ceiling(0.01, epsilon, DELTA),
    }
    store.save()


if __name__ == "__main__":
    main()
