"""The differences that `docs/results/verdicts.md` states, from the raw results.

`python docs/scripts/verdict_intervals.py` prints them.

Each is the mean over seeds of the difference between two methods that met the same split, model and cohorts, with its
95 % interval by Student's t.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise, permutations, product
from pathlib import Path
from typing import Any

from scipy.stats import t as student

ROOT = Path(__file__).parents[2]
CONFIDENCE = 0.95
BySeed = Mapping[int, float]
SCORES_OF_TABLE_ONE = ("T_g", "T_l", "T_p", "T_r")
LOSSES_AT_THE_END = {"mean loss": "mean", "largest loss": "max"}


def interval(one: BySeed, other: BySeed, digits: int = 1) -> str:
    """``+3.4 [1.2, 5.6]``: the mean of ``one`` − ``other`` over the seeds that both have, and its interval."""
    seeds = sorted(set(one) & set(other))
    differences = [one[seed] - other[seed] for seed in seeds]
    mean = statistics.mean(differences)
    reach = student.ppf((1 + CONFIDENCE) / 2, len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
    low, high = (f"{value:.{digits}f}" for value in (mean - reach, mean + reach))
    return f"{mean:+.{digits}f} [{low}, {high}]".replace("-", "−")


def raw(name: str) -> Any:
    """The content of one raw file."""
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def fedsampling() -> Iterator[tuple[str, str]]:
    """Accuracy in points, the mean of the last five evaluations."""
    runs = raw("fedsampling")["runs"]

    def of(federation: str, method: str) -> BySeed:
        return {int(seed): 100 * one["settled"] for seed, one in runs[federation][method].items()}

    for federation in ("log-normal, σ = 2", "1,000 Amazon users", "Shakespeare roles", "class-sorted"):
        for other in ("centralised", "FedAvg, uniform", "FedSampling, naive", "FedAvg, weighted sampling"):
            if other in runs[federation]:
                yield (
                    f"{federation}: FedSampling − {other}",
                    interval(of(federation, "FedSampling"), of(federation, other)),
                )
    for method in ("FedSampling", "FedAvg, uniform", "FedAvg, weighted sampling"):
        pair = of("log-normal, σ = 3", method), of("log-normal, σ = 0", method)
        yield f"{method}: σ = 3 − σ = 0", interval(*pair)


def grpfed() -> Iterator[tuple[str, str]]:
    """Macro-F1."""
    rows = raw("grpfed")["rows"]

    def of(dataset: str, method: str, figure: str) -> BySeed:
        return {row["seed"]: row[figure] for row in rows if (row["dataset"], row["method"]) == (dataset, method)}

    for dataset in ("mitbih", "cifar10"):
        for figure in ("T_g", "T_l", "T_p", "T_r"):
            for other in ("FedAvg", "Local"):
                pair = of(dataset, "GRP-FED", figure), of(dataset, other, figure)
                yield f"{dataset} {figure}: GRP-FED − {other}", interval(*pair, digits=3)


def of_every_patient(method: str, figure: str) -> BySeed:
    """Macro-F1 by seed with every patient in every round and up to 300 beats of a kind."""
    return {row["seed"]: row[figure] for row in raw("grpfed-size")["rows"] if row["method"] == method}


def every_patient() -> Iterator[tuple[str, str]]:
    """Macro-F1, all 47 patients in each of 40 rounds."""
    for figure in ("T_g", "T_l", "T_p", "T_r"):
        for one in ("GRP-FED", "GRP-FED, q from 1, losses of the shared model"):
            for other in ("FedAvg, uniform", "Local"):
                pair = of_every_patient(one, figure), of_every_patient(other, figure)
                yield f"every patient, {figure}: {one} − {other}", interval(*pair, digits=3)


def of_grp(method: str, figure: str, name: str = "grpfed-sixty") -> BySeed:
    """Macro-F1 of a method of ``grpfed_tuned.py`` by seed, or the global model's loss over clients after all rounds."""
    rows = [row for row in raw(name)["rows"] if row["method"] == method]
    if figure in LOSSES_AT_THE_END:
        return {row["seed"]: row["losses"][-1][LOSSES_AT_THE_END[figure]] for row in rows if row["losses"]}
    return {row["seed"]: row[figure] for row in rows}


def every_rival() -> Iterator[tuple[str, str]]:
    """Macro-F1 and the largest loss (nats) of GRP-FED less every other row of Table 1, tuned, MIT-BIH."""
    for name, rounds in (("grpfed-sixty", 60), ("grpfed-tuned", 40)):
        others = sorted({row["method"] for row in raw(name)["rows"] if not row["method"].startswith("GRP-FED")})
        for one in ("GRP-FED, q from 1", "GRP-FED, q from 10"):
            for other, figure in product(others, (*SCORES_OF_TABLE_ONE, "largest loss")):
                pair = of_grp(one, figure, name), of_grp(other, figure, name)
                if all(pair):
                    digits = 2 if figure == "largest loss" else 3
                    yield f"tuned, {rounds} rounds, {figure}: {one} − {other}", interval(*pair, digits=digits)


