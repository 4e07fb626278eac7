"""Do ReBaFL's prototypes leak? §5.6 of arXiv 2303.06314 with numbers where the paper has pictures.

    PRIVFL_DATA=… python examples/attack_prototypes.py --out results/prototypes
    python examples/attack_prototypes.py --out results/small --small        # digits, under a minute

In one recorded run of ReBaFL some clients hold 1, 2, 5, 20, 100 or 500 images of every class. The attacker is the
server: it has the messages of the last round and public images that no client holds. It draws an image from every
prototype by UpCNN, two VAEs, GRNN and direct optimisation, and it scores images for having been in the mean. Stages
that are done are kept; an interrupted study goes on where it stopped: call the command again.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attack_prototypes_figures import draw_curves, draw_sheet
from torch import Tensor

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.images.nulls import image_nulls
from attacks.images.pixels import Pixels
from attacks.membership.result import membership_result
from attacks.metrics.images import identifiability, psnr
from attacks.metrics.measure import mean_of
from attacks.prototypes.direct_inversion import direct_inversion
from attacks.prototypes.grnn import grnn_inversion
from attacks.prototypes.inversion import (
    OTHERS,
    PrototypeGuess,
    PrototypeInversion,
    nearest_of_class,
    public_prototypes,
)
from attacks.prototypes.membership import TracingGuess, trace_message
from attacks.prototypes.messages import PrototypeMessage, message_of
from attacks.prototypes.upcnn import decoded, train_upcnn
from attacks.prototypes.vae_inversion import search_latents, train_feature_vae, train_image_vae
from privfl.randomness import torch_stream

METHODS = ("upcnn", "vae", "vae-search", "grnn", "direct")


@dataclass(frozen=True)
class Plan:
    """One dataset's study. ``holders``: images of a class → how many clients hold so many; ``shown``: classes that a
    method is tried on; ``public``: images of a class that the attacker has; ``decoder_images``: how many of these its
    decoders are trained on, ``refined``: how many more times a decoder sees one to follow from the broadcast extractor
    to that of the attacked client."""

    dataset: str
    model: str
    learning_rate: float
    holders: dict[int, int]
    background: int
    background_images: int
    public: int
    rounds: int
    local_epochs: int
    decoder_images: int
    decoder_epochs: int
    refined: int
    channels: tuple[int, ...]
    iterations: dict[str, int]
    shown: dict[str, int]


LARGE: dict[str, Any] = {
    "holders": {1: 6, 2: 3, 5: 3, 20: 2, 100: 1, 500: 1},
    "background": 10,
    "background_images": 125,
    "public": 800,
    "rounds": 6,
    "local_epochs": 2,
    "decoder_images": 4000,
    "decoder_epochs": 8,
    "refined": 1000,
    "iterations": {"vae-search": 150, "grnn": 200, "direct": 400},
    "shown": {"upcnn": 10, "vae": 10, "vae-search": 5, "grnn": 4, "direct": 10},
}
FULL = (
    Plan(dataset="cifar10", model="rebafl-cifar", learning_rate=0.02, channels=(48, 24, 12), **LARGE),
    Plan(dataset="fashion-mnist", model="rebafl-fmnist", learning_rate=0.01, channels=(48, 24), **LARGE),
)
SMALL = Plan(
    dataset="digits",
    model="two-nn",
    learning_rate=0.05,
    holders={1: 2, 5: 1, 20: 1},
    background=2,
    background_images=30,
    public=60,
    rounds=2,
    local_epochs=1,
    decoder_images=600,
    decoder_epochs=10,
    refined=300,
    channels=(16, 8),
    iterations={"vae-search": 20, "grnn": 20, "direct": 40},
    shown={"upcnn": 10, "vae": 10, "vae-search": 5, "grnn": 2, "direct": 5},
)


@dataclass(frozen=True)
class Federation:
    """The clients' rows in the training set, which clients hold n images of every class, and the public rows."""

    dataset: pf.Dataset
    rows: list[Tensor]
    victims: dict[int, list[int]]
    public: Records


