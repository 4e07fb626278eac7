"""FedEvg on small MNIST beside FedCVAE and FedCGAN: synthetic digits that clients refine, or that a generator draws.

    PRIVFL_DATA=… python examples/papers/fedevg.py --out results/fedevg
    python examples/papers/fedevg.py --out results/small --small       # 8 x 8 digits, under a minute
    PRIVFL_DATA=… python examples/papers/fedevg.py --full --plan     # the paper's tables: docs/results/full.md
    … --out results/choice --held-out --run 1.0:fedcvae --fedcvae-rate 1e-2    # to choose settings without test data

Ten clients with Dirichlet labels (α = 0.01: hardly more than one class each; α = 1.0) hold ``--images`` images of
14 x 14. The server keeps 100 synthetic ones: FedEvg's, with three ways to weigh the clients, or those that the averaged
generator of FedCVAE or FedCGAN draws. Reported are the accuracy of a classifier that the server trains on them,
FID and KID in the features of a CNN trained on other images of the training set, the part of saturated pixels, and how
near the images are to those that clients hold and to as many that nobody holds, next to three references: 100 real
images, the noise that all began with, and FedAvg on the same clients. Every finished run is written to ``results.json``
at once, and an interrupted one goes on where it stopped: call the command again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import full
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from synthetic import (
    Features,
    SyntheticImageLog,
    SyntheticSet,
    classifier_scores,
    contact_sheet,
    evolution,
    trained_features,
)
from torch import Tensor

import privfl as pf
from privfl.data.catalog import load_dataset
from privfl.metrics.generative import frechet_distance, kernel_distance, nearest_distances
from privfl.study.chart import few, style

MNIST_MEAN, MNIST_SPREAD = 0.1307, 0.3081
GENERATORS = ("fedcvae", "fedcgan")
Method = pf.FedEvg | pf.FedCVAE | pf.FedCGAN
RUNS = tuple(
    f"{alpha}:{way}" for way in ("signed", "exact", "size", "signed-fresh", *GENERATORS) for alpha in ("1.0", "0.01")
)
"""Dirichlet's α, and FedEvg's weights of the clients or another method; ``-fresh`` begins every round with fresh
parameters, as the code does."""
WAYS = ("signed", "exact", "size", "signed-fresh", "fedcvae", "fedcgan")
"""In the order of the colours, markers and dashes of a figure."""
THESIS: dict[str, Any] = {"architecture": "convolutional", "latent": 128, "hidden": 64}
"""The networks of FedCVAE and FedCGAN in the thesis, an AC-GAN the latter."""
LOCAL_TESTS = pf.LocalTests(0.2, global_test="union")
"""The thesis's test: a fifth of every client's images, whose accuracies count by their number."""
HELD_OUT = 2000
"""Training images to choose settings with."""
MORE = 10
"""A generator draws so many times the server's set, to see what the number of images costs."""


@dataclass(frozen=True)
class Pictures:
    """Images in [0, 1]: those that clients hold, others of the training set, and the test set."""

    held: tuple[Tensor, Tensor]
    others: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def task(self, alpha: float, options: argparse.Namespace) -> pf.Task:
        """The held images dealt to the clients."""
        dataset = pf.Dataset.from_arrays(*self.held, test=self.test)
        partition = pf.Dirichlet(clients=options.clients, alpha=alpha)
        task = pf.Task.from_dataset(
            dataset,
            partition=partition,
            model="energy-cnn",
            model_options={"width": options.width},
            seed=options.seed,
        )
        return task.with_local_tests(LOCAL_TESTS, options.seed) if options.local_tests else task


@dataclass(frozen=True)
class Distances:
    """FID and KID to the test images, whose ``features`` are ``real`` [m, d]."""

    features: Features
    real: Tensor

    def __call__(self, images: Tensor) -> dict[str, float]:
        """Of synthetic ``images`` [n, ...]."""
        found = self.features(images)
        return {"fid": frechet_distance(self.real, found), "kid": kernel_distance(self.real, found)}


