"""What a study costs beside its runs: 48 small runs, alone and as a study, and a finished study once more.

    python benchmarks/study.py --out benchmarks/results/study.json

Alone means: one after the other in one warm process, each trained into a directory of its own and nothing else. The
machinery is what the study takes beyond that on the processor, with and without what the starts of its processes take:
loading torch and privfl (the command itself, and one process that the others are forks of). Time on the clock is
recorded as well, and says little on a machine that has other work.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from privfl.study.file import Study

ROOT = Path(__file__).resolve().parents[1]
FILE = """
rounds = {rounds}
evaluate_every = 5
workers = 1
[dataset]
name = "digits"
[partition]
name = "dirichlet"
clients = 20
alpha = 1.0
[model]
name = "logistic"
[training]
learning_rate = 0.5
batch_size = 18
[privacy.training]
sample_rate = 0.25
[study]
seeds = {seeds}
epsilon = [inf, 8, 3, 1]
[[study.variant]]
name = "FedAvg"
algorithm = {{name = "fedavg", weighting = "uniform"}}
[[study.variant]]
name = "FedProx"
algorithm = {{name = "fedprox", weighting = "uniform"}}
[[study.variant]]
name = "Ditto"
algorithm = {{name = "ditto", weighting = "uniform"}}
"""


def alone(study: Study, folder: Path) -> dict[str, float]:
    """Seconds of the clock and of the processor that the runs take in one warm process, each in a folder of its own."""
    from privfl.experiment import Experiment

    points = study.points()
    Experiment.from_dict({**points[0].settings, "rounds": 1}).run()  # whatever is loaded once
    began, used = time.perf_counter(), time.process_time()
    for number, point in enumerate(points):
        Experiment.from_dict(point.settings).run(folder / str(number))
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}


def command(file: Path, store: Path, processes: int) -> dict[str, float]:
    """Seconds of the clock and of the processor that ``privfl study run`` takes, its processes included."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = ["study", "run", str(file), "--out", str(store), "--processes", str(processes)]
    subprocess.run([sys.executable, "-m", "privfl", *words], check=True, capture_output=True, cwd=ROOT)
    seconds = time.perf_counter() - began
    wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def adopt_orphans() -> None:
    """Have processes whose parent ends become this one's children, so that their time is counted (Linux)."""
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this system does not hand orphans over, so their time cannot be measured")


def wait_for_orphans() -> None:
    """Wait until all children have ended."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def start() -> dict[str, float]:
    """Seconds that a process takes to load what every run needs."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", "import privfl.study.execution, privfl.study.members"], check=True, cwd=ROOT)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def measure(rounds: int, seeds: int, processes: int) -> dict[str, Any]:
    """All figures, with the load of the machine before and after."""
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "small.toml"
        file.write_text(FILE.format(rounds=rounds, seeds=seeds), encoding="utf-8")
        study = Study.from_toml(file)
        load = [os.getloadavg()[0]]
        starting = start()
        by_themselves = alone(study, Path(folder) / "alone")
        as_study = command(file, Path(folder) / "store", processes)
        again = command(file, Path(folder) / "store", processes)
        load.append(os.getloadavg()[0])
    starts = (2 if processes > 1 else 1) * starting["processor"]
    beside = as_study["processor"] - by_themselves["processor"]
    return {
        "runs": len(study.points()),
        "rounds": rounds,
        "processes": processes,
        "cores": os.cpu_count(),
        "load": load,
        "start": starting,
        "alone": by_themselves,
        "study": as_study,
        "finished study again": again,
        "machinery share, starts included": beside / by_themselves["processor"],
        "machinery share, without starts": (beside - starts) / by_themselves["processor"],
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4, help="12 runs each")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    found = measure(options.rounds, options.seeds, options.processes)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
