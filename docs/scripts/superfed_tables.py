"""The tables of SuPerFed's pages, from the raw results; `write_pairs.py` puts them there."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product

from tables import spread, table
from verdict_intervals import BySeed, interval, of_cifar10, raw


def of_barrier(method: str, statistic: Callable[[list[float]], float] = statistics.mean) -> BySeed:
    """Barrier in nats by seed, over the clients."""
    rows = raw("superfed-barrier")["rows"]
    return {row["seed"]: statistic(row["barriers"]) for row in rows if row["method"] == method and "barriers" in row}


def barriers() -> str:
    """Loss barriers between SuperFed's end points and between models that were trained apart."""
    names = {
        "SuPerFed-MM": "SuPerFed-MM: federated and personal model",
        "Local, another initial model": "FedAvg's model and one trained alone, other initial weights",
        "Local": "FedAvg's model and one trained alone, same initial weights",
    }
    rows = [
        [name, spread(of_barrier(method), 4), f"{max(of_barrier(method, max).values()):.3f}"]
        for method, name in names.items()
        if of_barrier(method)
    ]
    return table(["two models", "mean barrier (nats)", "largest of a client"], rows)


def widths() -> str:
    """Rise of the loss around every kind of model."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in raw("superfed-barrier")["rows"]:
        for label, values in row["widths"].items():
            name = f"{row['method']}, {label}"
            for figure, value in values.items():
                found.setdefault(name, {}).setdefault(figure, {})[row["seed"]] = value
    figures = list(next(iter(found.values())))
    head = ["model", "loss", *(f"rise at r = {figure}" for figure in figures[1:])]
    return table(head, [[name, *(spread(cells[figure], 3) for figure in figures)] for name, cells in found.items()])


NOISY_PAPER = {
    "FedAvg": ("82.40", "41.01", "66.94", "49.52"),
    "FedProx": ("82.05", "41.39", "67.15", "49.98"),
    "SCAFFOLD": ("60.86", "44.92", "70.51", "51.46"),
    "LG-FedAvg": ("73.65", "37.69", "61.54", "47.79"),
    "FedPer": ("82.43", "40.75", "68.44", "52.41"),
    "APFL": ("80.18", "40.43", "67.83", "52.15"),
    "pFedMe": ("72.05", "37.89", "59.80", "45.79"),
    "Ditto": ("72.39", "38.20", "60.62", "45.11"),
    "FedRep": ("77.95", "35.88", "66.58", "51.30"),
    "SuPerFed-MM, λ best on the test": ("83.67", "46.41", "71.99", "56.07"),
    "SuPerFed-LM, λ best on the test": ("84.78", "46.82", "69.23", "54.69"),
}
"""Accuracies of Table 2.6 of the thesis."""
NOISY_ECE = {
    "FedAvg": ("17", "38", "29", "42"),
    "FedProx": ("17", "38", "29", "42"),
    "SCAFFOLD": ("16", "45", "29", "44"),
    "LG-FedAvg": ("23", "50", "34", "45"),
    "FedPer": ("17", "40", "28", "40"),
    "APFL": ("18", "42", "28", "40"),
    "pFedMe": ("23", "46", "33", "44"),
    "Ditto": ("22", "42", "31", "41"),
    "FedRep": ("20", "53", "30", "43"),
    "SuPerFed-MM, λ best on the test": ("16", "28", "27", "30"),
    "SuPerFed-LM, λ best on the test": ("14", "35", "27", "32"),
}
"""Expected calibration errors there, in per cent."""
NOISES = ("pair 0.1", "pair 0.4", "symmetric 0.2", "symmetric 0.6")


def of_noisy(measure: str) -> dict[str, dict[str, dict[int, float]]]:
    """``measure`` by method and label, by noise, by seed."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in raw("superfed-noise")["rows"]:
        for label, values in row["scores"].items():
            name = f"{row['method']}, {label}" if label else row["method"]
            found.setdefault(name, {}).setdefault(row["noise"], {})[row["seed"]] = values[measure]
    return found


