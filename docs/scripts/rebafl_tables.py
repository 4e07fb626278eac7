"""The tables of ReBaFL's pages, from the curves that its programs in `examples/papers` leave."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product

from rebafl_parts import BOTH_FIGURES, FIFTY_ALL, METHODS, PARTS, WITH_FIFTY, of_part, parts
from tables import spread, table
from verdict_intervals import BESIDE, LONG, BySeed, interval, of_condition, of_curve, raw

REFERENCE, BALANCED, BOTH = "FedAvg", "R-BSM only, epsilon = 0.01", "ReBaFL, μ = 0.1"
ORDER = (REFERENCE, "F-Aug only", BALANCED, BOTH)
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
_WITH_FIFTY = (83.60, 83.55, 65.62, 85.26, 80.35, 79.83, 82.34, 76.98, 76.99, 85.44)
FIFTY = {method: f"{value:.2f}" for method, value in zip(TABLE_ONE, _WITH_FIFTY, strict=True)}
"""The same with 50 clients."""


def of_variant(variant: str, name: str, source: str = "rebafl-figures") -> BySeed:
    """Of one variant by seed: ``last`` of ten rounds and ``change`` in points, ``diversity`` in its second half."""
    found: dict[int, float] = {}
    for row in raw(source)["rows"]:
        if row["variant"] == variant:
            accuracy, diversity = row["accuracy"], row["diversity"]
            changes = [after - before for before, after in pairwise(accuracy[len(accuracy) // 2 :])]
            found[row["seed"]] = {
                "last": 100 * statistics.mean(accuracy[-10:]),
                "change": 100 * statistics.pstdev(changes),
                "diversity": statistics.mean(diversity[len(diversity) // 2 :]),
            }[name]
    return found


def local_models() -> Iterator[tuple[str, str]]:
    """ReBaFL's Figures 7 and 8: diversity, and accuracy and its change in points; then Figure 1. First, whole runs."""
    yield from whole_runs()
    pairs = (
        ("R-BSM only, epsilon = 0.01", "FedAvg"),
        ("F-Aug only", "FedAvg"),
        ("ReBaFL, μ = 0.1", "R-BSM only, epsilon = 0.01"),
        ("R-BSM only, epsilon = 0.01", "R-BSM only, epsilon = 0.0001"),
        ("R-BSM only, epsilon = 0.2", "R-BSM only, epsilon = 0.0001"),
    )
    for one, other in pairs:
        for name, digits in (("diversity", 3), ("last", 1), ("change", 1)):
            yield f"{name}: {one} − {other}", interval(of_variant(one, name), of_variant(other, name), digits)
    for one, other in (*((one, REFERENCE) for one in HEADS if one != REFERENCE), *PAIRS_OF_HEADS):
        for figure in ("last", "change"):
            yield f"Figure 1, {figure}: {one} − {other}", interval(of_head(one, figure), of_head(other, figure))
    for one, other in (("FedAvg-FT", REFERENCE), ("ReBaFL", REFERENCE), ("FedAvg-FT", "ReBaFL")):
        for figure in ("last", "change"):
            pair = (of_head(method, figure, TUNED_IMAGES) for method in (one, other))
            yield f"tuned head, Fashion-MNIST, {figure}: {one} − {other}", interval(*pair)


HEADS = ("FedAvg", "BSM-FedAvg", "FedAvg-FT", "ReBaFL", "FedAvg, all answer")
PAIRS_OF_HEADS = (("FedAvg-FT", "BSM-FedAvg"), ("FedAvg-FT", "ReBaFL"), ("FedAvg-FT", "FedAvg, all answer"))


TUNED, TUNED_IMAGES = "rebafl-tuned-head", "rebafl-tuned-fashion"


def of_head(method: str, figure: str, source: str = TUNED) -> BySeed:
    """*last* or *change* of a method of ``rebafl_tuned_head.py`` by seed, in points."""
    rows = raw(source)["rows"]
    return of_curve(rows, rows[0]["rounds"], method, figure)