def pictures(options: argparse.Namespace) -> Pictures:
    """MNIST averaged down to 14 x 14, or scikit-learn's digits; in the order of a permutation that the seed decides."""
    data = load_dataset("digits" if options.small else "mnist")
    assert isinstance(data.inputs, Tensor)

    def pixels(images: Tensor) -> Tensor:
        if options.small:
            return (images + 1) / 2
        return F.avg_pool2d((images * MNIST_SPREAD + MNIST_MEAN).clamp(0, 1), 2)

    order = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(options.seed))
    ends = [options.images, options.images + options.others, options.images + options.others + HELD_OUT]
    parts = (order[low:high] for low, high in pairwise([0, *ends]))
    held, others, rest = ((pixels(data.inputs[rows]), data.targets[rows]) for rows in parts)
    return Pictures(held, others, rest if options.held_out else (pixels(data.test_inputs), data.test_targets))


def method(way: str, options: argparse.Namespace) -> tuple[Method, pf.LocalTraining]:
    """The algorithm, and how its clients train: with Adam throughout."""
    size = {"samples_per_class": options.samples_per_class, "classifier_epochs": 1}  # the sets are scored afterwards
    training = pf.LocalTraining(learning_rate=1e-3, batch_size=64, epochs=options.epochs, weight_decay=1e-4)
    plain = replace(training, weight_decay=0.0)
    networks = THESIS if options.convolutional else {}
    if way == "fedcvae":
        return pf.FedCVAE(**size, **networks), replace(plain, learning_rate=options.fedcvae_rate)
    if way == "fedcgan":
        made = pf.FedCGAN(**size, **networks)
        return made, replace(plain, learning_rate=options.fedcgan_rate, batch_size=options.fedcgan_batch)
    evg = pf.FedEvg(
        weighting=way.removesuffix("-fresh"),  # type: ignore[arg-type]
        reinitialise=way.endswith("-fresh"),
        step_size=options.step_size,
        last_step_size=options.step_size / 10,
        schedule="cosine",
        clip=1.0,
        **size,
    )
    return evg, training


