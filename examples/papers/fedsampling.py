"""The figures of FedSampling (Qi et al., IJCAI 2023) on data that can be had: Fashion-MNIST and Shakespeare's roles.

    PRIVFL_DATA=… python examples/papers/fedsampling.py --out results/fedsampling [--only fig3|fig4|fig5|fig6] [--small]
    PRIVFL_DATA=… python examples/papers/fedsampling.py --full --plan     # the paper's tables: docs/results/full.md

Every method takes one gradient step a round with the same model and learning rate, on about K samples; only the choice
of the samples differs. Figure 3: weighted and naive baselines; 4: imbalance σ of the sizes; 5: class-sorted clients;
6: error of the size estimate and test accuracy over (ε, M) for five size mechanisms. Finished runs in
``fedsampling.json`` are kept, so an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import full
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from torch import nn

import privfl as pf
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import SIZE_RESPONSE
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.privacy.sizes.mechanism import SizeMechanism
from privfl.study.chart import COLOURS, DASHES, MARKERS
from privfl.study.plots import curves

SIGMAS = (0.0, 1.0, 2.0, 3.0)
RATIOS = (1 / 8, 1 / 4, 1 / 2, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0, 64.0)
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.605, 8.0)
SETTLED = 5
"""Evaluations at the end of a run over which figures average: constant steps of this length leave accuracy swinging."""
SURFACE = "2,000 Amazon users"
BOUNDS = {
    SURFACE: (10, 30, 100, 300, 600),
    "19,412 Amazon users": (10, 30, 100, 300, 600),
    "Shakespeare roles": (100, 300, 1000, 3000),
    "log-normal, σ = 2": (300, 1000, 3000, 10_000, 30_000),
}
THREE = ("log-normal, σ = 2", "1,000 Amazon users", "Shakespeare roles")
BASELINES = ("centralised", "FedSampling", "FedSampling, naive", "FedAvg, uniform")
WEIGHTED = ("FedAvg, weighted sampling", "FedAvg, size weights", "FedAvg, scheme II")
PRIVATE = "FedSampling, Laplace sizes"
DIRECT = {
    "grr, ε = 3": pf.RandomizedResponse(3.0, 100),
    "grr, ε = 3, fresh": pf.RandomizedResponse(3.0, 100, refresh="every_round"),
}
"""Mechanisms that figure 6 also runs in full: what is predicted from N̂/N is checked against them."""


@dataclass(frozen=True)
class Federation:
    """Who holds what, and how it is trained: about ``samples`` = K a round, ``rounds`` steps of ``learning_rate``."""

    dataset: str
    partition: pf.LogNormal | pf.LabelSorted | pf.GivenSizes | None
    model: str | Callable[[], nn.Module]
    samples: int
    rounds: int
    learning_rate: float
    size: SizeMechanism | None = None

    def task(self, seed: int) -> pf.Task:
        """The task of one seed, which also draws the partition."""
        return task_of(self, seed)


@lru_cache(maxsize=2)
def task_of(federation: Federation, seed: int) -> pf.Task:
    """One federation's data, kept while method after method trains on it."""
    return pf.Task.from_dataset(
        dataset(federation.dataset), partition=federation.partition, model=federation.model, seed=seed
    )


@cache
def dataset(name: str) -> pf.Dataset:
    """A dataset of the catalog; Shakespeare as ten characters and the one that follows."""
    options = {"length": 10, "stride": 20, "min_characters": 2000} if name == "shakespeare" else {}
    return pf.load_dataset(name, **options)


def next_character() -> nn.Module:
    """A character model on ten characters of context: embedding, one hidden layer (Bengio et al., JMLR 2003)."""
    return nn.Sequential(nn.Embedding(97, 16), nn.Flatten(), nn.Linear(160, 128), nn.ReLU(), nn.Linear(128, 97))