def heads(source: str = TUNED) -> str:
    """The methods beside a tuned head, Figure 1 as numbers or what ``source`` has."""
    rows, there = [], {row["method"] for row in raw(source)["rows"]}
    for method in (method for method in HEADS if method in there):
        found = [of_head(method, figure, source) for figure in ("last", "change")]
        less = [
            "–" if method == REFERENCE else interval(own, of_head(REFERENCE, figure, source))
            for own, figure in zip(found, ("last", "change"), strict=True)
        ]
        rows.append([method, str(len(found[0])), *(spread(own, 1) for own in found), *less])
    return table(["", "seeds", "accuracy, last ten rounds", "change", "− FedAvg, accuracy", "− FedAvg, change"], rows)


def table_one(reported: Mapping[str, str] = TABLE_ONE, names: Sequence[str] = BESIDE) -> str:
    """The rows of ReBaFL's Table I after the rounds that all have."""
    rows = [row for name in names for row in raw(name)["rows"]]
    rounds, made = min(len(row["accuracy"]) for row in rows), []
    for method, paper in reported.items():
        cells = [of_curve(rows, rounds, method, figure) for figure in ("last", "change")]
        each = ", ".join(f"{value:.2f}" for value in cells[0].values())
        differences = [
            "–" if method == "ReBaFL" else interval(of_curve(rows, rounds, "ReBaFL", figure), values)
            for figure, values in zip(("last", "change"), cells, strict=True)
        ]
        made.append([method, paper, f"{spread(cells[0])} ({each})", spread(cells[1]), *differences])
    head = ["method", "paper, Table I (200 rounds)", f"last, {rounds} rounds", "change", "ReBaFL − it, last", "change"]
    return table(head, made)


def diversity(source: str = "rebafl-figures") -> str:
    """Figure 7 as numbers: Λ in the second half of the run."""
    rows, rounds = [], len(raw(source)["rows"][0]["diversity"])
    for variant in ORDER:
        own = of_variant(variant, "diversity", source)
        others = [interval(own, of_variant(other, "diversity", source), 3) for other in (REFERENCE, BALANCED)]
        shown = [text if variant != other else "–" for text, other in zip(others, (REFERENCE, BALANCED), strict=True)]
        rows.append([variant, spread(own, 3), *shown, spread(of_variant(variant, "last", source), 1)])
    head = ["", f"Λ, rounds {rounds // 2 + 1} to {rounds}", "− FedAvg", "− R-BSM only", "accuracy, last ten rounds"]
    return table(head, rows)


def settings() -> str:
    """Figure 8 as numbers: accuracy and its change from round to round."""
    variants = dict.fromkeys(row["variant"] for row in raw("rebafl-figures")["rows"])
    rows = []
    for variant in variants:
        own = [of_variant(variant, name) for name in ("last", "change")]
        base = BALANCED if variant.startswith(("R-BSM", "ReBaFL")) else REFERENCE
        less = "–" if variant == base else interval(own[0], of_variant(base, "last"))
        rows.append([variant, spread(own[0], 1), spread(own[1], 1), less])
    return table(
        ["", "accuracy, last ten rounds", "change from round to round", "− R-BSM only at 0.01 (F-Aug: − FedAvg)"], rows
    )


PAPER = {
    "FedAvg": "54.82",
    "FedProx": "54.66",
    "SCAFFOLD": "20.57",
    "FedDyn": "56.41",
    "MOON": "47.28",
    "FedRS": "54.39",
    "FedBABU": "52.73",
    "FedLC": "53.56",
    "BSM-FedAvg": "53.25",
    "R-BSM only": "56.71",
    "F-Aug only": "54.01",
    "ReBaFL": "58.49",
}
"""Tables I and II, CIFAR-10, 20 clients of two classes, after 200 rounds."""
CLUSTERED = {"FedAvg": "59.71", "R-BSM only": "65.75", "F-Aug only": "58.85", "ReBaFL": "67.12"}
"""Table II, clustered."""
SCALED = {
    "FedAvg": "55.78",
    "SCAFFOLD": "63.36",
    "FedDyn": "63.35",
    "FedRS": "60.85",
    "BSM-FedAvg": "60.32",
    "ReBaFL": "63.89",
}
"""Table III, 100 clients."""


