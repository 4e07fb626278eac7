"""Write the tables of the studies that compare runs by seeds into their pages, from the raw results.

`python docs/scripts/write_pairs.py`
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import aaggff_tables
import fedevg_tables
import private_tables
import rebafl_tables
import superfed_tables
from scipy.stats import t as student
from tables import spread, table
from verdict_intervals import (
    LOSSES_AT_THE_END,
    SCORES_OF_TABLE_ONE,
    BySeed,
    interval,
    of_every_patient,
    of_grp,
    raw,
)

RESULTS = Path(__file__).parents[1] / "results"
MARKS = "<!-- table {}: written by docs/scripts/write_pairs.py -->", "<!-- end of table -->"


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


GRP = ("GRP-FED, q from 10", "GRP-FED, q from 1")
REPORTED = {
    "FedAvg": (".334", ".407", ".684", ".334"),
    "Local": (".075", ".140", ".933", ".076"),
    "AFL": (".506", ".503", ".606", ".506"),
    "q-FFL": (".551", ".534", ".602", ".551"),
    "per-FedAvg": (".378", ".424", ".799", ".310"),
    "pFedMe": (".290", ".288", ".850", ".178"),
    "LG-FedAvg": (".343", ".286", ".964", ".169"),
    GRP[0]: (".569", ".553", ".864", ".424"),
}
"""T_g, T_l, T_p and T_r of the paper's Table 1 on MIT-BIH."""


def grp_levels() -> str:
    """Every row of Table 1 at its tuned rate."""
    return _grp_rows("grpfed-sixty", lambda method: " non-saturating" not in method and "β" not in method)


def grp_variants() -> str:
    """GRP-FED's regulariser and β."""
    return _grp_rows("grpfed-sixty", lambda method: method in GRP or " non-saturating" in method or "β" in method)


DIVERGED = 1000.0
"""A loss from which on a model has diverged."""


def _loss(values: BySeed) -> str:
    far = sum(value > DIVERGED for value in values.values())
    return f"diverged in {far} of {len(values)}" if far else spread(values, 2) if values else "–"


def _grp_rows(name: str, wanted: Callable[[str], bool]) -> str:
    stored, made = raw(name), []
    for method in filter(wanted, sorted(dict.fromkeys(row["method"] for row in stored["rows"]))):
        rate = next(row["rate"] for row in stored["rows"] if row["method"] == method)
        cells = [
            spread(of_grp(method, figure, name), 3) + (f" ({REPORTED[method][place]})" if method in REPORTED else "")
            for place, figure in enumerate(SCORES_OF_TABLE_ONE)
        ]
        losses = [of_grp(method, figure, name) for figure in LOSSES_AT_THE_END]
        cells += [_loss(values) for values in losses]
        made.append([method, f"{rate:g}", *cells, str(len(of_grp(method, "T_g", name)))])
    return table(["", "rate", *SCORES_OF_TABLE_ONE, *LOSSES_AT_THE_END, "seeds"], made)


def grp_patients() -> str:
    """Figures 1 and 5: FedAvg by patient, and every method at the patients nearest to all and farthest from them."""
    rows = [row for row in raw("grpfed-sixty")["rows"] if "β" not in row["method"] and "non-sat" not in row["method"]]
    distances = [statistics.mean(each) for each in zip(*(row["patients"]["distance"] for row in rows), strict=True)]
    ordered = sorted(range(len(distances)), key=distances.__getitem__)
    groups = {"nearest five": ordered[:5], "farthest five": ordered[-5:]}
    made = []
    for method in sorted(dict.fromkeys(row["method"] for row in rows)):
        cells = []
        for chosen in groups.values():
            for figure in ("T_p", "T_l"):
                cells.append(spread(of_patients(method, chosen, figure), 3))
        made.append([method, *cells])
    head = [f"{name}, {figure}" for name in groups for figure in ("T_p", "T_l")]
    return table(["", *head], made)


def grp_quartiles() -> str:
    """Figure 1 (c): macro-F1 on patients' own tests, each the mean over the seeds, from the least to the largest."""
    made = []
    for method in ("FedAvg", "GRP-FED, q from 1", "per-FedAvg", "pFedMe", "Local"):
        runs = [row["patients"]["own"] for row in raw("grpfed-sixty")["rows"] if row["method"] == method]
        each = sorted(statistics.mean(values) for values in zip(*runs, strict=True))
        quartiles = statistics.quantiles(each, n=4, method="inclusive")
        made.append([method, *(f"{value:.3f}" for value in (each[0], *quartiles, each[-1]))])
    return table(["", "least", "lower quartile", "median", "upper quartile", "largest"], made)


def of_patients(method: str, chosen: Sequence[int], figure: str) -> BySeed:
    """T_p or T_l, the mean over ``chosen`` patients, by seed."""
    found = {}
    for row in raw("grpfed-sixty")["rows"]:
        if row["method"] == method:
            pairs = [(row["patients"]["own"][one], row["patients"]["everywhere"][one]) for one in chosen]
            each = [own if figure == "T_p" else 2 * own * other / (own + other or 1) for own, other in pairs]
            found[row["seed"]] = statistics.mean(each)
    return found


def grp_differences() -> str:
    """Both forms of GRP-FED less every other row of Table 1."""
    others = sorted(dict.fromkeys(row["method"] for row in raw("grpfed-sixty")["rows"]))
    made = []
    for one in GRP[::-1]:
        for other in others:
            if other.startswith("GRP-FED"):
                continue
            cells = [interval(of_grp(one, figure), of_grp(other, figure), digits=3) for figure in SCORES_OF_TABLE_ONE]
            loss = of_grp(other, "largest loss")
            usable = loss and max(loss.values()) < DIVERGED
            cells.append(interval(of_grp(one, "largest loss"), loss, digits=2) if usable else "–")
            made.append([f"{one} − {other}", *cells])
    return table(["difference", *SCORES_OF_TABLE_ONE, "largest loss"], made)


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
    "adversaries": {"members": members},
    "fedsampling-tuned": {"tuned": tuned},
    "grpfed": {"every patient": every_patient},
    "grpfed-tuned": {
        "Table 1": grp_levels,
        "differences": grp_differences,
        "variants": grp_variants,
        "by patient": grp_quartiles,
        "patients": grp_patients,
    },
    **aaggff_tables.TABLES,
    **private_tables.TABLES,
    **fedevg_tables.TABLES,
    **rebafl_tables.TABLES,
    **superfed_tables.TABLES,
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