def federations(small: bool) -> dict[str, Federation]:
    """All federations by name; ``small`` ones have the same names and a few clients and rounds."""
    clients, share, cut = (10, 50, 2) if small else (100, 1, 10**6)
    dense = Federation("fashion-mnist", None, "two-nn", 2048, min(150, cut), 0.2)
    size = pf.LaplaceSize(epsilon=3.0, bound=3000)
    found = {
        f"log-normal, σ = {sigma:g}": replace(dense, partition=pf.LogNormal(sigma=sigma, clients=clients), size=size)
        for sigma in SIGMAS
    }
    found["class-sorted"] = replace(dense, partition=pf.LabelSorted(clients=clients), size=size)
    for users in (1000, 2000):
        sizes = pf.GivenSizes(dataset="amazon-toys", clients=users // share)
        found[f"{users:,} Amazon users"] = Federation(
            "fashion-mnist", sizes, "logistic", 512 // share, min(100, cut), 0.05
        )
    found["Shakespeare roles"] = Federation("shakespeare", None, next_character, 2048, min(120, cut), 1.0)
    return found


def arguments(method: str, federation: Federation, task: pf.Task) -> tuple[pf.Task, Any, dict[str, Any]]:
    """(task, algorithm, arguments of ``simulate``) of a method.

    A client of FedAvg takes one step on a random batch of at most K of its samples; m clients hold K on average.
    """
    rate = min(1.0, federation.samples / len(task.clients.rows))
    cohort = max(1, round(rate * len(task.clients)))
    training = pf.LocalTraining(learning_rate=federation.learning_rate, batch_size=federation.samples, steps=1)
    given: dict[str, Any] = {"training": training, "cohort": pf.FixedCohort(cohort)}
    everyone = given | {"cohort": None}
    if method.startswith("N̂/N = "):
        # p = K/N̂ and the division by K are those of K/r samples of the exact N at η/r: N̂ enters nowhere else.
        # What the sum is does not depend on who holds the samples either, so one client may hold them all.
        ratio = float(method.removeprefix("N̂/N = "))
        wanted = max(1, round(federation.samples / ratio))
        slower = federation.learning_rate * wanted / federation.samples
        return task.pooled(), pf.FedSampling(wanted), everyone | {"training": replace(training, learning_rate=slower)}
    size = DIRECT.get(method, federation.size if method == PRIVATE else None)
    privacy = pf.Privacy(size=size, max_size_error=math.inf)
    weighted = given | {"cohort": pf.SizeWeightedCohort(cohort)}
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        "centralised": (pf.Centralized(), everyone),
        "FedSampling": (pf.FedSampling(federation.samples), everyone),
        "FedSampling, naive": (pf.NaiveFedSampling(rate), everyone),
        "FedAvg, uniform": (pf.FedAvg(weighting="uniform"), given),
        "FedAvg, weighted sampling": (pf.FedAvg(weighting="uniform"), weighted),
        "FedAvg, size weights": (pf.FedAvg(weighting="size"), given),
        "FedAvg, scheme II": (pf.FedAvg(weighting="scheme-2"), given),
    }
    if size is not None:
        return task, pf.FedSampling(federation.samples), everyone | {"privacy": privacy}
    return task, *found[method]


def plan(figure: str) -> list[tuple[str, str]]:
    """(federation, method) of every run that a figure needs."""
    if figure == "fig3":
        return [(name, method) for name in THREE for method in BASELINES + WEIGHTED]
    if figure == "fig4":
        methods = ("FedSampling", PRIVATE, "FedAvg, uniform", "FedAvg, weighted sampling")
        runs = [(f"log-normal, σ = {sigma:g}", method) for sigma in SIGMAS for method in methods]
        return [*runs, (THREE[0], "centralised")]  # which does not depend on σ
    if figure == "fig5":
        return [("class-sorted", method) for method in (*BASELINES, PRIVATE)]
    return [(SURFACE, f"N̂/N = {ratio!r}") for ratio in RATIOS] + [(SURFACE, method) for method in DIRECT]


def train(federation: Federation, method: str, seed: int) -> dict[str, Any]:
    """One run: its final metrics, its curve and what it cost."""
    began = time.process_time()
    task, algorithm, given = arguments(method, federation, federation.task(seed))
    privacy = replace(given.get("privacy", pf.Privacy()), noise_key=seed)
    run = pf.simulate(
        task,
        algorithm,
        **given | {"privacy": privacy},
        rounds=federation.rounds,
        seed=seed,
        evaluate_every=5,
        execution=pf.Execution(engine="loop", workers=1),
    )
    evaluated = [line for line in run.metrics if "test_accuracy" in line]
    return {
        "accuracy": evaluated[-1]["test_accuracy"],
        "settled": float(np.mean([line["test_accuracy"] for line in evaluated[-SETTLED:]])),
        "macro_f1": evaluated[-1]["test_macro_f1"],
        "curve": [(line["round"] + 1, line["test_accuracy"]) for line in evaluated],
        "clients": len(task.clients),
        "samples": len(task.clients.rows),
        "largest_client": int(task.clients.sizes.max()),
        "rates": sorted({line["sampling_rate"] for line in run.metrics if "sampling_rate" in line}),
        "claim": run.statement.cell("sample", "public").epsilon < math.inf,
        "seconds": round(time.process_time() - began, 1),
    }


def response_epsilon(mechanism: SizeMechanism, answers: int, delta: float = 1e-5) -> float:
    """ε of a client against the server after ``answers`` fresh size responses and nothing else, at ``delta``."""
    ledger = Ledger(1, (SIZE_RESPONSE,))
    ledger.record(mechanism.costs(), None, answers)
    return float(make_statement(ledger, delta, reproducible_noise=False).cell("client", "server").epsilon)