def beside(condition: str, paper: dict[str, str]) -> str:
    """The methods of one condition, and ReBaFL less each of them."""
    rows = []
    own = {figure: of_condition(condition, "ReBaFL", figure) for figure in ("last", "change")}
    for method, printed in paper.items():
        found = {figure: of_condition(condition, method, figure) for figure in own}
        if not found["last"]:
            continue
        less = [
            interval(own[figure], found[figure]) if method != "ReBaFL" and len(found[figure]) > 1 else "–"
            for figure in own
        ]
        cells = [spread(found[figure], digits) for figure, digits in (("last", 1), ("change", 1))]
        rows.append([method, str(len(found["last"])), printed, *cells, *less])
    head = ["method", "seeds", "paper, 200 rounds", "last ten rounds", "change", "ReBaFL − it, last", "change"]
    return table(head, rows)


def varied() -> str:
    """Figures 9 and 10: FedAvg and ReBaFL where one thing is varied."""
    found = dict.fromkeys(row["condition"] for row in raw("rebafl-cifar")["rows"])
    names = [name for name in found if name.endswith(("epochs", "rounds"))]
    order = sorted(
        names, key=lambda name: (name.endswith("rounds"), [int(part) for part in name.split() if part.isdigit()])
    )
    rows = []
    for name in order:
        pairs = [
            (of_condition(name, "FedAvg", figure), of_condition(name, "ReBaFL", figure))
            for figure in ("last", "change")
        ]
        if not all(len(set(one) & set(other)) > 1 for one, other in pairs):  # no interval without a second seed
            continue
        cells = [spread(one, 1) for pair in pairs for one in pair]
        less = [interval(other, one) for one, other in pairs]
        shown = name.replace("1 local epochs", "1 local epoch")
        rows.append([shown, str(len(pairs[0][0])), cells[0], cells[1], less[0], cells[2], cells[3], less[1]])
    head = ["", "seeds", "FedAvg, last", "ReBaFL, last", "difference", "FedAvg, change", "ReBaFL, change", "difference"]
    return table(head, rows)


STATIONS = (30, 60, 100, 150, 200)
"""Rounds after which the long runs are compared."""


def over_rounds(name: str = "rebafl-rounds") -> str:
    """The long runs as if each had ended earlier, as far as all of them have come."""
    rows = [row for row in raw(name)["rows"] if row["method"] in LONG]
    reached = min(len(row["accuracy"]) for row in rows)
    made = []
    for rounds in (station for station in STATIONS if station <= reached):
        last = {method: of_curve(rows, rounds, method, "last") for method in LONG}
        change = {method: of_curve(rows, rounds, method, "change") for method in LONG}
        less = [interval(values["ReBaFL"], values[other]) for values in (last, change) for other in LONG[:2]]
        made.append([str(rounds), *(spread(values, 1) for values in last.values()), *less])
    head = ["rounds", *LONG, "ReBaFL − FedAvg", "ReBaFL − FedDyn", "change, − FedAvg", "change, − FedDyn"]
    return table(head, made)


ALL_IMAGES = "rebafl-all-images"
TWO = ("FedDyn", "ReBaFL")
CLIPPED = "FedDyn clipped"
"""FedDyn as its authors' code has it, which bounds the gradient of a step."""
OF_PARTS = (("R-BSM only", "FedAvg"), ("F-Aug only", "FedAvg"), ("ReBaFL", "R-BSM only"), ("ReBaFL", "F-Aug only"))


def _with_seeds(values: BySeed) -> str:
    return f"{spread(values, 1)} ({', '.join(f'{value:.1f}' for value in values.values())})"


def all_images(rival: str = "FedDyn") -> str:
    """``rival`` and ReBaFL with all images, as if each run had ended earlier, as far as all have come."""
    rows, made = raw(ALL_IMAGES)["rows"], []
    reached = min(len(row["accuracy"]) for row in rows)
    for rounds in (*(station for station in STATIONS if station < reached), reached):
        last, change = (
            [of_curve(rows, rounds, method, figure) for method in (rival, "ReBaFL")] for figure in BOTH_FIGURES
        )
        less = interval(last[1], last[0])
        made.append(
            [
                str(rounds),
                *map(_with_seeds, last),
                less,
                *(spread(values, 1) for values in change),
                interval(change[1], change[0]),
            ]
        )
    head = ["rounds", rival, "ReBaFL", f"ReBaFL − {rival}", f"change, {rival}", "change, ReBaFL", "difference"]
    return table(head, made)