def one_run(name: str, images: Pictures, distances: Distances, options: argparse.Namespace) -> dict[str, Any]:
    """Train and measure one setting."""
    alpha, way = name.split(":")
    algorithm, training = method(way, options)
    folder = options.out / "runs" / name.replace(":", "-")
    gallery = SyntheticImageLog(every=max(1, options.rounds // 10), folder=folder / "images")
    task = images.task(float(alpha), options)
    began, processor = time.perf_counter(), time.process_time()
    run = pf.simulate(
        task,
        algorithm,
        rounds=options.rounds,
        cohort=pf.FixedCohort(options.cohort) if options.cohort else None,
        training=training,
        seed=options.seed,
        evaluate_every=options.rounds,
        execution=pf.Execution(engine="loop" if way in GENERATORS else "vectorised", workers=1),
        callbacks=[gallery],
        out=folder / "run",
        resume=(folder / "run").exists(),
    )
    gallery.last.save(options.out / f"synthetic-{name.replace(':', '-')}.npz")
    curve: dict[str, Any] = {
        key: [line[key] for line in run.metrics] for key in ("saturated_pixels", "pull_norm") if key in run.metrics[0]
    }
    return {
        "name": name,
        "accuracy": [(done, accuracy(task, run, one, options)) for done, one in gallery.sets.items()],
        **curve,
        **measured(task, gallery.last, distances, options),
        **more(task, run, options),
        "nearest_held": float(nearest_distances(gallery.last.images, images.held[0]).mean()),
        "nearest_others": float(
            nearest_distances(gallery.last.images, images.others[0][-len(images.held[0]) :]).mean()
        ),
        "distances": [(done, distances(one.images)) for done, one in gallery.sets.items()],
        "label_counts": [torch.bincount(task.targets[rows], minlength=10).tolist() for rows in clients_of(task)],
        "epsilon": str(run.statement.cell("sample", "server").epsilon),
        "warnings": run.summary["warnings"],
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
    }


def more(task: pf.Task, run: pf.Run, options: argparse.Namespace) -> dict[str, float]:
    """What ``MORE`` times as many images of a generator teach; nothing for FedEvg, which has no others."""
    if not isinstance(run.algorithm, pf.FedCVAE | pf.FedCGAN):
        return {}
    labels = run.server["labels"].repeat_interleave(MORE)
    found = SyntheticSet(run.algorithm.synthesise(run.server, labels, options.seed), labels)
    scores = classifier_scores(task, found, epochs=options.classifier_epochs, seed=options.seed)
    return {"accuracy_of_more": scores["test_accuracy"]}


def clients_of(task: pf.Task) -> list[Tensor]:
    """The rows of every client."""
    return [task.clients[client] for client in range(len(task.clients))]


def accuracy(task: pf.Task, run: pf.Run, found: SyntheticSet, options: argparse.Namespace) -> float:
    """That of the classifier that the run's own server would train on ``found``, if it took its time for it."""
    assert isinstance(run.algorithm, Method)
    server = replace(run.algorithm, classifier_epochs=options.classifier_epochs).bind(run.algorithm.context)
    network = server.context.network()
    parameters = server.eval_parameters({"images": found.images, "labels": found.labels})
    torch.nn.utils.vector_to_parameters(parameters, network.parameters())
    with torch.no_grad():
        return float((network(task.test_inputs).argmax(1) == task.test_targets).double().mean())


def measured(task: pf.Task, found: SyntheticSet, distances: Distances, options: argparse.Namespace) -> dict[str, float]:
    """What a set is good for: classifier, FID and KID against all test images."""
    scores = classifier_scores(task, found, epochs=options.classifier_epochs, seed=options.seed)
    return {**scores, **distances(found.images)}


def references(images: Pictures, distances: Distances, options: argparse.Namespace) -> dict[str, Any]:
    """As many real images, the noise that every run began with, and FedAvg's model on the same clients."""
    task = images.task(1.0, options)
    rows = [torch.where(images.others[1] == label)[0][: options.samples_per_class] for label in range(10)]
    chosen = torch.cat(rows)
    real = SyntheticSet(images.others[0][chosen], images.others[1][chosen])
    start = pf.FedEvg(samples_per_class=options.samples_per_class).bind(task.context(1, options.seed))
    server = start.start(torch.zeros(1))
    noise = SyntheticSet(server["images"].clamp(0, 1), server["labels"])
    found: dict[str, Any] = {
        "real images": measured(task, real, distances, options),
        "noise": measured(task, noise, distances, options),
    }
    for alpha in sorted({name.split(":")[0] for name in options.run}):
        run = pf.simulate(
            images.task(float(alpha), options),
            pf.FedAvg(),
            rounds=options.reference_rounds,
            training=pf.LocalTraining(learning_rate=0.1, batch_size=64, epochs=options.epochs),
            seed=options.seed,
            evaluate_every=options.reference_rounds,
            execution=pf.Execution(engine="vectorised", workers=1),
        )
        found[f"FedAvg {alpha}"] = {"test_accuracy": run.summary["test_accuracy"], "rounds": options.reference_rounds}
    return found


def curves(rows: list[dict[str, Any]], references: dict[str, Any]) -> Figure:
    """Accuracy, FID and saturated pixels over rounds, one column for each α."""
    alphas = sorted({row["name"].split(":")[0] for row in rows}, key=float, reverse=True)
    figure = Figure(figsize=(4.6 * len(alphas), 7.2), layout="constrained")
    grid = figure.subplots(3, len(alphas), squeeze=False, sharey="row")
    for column, alpha in enumerate(alphas):
        top, middle, bottom = grid[:, column]
        for row in rows:
            own, way = row["name"].split(":")
            if own != alpha:
                continue
            look = style(WAYS.index(way)) | {"label": way, "linewidth": 1.5, "markersize": 4.5}
            top.plot(*zip(*row["accuracy"], strict=True), **look)
            middle.plot([done for done, _ in row["distances"]], [found["fid"] for _, found in row["distances"]], **look)
            if "saturated_pixels" in row:
                pixels = row["saturated_pixels"]
                bottom.plot(range(1, len(pixels) + 1), pixels, markevery=few(len(pixels)), **look)
        for name, dash in (("real images", "--"), ("noise", ":")):
            top.axhline(references[name]["test_accuracy"], color="0.4", linestyle=dash, linewidth=1, label=name)
            middle.axhline(references[name]["fid"], color="0.4", linestyle=dash, linewidth=1)
        top.set_title(f"Dirichlet α = {alpha}", fontsize=10)
        top.set_ylim(0, 1)
        middle.set_yscale("log")
        bottom.set_ylim(0, 1)
        bottom.set_xlabel("rounds")
    for axes, label in zip(grid[:, 0], ("accuracy of the server's classifier", "FID", "saturated pixels"), strict=True):
        axes.set_ylabel(label)
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw(store: dict[str, Any], out: Path) -> None:
    """Figures of what has been measured."""
    rows = store["rows"]
    curves(rows, store["references"]).savefig(out / "curves.png", dpi=130)
    for row in rows:
        name = row["name"].replace(":", "-")
        gallery = SyntheticImageLog(folder=out / "runs" / name / "images")
        evolution(gallery.sets, f"one synthetic image of each class, α = {row['name'].replace(':', ', ')}").savefig(
            out / f"evolution-{name}.png", dpi=110
        )
        sheet = contact_sheet(gallery.last, f"synthetic images, α = {row['name'].replace(':', ', ')}")
        sheet.savefig(out / f"sheet-{name}.png", dpi=90)


def parser(description: str | None = __doc__) -> argparse.ArgumentParser:
    """What reads the command line of this study, or of another one that is made of its runs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, figures and synthetic sets")
    parser.add_argument("--small", action="store_true", help="8 x 8 digits and three rounds")
    parser.add_argument(
        "--full", action="store_true", default=argparse.SUPPRESS, help="the paper's tables: --full --help"
    )
    parser.add_argument("--run", action="append", help=f"α:way, of {', '.join(RUNS)}; may be repeated")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--images", type=int, default=2000, help="images that clients hold")
    parser.add_argument("--others", type=int, default=6000, help="other training images, for the features")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--cohort", type=int, help="clients of a round, drawn anew in each; everybody otherwise")
    parser.add_argument("--local-tests", action="store_true", help="score on a fifth of every client's images")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--samples-per-class", type=int, default=10)
    parser.add_argument("--step-size", type=float, default=1.0)
    parser.add_argument("--fedcvae-rate", type=float, default=1e-2, help="learning rate of FedCVAE's clients")
    parser.add_argument("--fedcgan-rate", type=float, default=1e-3, help="learning rate of FedCGAN's clients")
    parser.add_argument("--fedcgan-batch", type=int, default=16, help="batch size of FedCGAN's clients")
    parser.add_argument("--convolutional", action="store_true", help="the thesis's networks for FedCVAE and FedCGAN")
    parser.add_argument("--held-out", action="store_true", help="score on other training images, not on the test set")
    parser.add_argument("--classifier-epochs", type=int, default=150)
    parser.add_argument("--reference-rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def settled(options: argparse.Namespace) -> argparse.Namespace:
    """``options`` with what ``--small`` makes of them."""
    options.side = 14
    if options.small:
        options.side, options.images, options.others, options.rounds = 8, 300, 600, 3
        options.width, options.samples_per_class, options.classifier_epochs, options.reference_rounds = 4, 2, 20, 2
        options.run = options.run or ["1.0:signed", "0.01:exact", "1.0:fedcvae", "0.01:fedcgan"]
    options.run = options.run or list(RUNS)
    return options


def parsed() -> argparse.Namespace:
    """The command line."""
    return settled(parser().parse_args())


def main() -> None:
    """Run what is missing in ``results.json``, then draw."""
    if full.asked():
        full.run("fedevg")
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    store: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"settings": settings, "rows": []}
    )
    missing = [name for name in options.run if all(row["name"] != name for row in store["rows"])]
    if missing:
        images = pictures(options)
        source = (
            f"{len(images.others[1])} {'digits' if options.small else 'MNIST training images'} that no client holds"
        )
        features = trained_features(*images.others, 10, source=source, seed=options.seed)
        distances = Distances(features, features(images.test[0]))
        store["features"] = features.name
        if "references" not in store:
            store["references"] = references(images, distances, options)
            path.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
    for name in missing:
        store["rows"].append(one_run(name, images, distances, options))
        path.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
        row = store["rows"][-1]
        print(f"{name}: accuracy {row['test_accuracy']:.3f}  FID {row['fid']:.2f}  KID {row['kid']:.3f}", flush=True)
    draw(store, options.out)


if __name__ == "__main__":
    main()
