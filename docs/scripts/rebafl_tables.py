"""The tables of `docs/results/rebafl-figures.md`, from the curves of `examples/papers/rebafl_figures.py`."""

from __future__ import annotations

from collections.abc import Callable

from tables import spread, table
from verdict_intervals import interval, of_variant, raw

REFERENCE, BALANCED, BOTH = "FedAvg", "R-BSM only, epsilon = 0.01", "ReBaFL, μ = 0.1"
ORDER = (REFERENCE, "F-Aug only", BALANCED, BOTH)


def diversity() -> str:
    """Figure 7 as numbers: Λ in the second half of the run."""
    rows = []
    for variant in ORDER:
        own = of_variant(variant, "diversity")
        others = [interval(own, of_variant(other, "diversity"), 3) for other in (REFERENCE, BALANCED)]
        shown = [text if variant != other else "–" for text, other in zip(others, (REFERENCE, BALANCED), strict=True)]
        rows.append([variant, spread(own, 3), *shown, spread(of_variant(variant, "last"), 1)])
    return table(["", "Λ, rounds 11 to 20", "− FedAvg", "− R-BSM only", "accuracy, last ten rounds"], rows)


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


TABLES: dict[str, dict[str, Callable[[], str]]] = {"rebafl-figures": {"diversity": diversity, "settings": settings}}