def federation(plan: Plan) -> Federation:
    """Victims first, then background clients with two classes each; nobody shares an image with anybody."""
    dataset = pf.load_dataset(plan.dataset, seed=0)
    shuffle = torch_stream(0, "prototype-study")
    of_class = []
    for label in range(dataset.classes):
        rows = (dataset.targets == label).nonzero().flatten()
        of_class.append(rows[torch.randperm(len(rows), generator=shuffle)])
    taken = [0] * dataset.classes

    def take(label: int, count: int) -> Tensor:
        taken[label] += count
        found = of_class[label][taken[label] - count : taken[label]]
        assert len(found) == count, f"{plan.dataset} has too few images of class {label}"
        return found

    clients: list[Tensor] = []
    victims: dict[int, list[int]] = {}
    for count, holders in plan.holders.items():
        victims[count] = list(range(len(clients), len(clients) + holders))
        clients += [torch.cat([take(label, count) for label in range(dataset.classes)]) for _ in range(holders)]
    for number in range(plan.background):
        pair = (2 * number % dataset.classes, (2 * number + 1) % dataset.classes)
        clients.append(torch.cat([take(label, plan.background_images) for label in pair]))
    rows = torch.cat([take(label, plan.public) for label in range(dataset.classes)])
    return Federation(dataset, clients, victims, Records(dataset.inputs[rows], dataset.targets[rows]))


def recorded(plan: Plan, world: Federation, out: Path) -> tuple[pf.Transcript, float]:
    """What the server saw of the run, and the test accuracy that it ended with."""
    folder = out / f"run-{plan.dataset}"
    if not (folder / "done").exists():
        chosen = torch.cat(world.rows)
        owners = torch.cat([torch.full((len(part),), client) for client, part in enumerate(world.rows)])
        source = world.dataset
        held = pf.Dataset(
            source.name,
            source.inputs[chosen],
            source.targets[chosen],
            source.test_inputs,
            source.test_targets,
            source.classes,
            owners,
        )
        run = pf.simulate(
            pf.Task.from_dataset(held, partition=pf.Natural(), model=plan.model),
            pf.ReBaFL(n_min=1),
            rounds=plan.rounds,
            training=pf.LocalTraining(
                learning_rate=plan.learning_rate,
                batch_size=50,
                epochs=plan.local_epochs,
                momentum=0.5,
                weight_decay=5e-4,
            ),
            execution=pf.Execution(engine="loop", workers=1),
            record=("server",),
            out=folder,
            resume=folder.exists(),
        )
        (folder / "done").write_text(str(run.metrics[-1]["test_accuracy"]), encoding="utf-8")
    return pf.Transcript.load(folder), float((folder / "done").read_text(encoding="utf-8"))