def others_with_all_images(name: str = ALL_IMAGES) -> list[str]:
    """The rivals besides FedAvg and FedDyn of which several seeds were run, in the order of Table I."""
    seeds = Counter(row["method"] for row in raw(name)["rows"])
    return [one for one in (*TABLE_ONE, CLIPPED) if seeds[one] > 1 and one not in (REFERENCE, *TWO)]


def all_images_beside_others(name: str = ALL_IMAGES, printed: Mapping[str, str] = TABLE_ONE) -> str:
    """The other rivals with all images after all rounds, beside what the paper has ``printed``."""
    rows, made = raw(name)["rows"], []
    for method in others_with_all_images(name):
        last, change = (of_curve(rows, FIFTIES[-1][1], method, figure) for figure in BOTH_FIGURES)
        more, less = (
            interval(of_curve(rows, FIFTIES[-1][1], "ReBaFL", figure), own)
            for figure, own in zip(BOTH_FIGURES, (last, change), strict=True)
        )
        fifty = interval(of_fifty("ReBaFL", *FIFTIES[-1], name), of_fifty(method, *FIFTIES[-1], name))
        made.append(
            [method, printed[method.partition(" ")[0]], _with_seeds(last), more, fifty, spread(change, 1), less]
        )
    return table(["rival", "the paper", "last ten", "ReBaFL − it", "last fifty", "change", "ReBaFL − it"], made)


FIFTIES = ((0, 50), (50, 100), (100, 150), (150, 200))


def of_fifty(method: str, first: int, last: int, name: str = ALL_IMAGES) -> BySeed:
    """Mean accuracy of a method with all images over rounds ``first`` + 1 to ``last`` by seed, in points."""
    rows = [row for row in raw(name)["rows"] if row["method"] == method]
    return {row["seed"]: 100 * statistics.mean(row["accuracy"][first:last]) for row in rows}


def fifties(name: str = ALL_IMAGES, methods: Sequence[str] = TWO) -> str:
    """The same as means over fifty rounds; ReBaFL comes last of the ``methods``."""
    made = []
    for first, last in FIFTIES:
        *others, own = (of_fifty(method, first, last, name) for method in methods)
        less = [interval(own, other) for other in others]
        made.append([f"{first + 1} to {last}", *map(_with_seeds, (*others, own)), *less])
    return table(["rounds", *methods, *(f"ReBaFL − {other}" for other in methods[:-1])], made)


