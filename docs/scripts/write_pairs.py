"""Write the tables of the studies that compare runs by seeds into their pages, from the raw results.

`python docs/scripts/write_pairs.py`
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from scipy.stats import t as student
from verdict_intervals import BySeed, interval, of_curve, of_every_patient, raw

RESULTS = Path(__file__).parents[1] / "results"
MARKS = "<!-- table {}: written by docs/scripts/write_pairs.py -->", "<!-- end of table -->"
FEDERATIONS = {
    "heart": "heart",
    "heart, scaled by hospital": "heart, scaled by hospital",
    "berka": "berka",
    "questions": "questions",
}
SCORES = {"worst_tenth": "worst client", "client_average": "average", "parity_gap": "parity gap"}
PAIRED = ("worst_tenth", "client_average", "parity_gap", "worst_loss", "mean_loss")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def spread(values: BySeed, digits: int = 2) -> str:
    """``mean ± standard deviation`` over the seeds."""
    each = list(values.values())
    deviation = f" ± {statistics.stdev(each):.{digits}f}" if len(each) > 1 else ""
    return f"{statistics.mean(each):.{digits}f}{deviation}"


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


def responses() -> str:
    """AAggFF-S with each response function beside uniform FedAvg, on the seeds that all six have."""
    study, rows = "berka", []
    names = {"AAggFF-S": "normal (the paper's)"} | {
        method: method.removeprefix("AAggFF-S, ")
        for method in dict.fromkeys(row["method"] for row in raw("aaggff-pairs")["rows"] if row["study"] == study)
        if method.startswith("AAggFF-S, ")
    }
    common = set.intersection(*(set(of_pairs(study, method, "worst_tenth")) for method in names))

    def kept(method: str, figure: str) -> BySeed:
        return {seed: value for seed, value in of_pairs(study, method, figure).items() if seed in common}

    for method, name in names.items():
        cells = [
            interval(kept(method, figure), kept("FedAvg, uniform", figure), 3 if figure.endswith("loss") else 2)
            for figure in PAIRED
        ]
        rows.append([name, *cells])
    return table(["response", *SCORES.values(), "largest training loss", "mean training loss"], rows)


def of_tuned(method: str, figure: str = "settled") -> BySeed:
    """Accuracy in points of a method of ``fedsampling_tuned.py`` by seed."""
    return {row["seed"]: 100 * row[figure] for row in raw("fedsampling-tuned")["rows"] if row["method"] == method}


def tuned() -> str:
    """Every method at its tuned rate, and FedSampling's difference."""
    stored, rows = raw("fedsampling-tuned"), []
    for method in dict.fromkeys(row["method"] for row in stored["rows"]):
        tried = sorted({row["rate"] for row in stored["tuning"] if row["method"] == method})
        rate = next(row["rate"] for row in stored["rows"] if row["method"] == method)
        edge = " (edge)" if rate in (tried[0], tried[-1]) else ""
        own = method == "FedSampling"
        difference = "–" if own else interval(of_tuned("FedSampling"), of_tuned(method))
        macro = spread(of_tuned(method, "settled_macro_f1"), 1)
        rows.append([method, f"{rate:g}{edge}", spread(of_tuned(method), 1), macro, difference])
    return table(["method", "tuned rate", "accuracy", "macro-F1", "FedSampling − it"], rows)


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
    """SuPerFed's two modes beside the rivals of three seeds, in accuracy and calibration."""
    rows = []
    for mode, choice in product(("MM", "LM"), ("λ best on the test", "λ by validation")):
        mine = f"SuPerFed-{mode}, {choice}"
        for other, measure in (
            ("FedAvg", "accuracy"),
            ("SCAFFOLD", "accuracy"),
            ("Local", "accuracy"),
            ("FedAvg", "ece_of_clients"),
            ("FedPer", "ece_of_clients"),
        ):
            found = of_noisy(measure)
            cells = [interval(found[mine][noise], found[other][noise]) for noise in NOISES]
            rows.append([f"{mine} − {other}, {'accuracy' if measure == 'accuracy' else 'ECE'}", *cells])
    return table(["difference in points", *NOISES], rows)


TABLE_ONE = {
    "FedAvg": "75.27",
    "FedProx": "75.36",
    "SCAFFOLD": "63.48",
    "FedDyn": "77.98",
    "MOON": "65.35",
    "FedRS": "72.46",
    "FedBABU": "74.20",
    "FedLC": "68.75",
    "BSM-FedAvg": "68.64",
    "ReBaFL": "78.81",
}
"""Accuracies of the paper: Fashion-MNIST, 20 clients, after 200 rounds."""