class Inverter:
    """Draws images from prototypes by every method; what does not depend on the client is trained once."""

    def __init__(self, plan: Plan, transcript: pf.Transcript, public: Records) -> None:
        self.plan, self.pixels = plan, Pixels.of(plan.dataset)
        self.generator = torch_stream(0, "attacker")
        order = torch.randperm(len(public), generator=self.generator)
        self.lessons = public[order[: plan.decoder_images]]
        self.images = self.pixels.images(self.lessons.inputs)
        self.seconds = dict.fromkeys(METHODS, 0.0)
        broadcast = transcript.network(transcript[-1].broadcast["parameters"]).requires_grad_(False)
        self.broadcast = PrototypeMessage(-1, (), torch.empty(0), torch.empty(0), broadcast)
        training: dict[str, Any] = {"generator": self.generator, "channels": plan.channels}
        training |= {"epochs": plan.decoder_epochs, "batch_size": 64}
        features = self.broadcast.features(self.lessons.inputs)
        self.upcnn = self.timed("upcnn", lambda: train_upcnn(features, self.images, **training))
        self.vae = self.timed("vae", lambda: train_feature_vae(features, self.images, **training))
        self.prior = self.timed("vae-search", lambda: train_image_vae(self.images, **training))

    def timed(self, method: str, work: Callable[[], Any]) -> Any:
        """The result of ``work``; its processor seconds are charged to ``method``."""
        began = time.process_time()
        found = work()
        self.seconds[method] += time.process_time() - began
        return found

    def drawing(self, method: str, message: PrototypeMessage, targets: Tensor) -> Tensor:
        """Images [K, C, H, W] behind ``targets`` [K, d] under the extractor of ``message``."""
        found: Tensor = self.timed(method, lambda: self._draw(method, message, targets))
        return found

    def _draw(self, method: str, message: PrototypeMessage, targets: Tensor) -> Tensor:
        def extract(batch: Tensor) -> Tensor:
            return message.network.features(self.pixels.inputs(batch))

        shape = tuple(self.images.shape[1:])
        steps = self.plan.iterations.get(method, 1)
        if method in ("upcnn", "vae"):
            chosen = torch.randperm(len(self.images), generator=self.generator)[: self.plan.refined]
            train = train_upcnn if method == "upcnn" else train_feature_vae
            start = copy.deepcopy(self.upcnn if method == "upcnn" else self.vae)
            features = message.features(self.lessons.inputs[chosen])
            given: dict[str, Any] = {"generator": self.generator, "epochs": 1, "start": start}
            return decoded(train(features, self.images[chosen], **given), targets)
        if method == "vae-search":
            return search_latents(extract, self.prior, targets, iterations=steps)
        if method == "direct":
            return direct_inversion(extract, targets, shape, generator=self.generator, iterations=steps)[0]
        return torch.cat(
            [
                grnn_inversion(
                    extract,
                    target,
                    shape,
                    generator=self.generator,
                    iterations=steps,
                    learning_rate=1e-3,
                    momentum=0.9,
                    base=32,
                )[0]
                for target in targets
            ]
        )


