"""The tables of AAggFF's pages over many seeds, from the raw results of `examples/papers/aaggff_pairs.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product

from tables import spread, table
from verdict_intervals import BySeed, interval, raw

FEDERATIONS = {
    "heart": "heart",
    "heart, scaled by hospital": "heart, scaled by hospital",
    "berka": "berka",
    "questions": "questions",
}
SCORES = {"worst_tenth": "worst client", "client_average": "average", "parity_gap": "parity gap"}
PAIRED = ("worst_tenth", "client_average", "parity_gap", "worst_loss", "mean_loss")


def of_pairs(study: str, method: str, figure: str, when: str = "settled") -> BySeed:
    """One figure of a method of ``aaggff_pairs.py`` by seed; scores in points, losses in nats."""
    scale = 1 if figure.endswith("loss") else 100
    rows = raw("aaggff-pairs")["rows"]
    return {row["seed"]: scale * row[when][figure] for row in rows if (row["study"], row["method"]) == (study, method)}


def paired(study: str, method: str, other: str, figure: str, when: str = "settled", loss_digits: int = 3) -> str:
    """The difference of two methods of ``aaggff_pairs.py``."""
    digits = loss_digits if figure.endswith("loss") else 2
    return interval(of_pairs(study, method, figure, when), of_pairs(study, other, figure, when), digits)


def reduced(study: str) -> str:
    """What FedAvg at q-FedAvg's step is called on a federation."""
    return next(
        row["method"] for row in raw("aaggff-pairs")["rows"] if row["study"] == study and "server rate" in row["method"]
    )


def differences(when: str) -> str:
    """AAggFF-S beside uniform FedAvg on every federation."""
    rows = []
    for study, name in FEDERATIONS.items():
        cells = [paired(study, "AAggFF-S", "FedAvg, uniform", figure, when) for figure in PAIRED]
        rows.append([name, str(len(of_pairs(study, "AAggFF-S", "worst_tenth"))), *cells])
    head = ["AAggFF-S − FedAvg", "seeds", *SCORES.values(), "largest training loss", "mean training loss"]
    return table(head, rows)


def levels() -> str:
    """Means over the seeds of every method."""
    rows = []
    for study, name in FEDERATIONS.items():
        methods = dict.fromkeys(row["method"] for row in raw("aaggff-pairs")["rows"] if row["study"] == study)
        for method in methods:
            if method.startswith("AAggFF-S, "):
                continue
            cells = [spread(of_pairs(study, method, figure)) for figure in SCORES]
            losses = [spread(of_pairs(study, method, figure), 3) for figure in ("worst_loss", "mean_loss")]
            rows.append([f"{name}, {method}", str(len(of_pairs(study, method, "worst_loss"))), *cells, *losses])
    return table(["", "seeds", *SCORES.values(), "largest training loss", "mean training loss"], rows)


def steps() -> str:
    """q-FedAvg beside FedAvg, and beside FedAvg at the length of its steps."""
    rows = []
    for study in ("berka", "questions"):
        for other in ("FedAvg, uniform", reduced(study)):
            cells = [paired(study, "q-FedAvg", other, figure, loss_digits=4) for figure in PAIRED]
            rows.append([f"{study}, q-FedAvg − {other}", *cells])
    return table(["", *SCORES.values(), "largest training loss", "mean training loss"], rows)


def many_differences(pairs: Sequence[tuple[str, str]]) -> str:
    """Methods with many clients, the first of each pair less the second, means over the second half of the rounds."""
    rows = []
    for one, other in pairs:
        cells = [
            interval(of_many(one, figure), of_many(other, figure), 3 if figure.endswith("loss") else 1)
            for figure in PAIRED
        ]
        rows.append([f"{one} − {other}", *cells])
    return table(["", *MANY.values()], rows)


MANY = {
    "worst_tenth": "worst tenth",
    "client_average": "average",
    "parity_gap": "parity gap",
    "worst_loss": "largest training loss",
    "mean_loss": "mean training loss",
}
UNIFORM = "FedAvg, uniform"
RIVALS = ("AAggFF-D", "q-FedAvg", "PropFair", "TERM", "FedMGDA")


def many_levels() -> str:
    """Means over the seeds of every method with many clients."""
    rows = []
    for method in dict.fromkeys(row["method"] for row in raw("aaggff-many")["rows"]):
        cells = [spread(of_many(method, figure), 3 if figure.endswith("loss") else 1) for figure in MANY]
        jump = statistics.mean(abs(value) for value in ended(method).values())
        rows.append([method, str(len(of_many(method, "worst_tenth"))), *cells, f"{jump:.1f}"])
    return table(["", "seeds", *MANY.values(), "last round off, average"], rows)


