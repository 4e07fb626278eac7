"""What a statement printed and what a distinguisher certified, for every part of ``tests.claims.planted.outside``.

python -m tests.claims.findings --out FILE [--trials N]

One JSON line a part: the verdict of the noise-free check, the smallest ε that is printed, and a lower bound on the true one.
"""

import argparse
import json
import math
from pathlib import Path

from audits.fuzz.exact import cells, check
from audits.fuzz.noisy import measure
from audits.fuzz.tape import Tape
from audits.fuzz.worlds import train
from tests.claims.planted.catalogue import OUTSIDE


def line(name, experiment, trials):
    """The line of one part."""
    first = train(experiment, "with", Tape(), price=True)
    if first.run is None:
        return {
            "part": name,
            "status": "refused" if first.refusal else "crashed",
            "reason": first.refusal or first.crash,
        }
    finite = [cell for cell in cells(first) if cell[0] == experiment.unit] or cells(first)
    if not finite:
        reasons = {
            reason for cell in first.run.statement.cells for reason in cell.reasons if cell.unit == experiment.unit
        }
        return {"part": name, "status": "infinite", "reason": "; ".join(sorted(reasons))}
    verdict = check(experiment)
    found = {
        "part": name,
        "status": verdict.status,
        "reason": "; ".join(sorted({f"{one.kind}: {one.what}" for one in verdict.violations})[:2]) or verdict.reason,
        "printed": min(first.run.statement.cell(*cell).epsilon for cell in finite),
    }
    if verdict.status == "broken" and trials:
        found["certified"] = max(
            (one.certified for one in measure(experiment, trials=trials, false_alarm=1e-6)), default=0.0
        )
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--trials", type=int, default=200)
    given = arguments.parse_args()
    done = {json.loads(text)["part"] for text in given.out.read_text().splitlines()} if given.out.exists() else set()
    for name, experiment in OUTSIDE.items():
        if name in done:
            continue
        found = line(name, experiment, given.trials)
        found = {
            key: ("inf" if isinstance(value, float) and math.isinf(value) else value) for key, value in found.items()
        }
        with given.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)


if __name__ == "__main__":
    main()