def reconstructions(
    plan: Plan, world: Federation, transcript: pf.Transcript, count: int, inverter: Inverter
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Every method against the prototypes of one client with ``count`` images of a class: results, and all images."""
    client = world.victims[count][0]
    message, pixels = message_of(transcript, client), inverter.pixels
    rows = world.rows[client]
    own, labels = pixels.images(world.dataset.inputs[rows]), world.dataset.targets[rows]
    auxiliary = Auxiliary(public=world.public, truth={"images": own, "labels": labels})
    found: dict[str, Any] = {}
    sheets = {}
    inverter.generator = torch_stream(0, "attacker", count)  # the same after an interruption
    for method in METHODS:
        attacked = torch.arange(plan.shown[method])
        chance = torch_stream(0, "nulls", count)
        targets = torch.cat([message.prototypes[attacked], public_prototypes(message, world.public, attacked, chance)])
        before = inverter.seconds[method]
        images = inverter.drawing(method, message, targets)
        seconds = inverter.seconds[method] - before
        nulls = image_nulls(pixels.images(world.public.inputs), world.public.targets, attacked, chance)
        nulls[OTHERS] = images[len(attacked) :]
        guess = PrototypeGuess(images[: len(attacked)], attacked, nulls)
        result = PrototypeInversion(client=client, method=method).judge(guess, auxiliary, seconds)
        found[method] = {name: result.to_json()[name] for name in ("metrics", "nulls", "advantage")}
        found[method] |= {"seconds_per_image": seconds / len(images), "images": len(attacked)}
        rival = psnr(nulls[OTHERS], nearest_of_class(nulls[OTHERS], attacked, own, labels))
        found[method]["gain_over_others"] = mean_of(result.per_image["psnr"] - rival).to_json()
        if count == 1:
            others = pixels.images(world.dataset.test_inputs)
            everything = torch.cat([own, others])
            owners = torch.cat([(labels == label).nonzero().flatten() for label in attacked.tolist()])
            found[method]["identified"] = {
                "pixels": identifiability(guess.images, owners, everything),
                "of": len(everything),
            }
        shown = {"image": guess.images, "truth": result.truth, **nulls}
        sheets |= {f"{method}/{name}": value.numpy() for name, value in shown.items()}
    return found, sheets


def tracing(world: Federation, transcript: pf.Transcript, count: int) -> dict[str, Any]:
    """The tracing attack on all clients with ``count`` images of a class; their scores are judged together."""
    others = Records(world.dataset.test_inputs, world.dataset.test_targets)
    guesses: list[TracingGuess] = []
    inside = []
    began = time.process_time()
    for client in world.victims[count]:
        rows = world.rows[client]
        candidates = Records(
            torch.cat([world.dataset.inputs[rows], others.inputs]),
            torch.cat([world.dataset.targets[rows], others.targets]),
        )
        guesses.append(trace_message(message_of(transcript, client), world.public, candidates))
        inside.append(torch.arange(len(candidates)) < len(rows))
    result = membership_result(
        "prototype-tracing",
        torch.cat([guess.scores for guess in guesses]).numpy(),
        torch.cat(inside).numpy(),
        null_scores={"public prototype": torch.cat([guess.null for guess in guesses]).numpy()},
        labels=torch.cat([guess.labels for guess in guesses]).numpy(),
        seconds=time.process_time() - began,
    )
    expected = [value for guess in guesses for value in guess.expected.values()]
    dimensions = [value for guess in guesses for value in guess.dimensions.values()]
    return {
        **result.to_json(),
        "gaussian_auc": float(np.mean(expected)),
        "effective_dimension": float(np.mean(dimensions)),
        "clients": len(guesses),
    }


def sanity(world: Federation, inverter: Inverter) -> dict[str, float]:
    """PSNR on single features of test images under the broadcast extractor: the decoders against the mean image."""
    inputs = world.dataset.test_inputs[:500]
    images, features = inverter.pixels.images(inputs), inverter.broadcast.features(inputs)
    shown = {"upcnn": decoded(inverter.upcnn, features), "vae": decoded(inverter.vae, features)}
    shown["mean image"] = inverter.images.mean(0).expand_as(images)
    return {name: float(psnr(found, images).mean()) for name, found in shown.items()}


def study(plan: Plan, out: Path) -> dict[str, Any]:
    """All results of one dataset; what is in ``results.json`` already is not done again."""
    store = out / "results.json"
    everything: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    fresh = {"plan": asdict(plan), "tracing": {}, "inversion": {}, "processor_seconds": 0.0}
    row = everything.setdefault(plan.dataset, fresh)
    missing = {part: [n for n in plan.holders if str(n) not in row[part]] for part in ("tracing", "inversion")}
    if not any(missing.values()):
        return everything
    began, before = time.process_time(), row["processor_seconds"]

    def keep() -> None:
        row["processor_seconds"] = before + time.process_time() - began
        store.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")

    world = federation(plan)
    transcript, row["accuracy"] = recorded(plan, world, out)
    for count in missing["tracing"]:
        found = row["tracing"][str(count)] = tracing(world, transcript, count)
        auc, theory = found["metrics"]["auc"]["value"], found["gaussian_auc"]
        print(f"{plan.dataset} n = {count}: tracing AUC {auc:.3f}, Gaussian theory {theory:.3f}", flush=True)
        keep()
    if missing["inversion"]:
        inverter = Inverter(plan, transcript, world.public)
        row["sanity"], row["preparation_seconds"] = sanity(world, inverter), dict(inverter.seconds)
    for count in missing["inversion"]:
        row["inversion"][str(count)], images = reconstructions(plan, world, transcript, count, inverter)
        for method, found in row["inversion"][str(count)].items():
            own, other = found["metrics"]["psnr"]["value"], found["nulls"][OTHERS]["psnr"]["value"]
            print(f"{plan.dataset} n = {count}, {method}: {own:.2f} dB, others' prototype {other:.2f} dB", flush=True)
        np.savez_compressed(out / f"images-{plan.dataset}-{count}.npz", **images)
        keep()
    return everything


def main() -> None:
    """Run what is missing, write ``results.json`` and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, figures and runs")
    parser.add_argument("--dataset", choices=[plan.dataset for plan in FULL], help="this one alone")
    parser.add_argument("--small", action="store_true", help="digits, few images: under a minute")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    plans = (SMALL,) if options.small else tuple(p for p in FULL if options.dataset in (None, p.dataset))
    results: dict[str, Any] = {}
    for plan in plans:
        results = study(plan, options.out)
        draw_sheet(plan.dataset, list(plan.holders), options.out)
    draw_curves(results, options.out)


if __name__ == "__main__":
    main()