def surface(sizes: np.ndarray, bounds: tuple[int, ...], draws: int) -> list[dict[str, Any]]:
    """Error of N̂ for every mechanism, ε and M, relative to N = Σ ``sizes``; ``draws`` of N̂/N besides.

    ``error`` is the root mean square of the raw, unbiased-for-clipped-sizes estimate: √(variance + clipping bias²)/N,
    both exact. ``ratios`` are draws of the estimate that is used, between its floor and its cap.
    """
    rows = []
    total = int(sizes.sum())
    for name, kind in SIZE_MECHANISMS.items():
        for epsilon in EPSILONS:
            for bound in bounds:
                mechanism = kind(epsilon, bound)
                bias = mechanism.clipping_bias(sizes) / total
                stream = NoiseSource.from_key(0).stream(name, round(1000 * epsilon), bound)
                answers = mechanism.respond(np.tile(sizes, draws), stream).reshape(draws, -1) if draws else ()
                rows.append(
                    {
                        "mechanism": name,
                        "epsilon": epsilon,
                        "bound": bound,
                        "bias": bias,
                        "error": math.hypot(math.sqrt(mechanism.variance(sizes)) / total, bias),
                        "ratios": [round(mechanism.estimate(answer).value / total, 4) for answer in answers],
                    }
                )
    return rows


def predicted(ratios: list[float], rows: Mapping[str, Any]) -> float:
    """Mean accuracy over the draws of N̂/N, from runs at given N̂/N, linear in log N̂/N in between."""
    found = {
        float(method.removeprefix("N̂/N = ")): np.mean([row["settled"] for row in seeds.values()])
        for method, seeds in rows.items()
        if method.startswith("N̂/N = ")
    }
    places = sorted(found)
    return float(np.mean(np.interp(np.log(ratios), np.log(places), [found[place] for place in places])))


def estimate(stored: dict[str, Any], chosen: dict[str, Federation], draws: int) -> None:
    """The part of figure 6 that needs no training: errors over (ε, M), predicted accuracy, cost of the answers."""
    rounds = chosen[SURFACE].rounds
    for name, bounds in BOUNDS.items():
        if name == "19,412 Amazon users":
            sizes = np.bincount(dataset("amazon-toys").clients)  # type: ignore[arg-type]
        else:
            sizes = chosen[name].task(0).clients.sizes
        rows = surface(sizes, bounds, draws if name == SURFACE else 0)
        for row in rows:
            ratios = row.pop("ratios")
            if ratios:
                row["used_error"] = float(np.sqrt(np.mean((np.array(ratios) - 1) ** 2)))
                row["accuracy"] = predicted(ratios, stored["runs"][SURFACE])
        stored.setdefault("surfaces", {})[name] = rows
    stored["answers"] = [
        {"mechanism": name, "epsilon": epsilon, "bound": 100, "rounds": rounds}
        | {"memoised": response_epsilon(kind(epsilon, 100), 1), "fresh": response_epsilon(kind(epsilon, 100), rounds)}
        for name, kind in SIZE_MECHANISMS.items()
        for epsilon in (1.0, 3.0)
    ]


def _values(runs: Mapping[str, Any], method: str) -> list[float]:
    return [100 * row["settled"] for row in runs.get(method, {}).values()]


def draw_baselines(stored: Mapping[str, Any]) -> Figure:
    """Figure 3: every seed a mark, the mean a bar of its own, for three federations."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    methods = [*BASELINES, *WEIGHTED]
    for axes, name in zip(figure.subplots(1, 3, sharey=True), THREE, strict=True):
        for place, method in enumerate(methods):
            found = _values(stored["runs"][name], method)
            colour = COLOURS[0] if method == "FedSampling" else "0.35"
            axes.plot(found, [place] * len(found), "o", color=colour, alpha=0.5, markersize=5)
            axes.plot(np.mean(found), place, "|", color=colour, markersize=18, markeredgewidth=2.5)
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xlabel("test accuracy (%)")
        axes.grid(axis="x", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    return figure


def draw_imbalance(stored: Mapping[str, Any]) -> Figure:
    """Figure 4: accuracy against σ: every seed a mark, a line through the medians; diverged seeds at the lower edge."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(method for _, method in plan("fig4")))
    names = [f"log-normal, σ = {sigma:g}" for sigma in SIGMAS]
    every = {
        m: [_values(stored["runs"][THREE[0] if m == "centralised" else name], m) for name in names] for m in methods
    }
    floor = 0.75 * float(np.median([value for found in every.values() for values in found for value in values]))
    for index, (method, found) in enumerate(every.items()):
        places = np.array(SIGMAS) + 0.05 * (index - 2)
        style: dict[str, Any] = {"color": COLOURS[index], "marker": MARKERS[index]}
        axes.plot(places, [np.median(v) for v in found], label=method, linestyle=DASHES[index % 4], **style)
        for place, values in zip(places, found, strict=True):
            axes.plot([place] * len(values), np.maximum(values, floor), linestyle="", alpha=0.35, markersize=5, **style)
            for value in values:
                if value < floor:
                    axes.annotate(f"{value:.1f} %, diverged ", (place, floor), ha="right", va="center", fontsize=8)
    axes.set_xticks(SIGMAS)
    axes.set_xlabel("σ of the log-normal client sizes")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.08))
    return figure