def ended(method: str) -> BySeed:
    """The average after the last round less its mean over the second half of the rounds, by seed, in points."""
    last = of_many(method, "client_average", "last")
    return {seed: last[seed] - settled for seed, settled in of_many(method, "client_average").items()}


RESPONSES = ("weibull", "exponential", "frechet", "normal", "gumbel", "logistic")


def of_responses(study: str) -> dict[str, str]:
    """Response function → what AAggFF-S with it is called on a federation; the paper's choice has no name there."""
    return {one: "AAggFF-S" if one == chosen(study) else f"AAggFF-S, {one}" for one in RESPONSES}


def chosen(study: str) -> str:
    """The response function that the paper takes on a federation: the only one that no method is named after."""
    named = {row["method"] for row in raw("aaggff-pairs")["rows"] if row["study"] == study}
    (found,) = (one for one in RESPONSES if f"AAggFF-S, {one}" not in named)
    return found


def responses() -> str:
    """AAggFF-S with each response function beside uniform FedAvg."""
    rows = []
    for study, name in FEDERATIONS.items():
        for response, method in of_responses(study).items():
            cells = [paired(study, method, UNIFORM, figure) for figure in PAIRED]
            mark = " (the paper's)" if method == "AAggFF-S" else ""
            rows.append([f"{name}, {response}{mark}", *cells])
    return table(["response", *SCORES.values(), "largest training loss", "mean training loss"], rows)


def among_responses() -> str:
    """The widest of the differences between two response functions, for each figure."""
    rows = []
    for study, name in FEDERATIONS.items():
        cells = []
        for figure in PAIRED:
            found = {one: of_pairs(study, method, figure) for one, method in of_responses(study).items()}
            one, other = max(permutations(found, 2), key=lambda pair: apart(found[pair[0]], found[pair[1]]))
            cells.append(f"{one} − {other} {interval(found[one], found[other], 3 if figure.endswith('loss') else 2)}")
        rows.append([name, *cells])
    return table(["", *SCORES.values(), "largest training loss", "mean training loss"], rows)


def apart(one: BySeed, other: BySeed) -> float:
    """The mean of the paired differences."""
    return statistics.mean(one[seed] - other[seed] for seed in one)


def of_many(method: str, figure: str, when: str = "settled") -> BySeed:
    """One figure of a method with many clients by seed; scores in points, losses in nats."""
    scale = 1 if figure.endswith("loss") else 100
    return {row["seed"]: scale * row[when][figure] for row in raw("aaggff-many")["rows"] if row["method"] == method}


def many_pairs() -> Iterator[tuple[str, str]]:
    """What is compared where clients are few: in points and nats."""
    for study in FEDERATIONS:
        for figure in PAIRED:
            yield f"{study} {figure}: AAggFF-S − FedAvg", paired(study, "AAggFF-S", "FedAvg, uniform", figure)
    for study in ("berka", "questions"):
        for figure in PAIRED:
            for other in ("FedAvg, uniform", reduced(study)):
                yield f"{study} {figure}: q-FedAvg − {other}", paired(study, "q-FedAvg", other, figure)
    for study in FEDERATIONS:
        for (one, method), figure in product(of_responses(study).items(), PAIRED):
            if method != "AAggFF-S":
                yield f"{study} {figure}: {chosen(study)} − {one}", paired(study, "AAggFF-S", method, figure)


def many_clients() -> Iterator[tuple[str, str]]:
    """Fashion-MNIST over 100 clients: every method less uniform FedAvg, and two less an unweighted average."""
    methods = dict.fromkeys(row["method"] for row in raw("aaggff-many")["rows"])
    alike = {"q-FedAvg": "server rate", "PropFair": "one slope"}
    pairs = [(method, "FedAvg, uniform") for method in methods if method != "FedAvg, uniform"]
    pairs += [(method, next(name for name in methods if step in name)) for method, step in alike.items()]
    for one, other in pairs:
        for figure in PAIRED:
            digits = 3 if figure.endswith("loss") else 1
            yield f"{figure}: {one} − {other}", interval(of_many(one, figure), of_many(other, figure), digits)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "aaggff-pairs": {
        "differences": lambda: differences("settled"),
        "last round": lambda: differences("last"),
        "steps": steps,
        "responses": responses,
        "among responses": among_responses,
        "levels": levels,
    },
    "aaggff-cross-device": {
        "beside FedAvg": lambda: many_differences([(method, UNIFORM) for method in RIVALS]),
        "at equal steps": lambda: many_differences(
            [("q-FedAvg", "FedAvg, uniform, server rate 0.39"), ("PropFair", "PropFair, one slope")]
        ),
        "levels": many_levels,
    },
}