def whole_runs() -> Iterator[tuple[str, str]]:
    """All images, and the parts over all rounds."""
    rows = raw(ALL_IMAGES)["rows"]
    reached = min(len(row["accuracy"]) for row in rows)
    for rounds, figure in product((50, 100, reached), BOTH_FIGURES):
        pair = (of_curve(rows, rounds, method, figure) for method in reversed(TWO))
        yield f"all images, {figure}, {rounds} rounds: ReBaFL − FedDyn", interval(*pair)
    for first, last in FIFTIES:
        pair = (of_fifty(method, first, last) for method in reversed(TWO))
        yield f"all images, rounds {first + 1} to {last}: ReBaFL − FedDyn", interval(*pair)
    for rounds, figure in product((50, 100, reached), BOTH_FIGURES):
        pair = (of_curve(rows, rounds, method, figure) for method in ("ReBaFL", REFERENCE))
        yield f"all images, {figure}, {rounds} rounds: ReBaFL − FedAvg", interval(*pair)
    for first, last in FIFTIES:
        pair = (of_fifty(method, first, last) for method in ("ReBaFL", REFERENCE))
        yield f"all images, rounds {first + 1} to {last}: ReBaFL − FedAvg", interval(*pair)
    for method in others_with_all_images():
        for rounds, figure in product((100, reached), BOTH_FIGURES):
            pair = (of_curve(rows, rounds, one, figure) for one in ("ReBaFL", method))
            yield f"all images, {figure}, {rounds} rounds: ReBaFL − {method}", interval(*pair)
        fifty = (of_fifty(one, *FIFTIES[-1]) for one in ("ReBaFL", method))
        yield f"all images, the last fifty rounds: ReBaFL − {method}", interval(*fifty)
    for figure in BOTH_FIGURES:
        pair = (of_curve(rows, reached, method, figure) for method in (CLIPPED, "FedDyn"))
        yield f"all images, {figure}, {reached} rounds: {CLIPPED} − FedDyn", interval(*pair)
    fifty = (of_fifty(method, *FIFTIES[-1]) for method in (CLIPPED, "FedDyn"))
    yield f"all images, the last fifty rounds: {CLIPPED} − FedDyn", interval(*fifty)
    fifty_rows = raw(FIFTY_ALL)["rows"]
    for other in (*LONG[:2], *others_with_all_images(FIFTY_ALL)):
        for rounds, figure in product((50, 100, 200), BOTH_FIGURES):
            pair = (of_curve(fifty_rows, rounds, one, figure) for one in ("ReBaFL", other))
            yield f"50 clients, {figure}, {rounds} rounds: ReBaFL − {other}", interval(*pair)
        for first, last in FIFTIES:
            pair = (of_fifty(one, first, last, FIFTY_ALL) for one in ("ReBaFL", other))
            yield f"50 clients, rounds {first + 1} to {last}: ReBaFL − {other}", interval(*pair)
    for figure in BOTH_FIGURES:
        pair = (of_curve(fifty_rows, 200, method, figure) for method in (CLIPPED, "FedDyn"))
        yield f"50 clients, {figure}, 200 rounds: {CLIPPED} − FedDyn", interval(*pair)
    for (one, other), figure in product(OF_PARTS, BOTH_FIGURES):
        yield f"parts, {figure}: {one} − {other}", interval(of_part(one, figure), of_part(other, figure))
        with_fifty = (WITH_FIFTY(method, figure) for method in (one, other))
        yield f"50 clients, parts, {figure}: {one} − {other}", interval(*with_fifty)
    for other, figure in product(("FedAvg", "ReBaFL"), BOTH_FIGURES):
        with_fifty = (WITH_FIFTY(method, figure) for method in ("FedAvg-FT", other))
        yield f"50 clients, {figure}: FedAvg-FT − {other}", interval(*with_fifty)
    for one, other in ((BALANCED, REFERENCE), ("F-Aug only", REFERENCE), (BOTH, BALANCED), (BOTH, REFERENCE)):
        own = [of_variant(variant, "diversity", PARTS) for variant in (one, other)]
        yield f"diversity, 200 rounds: {one} − {other}", interval(*own, 3)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "rebafl-figures": {
        "heads": heads,
        "tuned, Fashion-MNIST": partial(heads, TUNED_IMAGES),
        "diversity": diversity,
        "diversity, 200 rounds": partial(diversity, PARTS),
        "settings": settings,
    },
    "rebafl-cifar10": {
        "Table I": partial(beside, "two classes", PAPER),
        "clustered": partial(beside, "clustered", CLUSTERED),
        "varied": varied,
    },
    "rebafl": {"Table I": table_one},
    "rebafl-all-images": {
        "all images": all_images,
        "all images, FedAvg": partial(all_images, REFERENCE),
        "by fifty rounds": fifties,
        "all images, other rivals": all_images_beside_others,
        "parts": parts,
    },
    "rebafl-rounds": {
        "over rounds": over_rounds,
        "Table I, twenty": partial(table_one, TABLE_ONE, ("rebafl-rounds",)),
        "over rounds, fifty": partial(over_rounds, "rebafl-fifty"),
        "Table I, fifty": partial(table_one, FIFTY, ("rebafl-fifty",)),
        "fifty, all images": partial(over_rounds, FIFTY_ALL),
        "fifty, all images, by fifty rounds": partial(fifties, FIFTY_ALL, LONG),
        "fifty, all images, other rivals": partial(all_images_beside_others, FIFTY_ALL, FIFTY),
        "fifty, all images, its parts": partial(parts, WITH_FIFTY, ("FedAvg", "FedAvg-FT", *METHODS[1:])),
    },
}