def noisy(measure: str, paper: dict[str, tuple[str, ...]]) -> str:
    """Every method under every noise: the paper's number, and ours over the seeds that it has."""
    rows = []
    for name, cells in of_noisy(measure).items():
        texts = []
        for which, noise in enumerate(NOISES):
            texts.append(f"{paper[name][which] if name in paper else '–'} / {spread(cells[noise], 1)}")
        rows.append([name, *texts, str(len(cells[NOISES[0]]))])
    return table(["paper / here", *NOISES, "seeds"], rows)


def noisy_differences() -> str:
    """SuPerFed's two modes beside the most accurate and the best calibrated rivals, and beside training alone."""
    rows = []
    for mode, choice in product(("MM", "LM"), ("λ best on the test", "λ by validation")):
        mine = f"SuPerFed-{mode}, {choice}"
        for other, measure in (
            ("FedAvg", "accuracy"),
            ("SCAFFOLD", "accuracy"),
            ("Ditto", "accuracy"),
            ("Local", "accuracy"),
            ("FedAvg", "ece_of_clients"),
            ("FedPer", "ece_of_clients"),
            ("APFL", "ece_of_clients"),
            ("pFedMe", "ece_of_clients"),
        ):
            found = of_noisy(measure)
            cells = [interval(found[mine][noise], found[other][noise]) for noise in NOISES]
            rows.append([f"{mine} − {other}, {'accuracy' if measure == 'accuracy' else 'ECE'}", *cells])
    return table(["difference in points", *NOISES], rows)


CIFAR_PAPER = {
    "FedAvg": "36.19",
    "FedProx": "38.56",
    "SCAFFOLD": "36.31",
    "LG-FedAvg": "70.25",
    "FedPer": "87.99",
    "APFL": "91.73",
    "pFedMe": "92.07",
    "Ditto": "83.01",
    "FedRep": "81.27",
    "SuPerFed-MM, λ best on the test": "93.25",
    "SuPerFed-LM, λ best on the test": "93.20",
    "SuPerFed-MM, L = 0, λ best on the test": "88.10",
}
"""Accuracies of Table 2.3 of the thesis, CIFAR-10 with 100 clients, and of Table 2.7 for L = 0."""
CHOICES = ("λ best on the test", "λ by validation")


def cifar10() -> str:
    """Every method: the paper's accuracy, ours, how it is spread over clients, and the clients' calibration."""
    found = {measure: of_cifar10(measure) for measure in ("accuracy", "deviation", "ece_of_clients")}
    rows = [
        [name, CIFAR_PAPER.get(name, "–"), *(spread(cells[name], 1) for cells in found.values()), str(len(accuracies))]
        for name, accuracies in found["accuracy"].items()
    ]
    return table(["method", "paper", "accuracy", "deviation over clients", "ECE of clients", "seeds"], rows)


def cifar10_differences() -> str:
    """SuPerFed's two modes less every rival that has several seeds, with both ways to choose λ."""
    found = of_cifar10()
    rivals = [name for name, values in found.items() if not name.startswith("SuPerFed") and len(values) > 1]
    mine = [f"SuPerFed-{mode}, {choice}" for choice, mode in product(CHOICES, ("MM", "LM"))]
    rows = [[other, *(interval(found[one], found[other]) for one in mine)] for other in rivals]
    return table(["SuPerFed less", *(name.removeprefix("SuPerFed-") for name in mine)], rows)


def cifar10_parts() -> str:
    """SuPerFed-MM less itself without the angle between its models, or with another start of mixing."""
    found = of_cifar10()
    rows = [
        [
            part,
            *(interval(found[f"SuPerFed-MM, {choice}"], found[f"SuPerFed-MM, {part}, {choice}"]) for choice in CHOICES),
        ]
        for part in ("ν = 0", "L = 0")
    ]
    return table(["SuPerFed-MM less itself with", *CHOICES], rows)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "superfed": {"barriers": barriers, "widths": widths},
    "superfed-noise": {
        "accuracy": lambda: noisy("accuracy", NOISY_PAPER),
        "calibration": lambda: noisy("ece_of_clients", NOISY_ECE),
        "differences": noisy_differences,
    },
    "superfed-cifar10": {"accuracy": cifar10, "differences": cifar10_differences, "parts": cifar10_parts},
}
"""The tables of every page by name."""