def table_one() -> str:
    """The rows of ReBaFL's Table I after the rounds that all have."""
    rows = [*raw("rebafl-feddyn")["rows"], *raw("rebafl-rivals")["rows"]]
    rounds, made = min(len(row["accuracy"]) for row in rows), []
    for method, paper in TABLE_ONE.items():
        cells = [of_curve(rows, rounds, method, figure) for figure in ("last", "change")]
        each = ", ".join(f"{value:.2f}" for value in cells[0].values())
        differences = [
            "–" if method == "ReBaFL" else interval(of_curve(rows, rounds, "ReBaFL", figure), values)
            for figure, values in zip(("last", "change"), cells, strict=True)
        ]
        made.append([method, paper, f"{spread(cells[0])} ({each})", spread(cells[1]), *differences])
    head = ["method", "paper, Table I (200 rounds)", f"last, {rounds} rounds", "change", "ReBaFL − it, last", "change"]
    return table(head, made)


def every_patient() -> str:
    """GRP-FED, its rivals and the differences to uniform FedAvg, all patients in every round."""
    figures, rows = ("T_g", "T_l", "T_p", "T_r"), []
    for method in dict.fromkeys(row["method"] for row in raw("grpfed-size")["rows"]):
        found = [of_every_patient(method, figure) for figure in figures]
        rows.append([method, *(spread(values, 3) for values in found), str(len(found[0]))])
    for one in ("GRP-FED", "GRP-FED, q from 1, losses of the shared model"):
        for other in ("FedAvg, uniform", "Local"):
            pairs = ((of_every_patient(one, figure), of_every_patient(other, figure)) for figure in figures)
            rows.append([f"{one} − {other}", *(interval(*pair, digits=3) for pair in pairs), "paired"])
    return table(["macro-F1", *figures, "seeds"], rows)


ADVERSARIES = {
    "released models, 4 references": "passive: released models (RMIA, 4 references trained alone)",
    "released models, 4 federated references": "passive: released models (RMIA, 4 references that are federations "
    "with the same mechanism)",
    "a server that watches": "passive: a server that watches (matched filter; alignment on sums)",
    "a server that watches and compares clients": "passive: a server that watches and compares clients (FedMIA)",
    "a poisoning client": "poisoning: one client more, mislabelled copies (RMIA)",
}
COLUMNS = {"none": "none", "larger batch": "larger batch", "secure sum": "secure sum of ten"}
COLUMNS |= {name: name for name in ("ε = 50", "ε = 8", "ε = 1")}


def members() -> str:
    """The AUC of every adversary over the seeds, with its interval, and that of its null."""
    runs = [raw("adversaries"), *raw("adversaries-seeds")["runs"]]

    def cell(adversary: str, column: str) -> str:
        found = [one["cells"][column]["adversaries"].get(adversary) for one in runs]
        if not all(found):
            return "single updates only"
        own, null = ([one[part]["value"] for one in found] for part in ("auc", "null"))
        reach = student.ppf(0.975, len(own) - 1) * statistics.stdev(own) / len(own) ** 0.5
        mean = statistics.mean(own)
        text = f"{mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}], null {statistics.mean(null):.3f}"
        return text if mean - reach > 0.5 else f"not told from none ({text})"

    rows = [[name, *(cell(adversary, column) for column in COLUMNS)] for adversary, name in ADVERSARIES.items()]
    for name, key in (("*AUC that the claim allows*", "ceiling"), ("*test accuracy of the run*", "accuracy")):
        cells = []
        for column in COLUMNS:
            values = [
                one["cells"][column][key]
                if key == "accuracy"
                else one["cells"][column]["adversaries"]["a server that watches"][key]
                for one in runs
            ]
            cells.append(f"{statistics.mean(values):.3f}")
        rows.append([name, *cells])
    return table(["members, by whom", *COLUMNS.values()], rows)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "aaggff-pairs": {
        "differences": lambda: differences("settled"),
        "last round": lambda: differences("last"),
        "steps": steps,
        "responses": responses,
        "levels": levels,
    },
    "adversaries": {"members": members},
    "fedsampling-tuned": {"tuned": tuned},
    "grpfed": {"every patient": every_patient},
    "rebafl": {"Table I": table_one},
    "superfed": {"barriers": barriers, "widths": widths},
    "superfed-noise": {
        "accuracy": lambda: noisy("accuracy", NOISY_PAPER),
        "calibration": lambda: noisy("ece_of_clients", NOISY_ECE),
        "differences": noisy_differences,
    },
}
"""The tables of every page by name."""


def written(name: str, page: str) -> str:
    """``page`` with its tables of the day between their marks."""
    for which, make in TABLES[name].items():
        begin = MARKS[0].format(which)
        before, found, rest = page.partition(begin)
        if not found:
            raise ValueError(f"{name}.md has no place for the table '{which}'; write {begin} and {MARKS[1]} there")
        page = f"{before}{begin}\n\n{make()}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"
    return page


if __name__ == "__main__":
    for name in TABLES:
        path = RESULTS / f"{name}.md"
        path.write_text(written(name, path.read_text(encoding="utf-8")), encoding="utf-8")
