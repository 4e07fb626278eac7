"""The tables of `docs/results/papers-private-tuned.md`, from the figures of all runs and the rates that were chosen."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import cache, partial

from tables import spread, table
from verdict_intervals import ROOT, BySeed, interval

FOLDER = ROOT / "docs" / "results" / "papers-private"
NAMES = {"heart-tuned": "Heart disease", "fashion-tuned": "Fashion-MNIST"}
LEVELS = ("no privacy", "ε = 8", "ε = 3", "ε = 1")
OWN, SHARED = "personal", "local"
"""How figures of models that clients have for themselves begin, and those of the shared model on clients' own rows."""


@cache
def rows(data: str) -> list[dict[str, str]]:
    """Every finished run of one study."""
    with open(FOLDER / f"{data}.csv", newline="", encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row["state"] == "done"]


def methods(data: str) -> list[str]:
    """The methods in the study's order."""
    return list(dict.fromkeys(row["method"] for row in rows(data)))


def figure(data: str, method: str, level: str, name: str, whose: tuple[str, ...] = (OWN, SHARED)) -> BySeed:
    """One figure by seed, in points: that of the first kind of model in ``whose`` that the method has."""
    found: dict[int, float] = {}
    for row in rows(data):
        if (row["method"], row["level"]) == (method, level):
            value = next((row[f"{kind}_{name}"] for kind in whose if row[f"{kind}_{name}"]), None)
            if value is not None:
                found[int(row["seed"])] = 100 * float(value)
    return found


def rate(data: str, method: str, level: str) -> str:
    """The learning rate that validation rows chose."""
    chosen: dict[str, dict[str, float]] = json.loads((FOLDER / "rates.json").read_text(encoding="utf-8"))[data]
    return f"{chosen[method][level]:g}"


def levels(data: str, name: str) -> str:
    """Means and standard deviations, with the chosen rates."""
    found = []
    for method in methods(data):
        cells = []
        for level in LEVELS:
            values = spread(figure(data, method, level, name), 1)
            cells.append(f"{values} ({rate(data, method, level)})" if name == "accuracy" else values)
        found.append([method, *cells])
    return table([NAMES[data], *LEVELS], found)


def differences(data: str, name: str) -> str:
    """Each method less FedAvg at the same budget."""
    found = []
    for method in methods(data)[1:]:
        pairs = [[figure(data, one, level, name) for one in (method, "FedAvg")] for level in LEVELS]
        found.append([method, *(interval(*pair) for pair in pairs)])
    return table([f"{NAMES[data]}, − FedAvg", *LEVELS], found)


def costs(data: str) -> str:
    """What ε = 8 and ε = 1 take from each method."""
    found = []
    for method in methods(data):
        without = figure(data, method, LEVELS[0], "accuracy")
        found.append([method, *(interval(figure(data, method, level, "accuracy"), without) for level in LEVELS[1:])])
    return table([f"{NAMES[data]}, − without privacy", *LEVELS[1:]], found)


def own_models(data: str) -> str:
    """Models of their own less the shared one, for methods that have both."""
    found = []
    for method in methods(data):
        if not figure(data, method, LEVELS[0], "accuracy", (OWN,)):
            continue
        pairs = [[figure(data, method, level, "accuracy", (kind,)) for kind in (OWN, SHARED)] for level in LEVELS]
        found.append([method, *(interval(*pair) for pair in pairs)])
    return table([f"{NAMES[data]}, own − shared model", *LEVELS], found)


def both(make: Callable[[str], str]) -> str:
    """The tables of both studies, one after the other."""
    return "\n\n".join(make(data) for data in NAMES)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "papers-private-tuned": {
        "accuracy": partial(both, partial(levels, name="accuracy")),
        "differences": partial(both, partial(differences, name="accuracy")),
        "costs": partial(both, costs),
        "worst tenth": partial(both, partial(levels, name="worst_tenth")),
        "worst differences": partial(both, partial(differences, name="worst_tenth")),
        "own models": partial(both, own_models),
    }
}