def betas() -> Iterator[tuple[str, str]]:
    """Macro-F1 of GRP-FED, q from 1, at one β less another, over 60 rounds; .5 is the default."""
    name = {0.5: "GRP-FED, q from 1"} | {beta: f"GRP-FED, q from 1, β = {beta:g}" for beta in (0.1, 0.3, 0.7, 0.9, 1.0)}
    for (one, method), (other, less), figure in product(name.items(), name.items(), SCORES_OF_TABLE_ONE):
        if one != other and figure != "T_g":  # the shared model does not depend on β
            yield f"{figure}, β: {one:g} − {other:g}", interval(of_grp(method, figure), of_grp(less, figure), digits=3)
    for base, figure in product(("GRP-FED, q from 1", "GRP-FED, q from 10"), SCORES_OF_TABLE_ONE):
        pair = of_grp(f"{base}, non-saturating", figure), of_grp(base, figure)
        yield f"{figure}: {base}, non-saturating − printed", interval(*pair, digits=3)


def rebafl() -> Iterator[tuple[str, str]]:
    """Accuracy in points over the last ten rounds, and how it changes from one round to the next."""
    rows = [row for row in raw("rebafl")["rows"] if (row["clients"], row["probability"]) == (20, 0.5)]

    def of(method: str, rounds: int, figure: str) -> BySeed:
        found = {}
        for row in rows:
            if row["method"] == method:
                accuracy = [100 * value for value in row["accuracy"][:rounds]]
                changes = [after - before for before, after in pairwise(accuracy)]
                swing = statistics.pstdev(changes[len(changes) // 2 :])
                found[row["seed"]] = statistics.mean(accuracy[-10:]) if figure == "last" else swing
        return found

    for figure in ("last", "change"):
        yield f"{figure}, 100 rounds: ReBaFL − FedAvg", interval(of("ReBaFL", 100, figure), of("FedAvg", 100, figure))
        for one, other in (("R-BSM only", "FedAvg"), ("F-Aug only", "FedAvg"), ("ReBaFL", "R-BSM only")):
            yield f"{figure}, 24 rounds: {one} − {other}", interval(of(one, 24, figure), of(other, 24, figure))


def of_curve(rows: list[Any], rounds: int, method: str, figure: str) -> BySeed:
    """*last* or *change* of a method's curves by seed, in points, as if they had ended after so many rounds."""
    found = {}
    for row in rows:
        if row["method"] == method:
            accuracy = [100 * value for value in row["accuracy"][:rounds]]
            changes = [after - before for before, after in pairwise(accuracy[rounds // 2 :])]
            found[row["seed"]] = statistics.mean(accuracy[-10:]) if figure == "last" else statistics.pstdev(changes)
    return found


LONG = ("FedAvg", "FedDyn", "ReBaFL")
"""The methods of ReBaFL's longer runs."""
BESIDE = ("rebafl-feddyn", "rebafl-rivals")
"""Where the rows of Table I with 20 clients are."""


def feddyn(name: str = "rebafl-feddyn") -> Iterator[tuple[str, str]]:
    """The runs of one version that FedDyn is in: as :func:`rebafl`, after the rounds that all of them have."""
    rows = [row for row in raw(name)["rows"] if row["method"] in LONG]
    rounds = min(len(row["accuracy"]) for row in rows)
    for figure in ("last", "change"):
        for one, other in (("ReBaFL", "FedAvg"), ("ReBaFL", "FedDyn"), ("FedDyn", "FedAvg")):
            pair = (of_curve(rows, rounds, method, figure) for method in (one, other))
            yield f"{figure}, {rounds} rounds: {one} − {other}", interval(*pair)


def rivals(*names: str) -> Iterator[tuple[str, str]]:
    """The other rows of Table I beside these, after the rounds that all have."""
    rows = [row for name in names or BESIDE for row in raw(name)["rows"]]
    rounds = min(len(row["accuracy"]) for row in rows)
    for figure, method in product(("last", "change"), dict.fromkeys(row["method"] for row in rows)):
        if method != "ReBaFL":
            pair = (of_curve(rows, rounds, one, figure) for one in ("ReBaFL", method))
            yield f"{figure}, {rounds} rounds: ReBaFL − {method}", interval(*pair)


def long_runs() -> Iterator[tuple[str, str]]:
    """Fashion-MNIST, 20 and 50 clients of 250 images: as :func:`feddyn` and as :func:`rivals`."""
    for name in ("rebafl-rounds", "rebafl-fifty"):
        yield from chain(feddyn(name), rivals(name))


def local_models() -> Iterator[tuple[str, str]]:
    """ReBaFL's Figures 1, 7 and 8: accuracy and its change in points, and diversity."""
    from rebafl_tables import local_models as found

    yield from found()


def of_condition(condition: str, method: str, figure: str) -> BySeed:
    """*last* or *change* of a method of ``rebafl_cifar.py`` by seed, in points."""
    rows = [row for row in raw("rebafl-cifar")["rows"] if row["condition"] == condition]
    return of_curve(rows, rows[0]["rounds"], method, figure) if rows else {}


def cifar_conditions() -> Iterator[tuple[str, str]]:
    """ReBaFL on CIFAR-10 under every condition: ReBaFL and its parts less each other method."""
    rows = raw("rebafl-cifar")["rows"]
    for condition in dict.fromkeys(row["condition"] for row in rows):
        methods = dict.fromkeys(row["method"] for row in rows if row["condition"] == condition)
        pairs = [("ReBaFL", other) for other in methods if other != "ReBaFL"]
        pairs += [(part, "FedAvg") for part in ("R-BSM only", "F-Aug only") if part in methods]
        for one, other in pairs:
            for figure in ("last", "change"):
                pair = of_condition(condition, one, figure), of_condition(condition, other, figure)
                if len(set(pair[0]) & set(pair[1])) > 1:
                    yield f"{condition}, {figure}: {one} − {other}", interval(*pair)


def held_back() -> Iterator[tuple[str, str]]:
    """FedEvg judged by what clients hold back, accuracy in points: FedEvg less each rival."""
    for clients in (10, 100):
        for alpha in ("1.0", "0.01"):
            for other in ("fedcvae", "fedcgan"):
                pair = of_held_back(clients, alpha, "signed"), of_held_back(clients, alpha, other)
                yield f"{clients} clients, α = {alpha}: FedEvg − {other}", interval(*pair)


def of_held_back(clients: int, alpha: str, method: str, figure: str = "test_accuracy") -> BySeed:
    """A figure of ``fedevg_local.py`` by seed; accuracy in points."""
    scale = 100 if figure == "test_accuracy" else 1
    rows = raw("fedevg-local")["rows"]
    wanted = clients, alpha, method
    return {row["seed"]: scale * row[figure] for row in rows if (row["clients"], row["alpha"], row["method"]) == wanted}


def fedevg() -> Iterator[tuple[str, str]]:
    """Accuracy in points and FID, each method at the value that validation images chose."""
    sys.path.insert(0, str(ROOT / "examples" / "papers"))
    from fedevg_tuned import ALPHAS, GRIDS, chosen  # type: ignore[import-not-found]

    stored = raw("fedevg-tuned")

    def of(alpha: str, method: str, figure: str) -> BySeed:
        value, scale = chosen(stored["tuning"], alpha, method), 100 if figure == "test_accuracy" else 1
        own = [row for row in stored["rows"] if (row["alpha"], row["method"], row["value"]) == (alpha, method, value)]
        return {row["seed"]: scale * row[figure] for row in own}

    for alpha in ALPHAS:
        for figure in ("test_accuracy", "fid"):
            for other in list(GRIDS)[1:]:
                pair = of(alpha, "signed", figure), of(alpha, other, figure)
                yield f"α = {alpha}, {figure}: FedEvg − {other}", interval(*pair)


def superfed() -> Iterator[tuple[str, str]]:
    """Accuracy in points, the mean over clients."""
    sys.path.insert(0, str(ROOT / "examples" / "papers"))
    from superfed import outcomes  # type: ignore[import-not-found]

    found: dict[tuple[int, str], dict[int, float]] = {}
    for row in raw("superfed")["rows"]:
        for label, values in outcomes(row).items():
            found.setdefault((row["clients"], label), {})[row["seed"]] = values[0]
    for clients in (50, 100):
        for mode in ("MM", "LM"):
            mine = f"SuPerFed-{mode}"
            for choice, other in (("λ best on the test", "FedAvg"), ("λ by validation", "Local")):
                one = next(found[key] for key in found if key[0] == clients and key[1].startswith(f"{mine}, {choice}"))
                yield f"{clients} clients: {mine}, {choice} − {other}", interval(one, found[clients, other], digits=2)


def of_cifar10(measure: str = "accuracy") -> dict[str, dict[int, float]]:
    """``measure`` by method and label, by seed."""
    found: dict[str, dict[int, float]] = {}
    for row in raw("superfed-cifar10")["rows"]:
        for label, values in row["scores"].items():
            name = f"{row['method']}, {label}" if label else row["method"]
            found.setdefault(name, {})[row["seed"]] = values[measure]
    return found


def cifar10() -> Iterator[tuple[str, str]]:
    """Accuracy in points, the mean over clients: CIFAR-10, 100 clients; rivals, and SuPerFed-MM's own parts."""
    found = of_cifar10()
    rivals = [name for name, values in found.items() if not name.startswith("SuPerFed") and len(values) > 1]
    for choice in ("λ best on the test", "λ by validation"):
        for one in ("SuPerFed-MM", "SuPerFed-LM"):
            for other in rivals:
                yield f"{one}, {choice} − {other}", interval(found[f"{one}, {choice}"], found[other])
        for part in ("ν = 0", "L = 0"):
            pair = found[f"SuPerFed-MM, {choice}"], found[f"SuPerFed-MM, {part}, {choice}"]
            yield f"SuPerFed-MM − {part}, {choice}", interval(*pair)


def noisy_labels() -> Iterator[tuple[str, str]]:
    """Accuracy and ECE in points, the mean over clients, of SuPerFed and two rivals on noisy labels."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in raw("superfed-noise")["rows"]:
        for label in ("", "λ best on the test"):
            for figure, value in row["scores"].get(label, {}).items():
                found.setdefault((row["noise"], row["method"], figure), {})[row["seed"]] = value
    for noise in dict.fromkeys(noise for noise, _, _ in found):
        for other, figure in (("FedAvg", "accuracy"), ("FedAvg", "ece_of_clients"), ("FedPer", "ece_of_clients")):
            for mode in ("SuPerFed-MM", "SuPerFed-LM"):
                pair = found[noise, mode, figure], found[noise, other, figure]
                yield f"{noise}, {figure}: {mode} − {other}", interval(*pair)


def aaggff() -> Iterator[tuple[str, str]]:
    """Scores in points, losses in nats, after the last round."""
    rows = raw("aaggff")["rows"]

    def of(study: str, method: str, figure: str) -> BySeed:
        scale = 1 if figure.endswith("loss") else 100
        found = {(row["study"], row["method"], row["seed"]): row["curve"][-1][figure] for row in rows}
        return {seed: scale * value for (name, kind, seed), value in found.items() if (name, kind) == (study, method)}

    pairs = {
        "berka": ("AAggFF-S", "FedAvg, uniform"),
        "questions": ("AAggFF-S", "FedAvg, uniform"),
        "heart": ("AAggFF-S", "FedAvg, uniform"),
        "fashion": ("AAggFF-D", "FedAvg"),
    }
    for study, (one, other) in pairs.items():
        for figure in ("client_average", "worst_tenth", "parity_gap", "worst_loss"):
            digits = 3 if figure.endswith("loss") else 1
            yield (
                f"{study} {figure}: {one} − {other}",
                interval(of(study, one, figure), of(study, other, figure), digits),
            )


def many_pairs() -> Iterator[tuple[str, str]]:
    """What ``aaggff_pairs.py`` and ``fedsampling_tuned.py`` compare: in points and nats."""
    from aaggff_tables import many_pairs as found
    from write_pairs import of_tuned

    yield from found()
    for other in dict.fromkeys(row["method"] for row in raw("fedsampling-tuned")["rows"]):
        if other != "FedSampling":
            yield f"tuned: FedSampling − {other}", interval(of_tuned("FedSampling"), of_tuned(other))


def table(name: str) -> dict[tuple[str, str], BySeed]:
    """Accuracy in points by method and level, of a study's CSV; of clients' own models where there are any."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    with open(ROOT / "docs" / "results" / f"{name}.csv", newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            accuracy = float(row["personal_accuracy"] or row["local_accuracy"])
            found.setdefault((row["method"], row["level"]), {})[int(row["seed"])] = 100 * accuracy
    return dict(found)


def many_clients() -> Iterator[tuple[str, str]]:
    """What ``aaggff_pairs.py`` compares on 100 clients."""
    from aaggff_tables import many_clients as found

    yield from found()


def personal() -> Iterator[tuple[str, str]]:
    """Every pair of the twelve methods of the study of personalised methods."""
    found = table("personal/fashion-mnist")
    for (one, level), (other, _) in permutations(found, 2):
        yield f"{one} − {other}", interval(found[one, level], found[other, level])


def differences() -> dict[str, str]:
    """Every difference by what it is of."""
    return {f"{source.__name__} {name}": text for source in SOURCES for name, text in source()}


SOURCES = (
    fedsampling,
    grpfed,
    every_patient,
    every_rival,
    betas,
    rebafl,
    feddyn,
    rivals,
    long_runs,
    local_models,
    cifar_conditions,
    fedevg,
    held_back,
    superfed,
    cifar10,
    noisy_labels,
    aaggff,
    many_pairs,
    many_clients,
    personal,
)

if __name__ == "__main__":
    for name, text in differences().items():
        print(f"{name}: {text}")