def draw_convergence(stored: Mapping[str, Any]) -> Figure:
    """Figure 5: accuracy over rounds on class-sorted clients."""
    runs = stored["runs"]["class-sorted"]
    groups = {label: [row["curve"] for row in rows.values()] for label, rows in runs.items()}
    return curves(groups, "Fashion-MNIST sorted by class, clients of equal size")


def draw_surface(stored: Mapping[str, Any]) -> Figure:
    """Figure 6: error of the estimate in use (above) and predicted accuracy (below) over (ε, M)."""
    rows, bounds = stored["surfaces"][SURFACE], BOUNDS[SURFACE]
    figure = Figure(figsize=(14, 6), layout="constrained")
    grid = figure.subplots(2, len(SIZE_MECHANISMS), sharex=True, sharey=True)
    for line, (key, scale, title) in enumerate(
        (("used_error", 1.0, "relative error of N̂"), ("accuracy", 100.0, "accuracy (%)"))
    ):
        every = [scale * row[key] for row in rows]
        low, high = (0.01, 10.0) if line == 0 else (min(every), max(every))
        norm = LogNorm(low, high) if line == 0 else Normalize(low, high)
        for axes, name in zip(grid[line], SIZE_MECHANISMS, strict=True):
            values = np.reshape([scale * row[key] for row in rows if row["mechanism"] == name], (-1, len(bounds)))
            image = axes.imshow(values, norm=norm, cmap="viridis_r" if line == 0 else "viridis", aspect="auto")
            for (y, x), value in np.ndenumerate(values):
                dark = (norm(value) > 0.5) == (line == 0)
                text = f"{value:.2f}" if line == 0 else f"{value:.1f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=7, color="w" if dark else "k")
            axes.set_xticks(range(len(bounds)), [str(bound) for bound in bounds])
            axes.set_yticks(range(len(EPSILONS)), [f"{epsilon:g}" for epsilon in EPSILONS])
            if line == 0:
                axes.set_title(name, fontsize=11)
            else:
                axes.set_xlabel("M")
        grid[line][0].set_ylabel("ε of one answer")
        figure.colorbar(image, ax=list(grid[line]), label=title)
    return figure


FIGURES = {"fig3": draw_baselines, "fig4": draw_imbalance, "fig5": draw_convergence, "fig6": draw_surface}


def main() -> None:
    """Make the runs that are missing in ``fedsampling.json``, and draw the figures."""
    if full.asked():
        full.run("fedsampling")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for fedsampling.json and the figures")
    parser.add_argument("--only", choices=FIGURES, help="one figure")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a few clients, two rounds, one seed: does it run?")
    parser.add_argument(
        "--full", action="store_true", default=argparse.SUPPRESS, help="the paper's tables: --full --help"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "fedsampling.json"
    figures = [options.only] if options.only else list(FIGURES)
    chosen = federations(options.small)
    stored: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"settings": {}, "runs": {}}
    )

    def write() -> None:
        path.with_suffix(".part").write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        path.with_suffix(".part").replace(path)

    for name, federation in chosen.items():
        setting = {key: str(value) for key, value in vars(federation).items() if key != "model"}
        if stored["settings"].setdefault(name, setting) != setting:
            parser.error(f"{path} holds runs of other settings of '{name}'; give another folder")
    for seed in range(1 if options.small else options.seeds):
        for figure in figures:
            for name, method in plan(figure):
                done = stored["runs"].setdefault(name, {}).setdefault(method, {})
                if str(seed) in done or (method in DIRECT and seed > 0):
                    continue
                done[str(seed)] = row = train(chosen[name], method, seed)
                write()
                print(f"seed {seed}, {name}, {method}: {row['accuracy']:.4f} in {row['seconds']} s", flush=True)
    if "fig6" in figures:
        estimate(stored, chosen, 5 if options.small else 200)
        write()
    for figure in figures:
        FIGURES[figure](stored).savefig(options.out / f"fedsampling-{figure}.png", dpi=150)


if __name__ == "__main__":
    main()
