"""How long commands take from the prompt to the prompt: fresh processes, the least of several, wall and CPU seconds.

    python benchmarks/starts.py --out benchmarks/results/starts.json
    python benchmarks/starts.py --checkout ../older    # the same commands of another checkout

Commands that a checkout does not have are left out. The least is shown because other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNTIL_IT_TRAINS = """
import sys
import privfl.simulation.simulation as simulation
simulation.run = lambda *given: sys.exit(0)  # called with an engine that has been built, before the first round
sys.argv = ["privfl", "run", {file!r}, "--out", "run"]
from privfl.cli import main
main()
"""
COMMANDS = {
    "import privfl": ["-c", "import privfl"],
    "python": ["-c", "pass"],
    **{
        f"privfl {line}": ["-m", "privfl", *line.split()]
        for line in (
            "--help",
            "--version",
            "account epsilon --noise-multiplier 1.0 --sample-rate 0.01 --steps 1000",
            "account noise --target-epsilon 3 --sample-rate 0.01 --steps 1000",
            "account response --epsilon 0.5 --domain 10 --answers 20",
            *(f"list {kind}" for kind in ("algorithms", "mechanisms", "datasets", "models", "partitions")),
            "list attacks",
            "list audits",
            "schema study",
        )
    },
    **{
        f"privfl run {file}, until it trains": ["-c", UNTIL_IT_TRAINS.format(file=str(ROOT / "examples" / file))]
        for file in ("digits_fedavg.toml", "digits_dpsgd.toml")
    },
}


def least(arguments: list[str], checkout: Path, repeats: int) -> dict[str, float] | None:
    """The least wall and CPU seconds of ``repeats`` fresh processes; ``None`` if the command fails."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    walls, cpus = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True)
            walls.append(time.perf_counter() - began)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            if done.returncode:
                return None
    return {"wall": round(min(walls), 3), "cpu": round(min(cpus), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {}
    for name, arguments in COMMANDS.items():
        found[name] = least(arguments, given.checkout, given.repeats)
        print(f"{name:90} {found[name]}")
    told = {"repeats": given.repeats, "load": os.getloadavg(), "cores": os.cpu_count(), "least seconds": found}
    if given.out:
        given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
