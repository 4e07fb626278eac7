"""AAggFF against uniform FedAvg, q-FedAvg against FedAvg at its step, over many seeds; and the six responses.

    PRIVFL_DATA=… python examples/papers/aaggff_pairs.py --out results/pairs
    PRIVFL_DATA=… python examples/papers/aaggff_pairs.py --out results/many --only fashion     # many clients: AAggFF-D
    python examples/papers/aaggff_pairs.py --out results/small --small       # digits, seconds

The federations of few clients of ``aaggff.py``, on seeds that are not among that study's. Every method meets the same
splits, initial models and batches, so that differences are paired. Each figure is kept after the last round and as its
mean over the evaluations of the second half of the rounds, which single rounds do not move. Every finished run is
written to ``pairs.json`` at once: call the command again after an interruption, or with more seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aaggff import FAIR, FULL, SMALL, Study, rounded, run
from scipy.stats import t as student

import privfl as pf

FIRST = 101
"""The first of the seeds; those of ``aaggff.py`` are 2, 4 and 6."""
CDFS = ("weibull", "exponential", "frechet", "normal", "gumbel", "logistic")
FIGURES = ("client_average", "worst_tenth", "best_tenth", "gini", "parity_gap", "mean_loss", "worst_loss")
RATES = {"berka": 0.3, "questions": 0.91, "fashion": 0.39}
"""Σa/Σh of q-FedAvg, its step beside FedAvg's of the same weights: mean over the rounds of seed 1, which is not
compared. Single rounds of berka go from 0.06 to 0.58, of questions from 0.88 to 0.93, of fashion from 0.07 to 0.57."""


def pairs(name: str, study: Study) -> dict[str, Any]:
    """Label → algorithm of what is paired on a federation."""
    found: dict[str, Any] = {"FedAvg, uniform": pf.FedAvg(weighting="uniform")}
    if study.cohort is None:
        found["AAggFF-S"] = pf.AAggFFS(cdf=study.cdf)
    else:
        base = FAIR["fashion"]["base"]
        found |= {
            "AAggFF-D": pf.AAggFFD(cdf=study.cdf),
            "TERM": pf.TERM(t=FAIR["fashion"]["tilt"], weighting="uniform"),
            "FedMGDA": pf.FedMGDA(epsilon=FAIR["fashion"]["epsilon"]),
            "PropFair": pf.PropFair(base=base, weighting="uniform"),
            # With the margin at M the surrogate is loss/M everywhere: no weights, and shorter steps.
            "PropFair, one slope": pf.PropFair(base=base, margin=base, weighting="uniform"),
        }
    if name in RATES:
        rate = RATES[name]
        found["q-FedAvg"] = pf.QFedAvg(q=FAIR[name]["q"])
        found[f"FedAvg, uniform, server rate {rate:g}"] = pf.FedAvg(weighting="uniform", server_learning_rate=rate)
    return found


def responses(study: Study) -> dict[str, Any]:
    """Label → AAggFF-S with each response function but the one that ``pairs`` has."""
    return {f"AAggFF-S, {cdf}": pf.AAggFFS(cdf=cdf) for cdf in CDFS if cdf != study.cdf}


def summary(curve: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The figures after the last round, and their means over the evaluations of the second half of the rounds."""
    late = [point for point in curve if point["round"] > curve[-1]["round"] / 2]
    return {
        "last": {figure: curve[-1][figure] for figure in FIGURES},
        "settled": {figure: statistics.mean(point[figure] for point in late) for figure in FIGURES},
    }


def differences(rows: list[dict[str, Any]], when: str) -> Iterator[str]:
    """``federation, method − other, figure: mean [low, high], of n``: paired by seed, 95 % by Student's t."""
    cells: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for row in rows:
        cells.setdefault((row["study"], row["method"]), {})[row["seed"]] = row[when]
    for (study, method), one in cells.items():
        step = {"q-FedAvg": "server rate", "PropFair": "one slope"}.get(method)
        alike = (label for name, label in cells if name == study and step is not None and step in label)
        other = cells.get((study, next(alike, "FedAvg, uniform")), {})
        seeds = sorted(set(one) & set(other))
        if one is other or len(seeds) < 2:
            continue
        for figure in FIGURES:
            scale, places = (1, 4) if figure.endswith("loss") else (100, 2)
            each = [scale * (one[seed][figure] - other[seed][figure]) for seed in seeds]
            reach = student.ppf(0.975, len(each) - 1) * statistics.stdev(each) / len(each) ** 0.5
            mean = statistics.mean(each)
            span = f"[{mean - reach:.{places}f}, {mean + reach:.{places}f}]"
            yield f"{study}, {method}, {figure}: {mean:+.{places}f} {span}, of {len(each)}"


def main() -> None:
    """Run what is missing, then print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for pairs.json")
    parser.add_argument("--only", action="append", choices=FULL, help="these federations, not all of few clients")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--responses", action="store_true", help="the other five response functions too")
    parser.add_argument("--small", action="store_true", help="digits, 4 rounds, two seeds: shows that it works")
    options = parser.parse_args()
    every = SMALL if options.small else FULL
    chosen = options.only or [name for name, study in every.items() if study.cohort is None]
    studies = {name: study for name, study in every.items() if name in chosen}
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "pairs.json"
    rows = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    done = {(row["study"], row["method"], row["seed"]) for row in rows}
    for seed in range(FIRST, FIRST + (2 if options.small else options.seeds)):
        for name, study in studies.items():
            compared = pairs(name, study) | (responses(study) if options.responses else {})
            for label, algorithm in compared.items():
                if (name, label, seed) in done:
                    continue
                began = time.process_time()
                found = rounded(summary(run(study, algorithm, seed)["curve"]))
                seconds = round(time.process_time() - began, 1)
                rows.append({"study": name, "method": label, "seed": seed, "seconds": seconds, **found})
                text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
                store.with_suffix(".part").write_text(f'{{"rows": {text}}}\n', encoding="utf-8")
                store.with_suffix(".part").replace(store)
                print(f"{name}, seed {seed}, {label}: {found['settled']} in {seconds} s", flush=True)
    for line in differences(rows, "settled"):
        print(line)


if __name__ == "__main__":
    main()
