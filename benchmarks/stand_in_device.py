"""Every algorithm on the stand-in CUDA device, by both engines, with and without DP-SGD, held to the CPU's numbers.

``python benchmarks/stand_in_device.py`` trains one round of each of them and writes, for each, whether it agrees, its
kernel launches and the times that the host waited for the device; then those of one step of stacks of 10 and 50
clients, the noise apart: for a network that gives its gradients itself, for one that is no such sequence, and where
gradients of single rows do not fit. To ``benchmarks/results/stand-in-device.json``.

The stand-in makes noise operation by operation, as a device without Triton. Where Triton is installed, a process of its
own runs Triton's kernel by the interpreter, compares its bits with the host's and counts its launches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests know the device

from privfl.privacy.clipping import whole_rows
from privfl.privacy.noise import fused
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_
from tests.device.cases import CASES, compare, small_task
from tests.device.stand_in import CUDA, stand_in_cuda
from tests.device.test_budgets import LAUNCHES, NETWORKS, NOISY, a_step, cnn, of_noise

RESULT = Path(__file__).parent / "results" / "stand-in-device.json"


def by_kernel() -> int | None:
    """Launches of the noise of a step by Triton's kernel, in a process that interprets it; ``None`` without Triton."""
    if find_spec("triton") is None:
        return None
    command = [sys.executable, __file__, "--noise-of-a-step"]
    asked = {**os.environ, "TRITON_INTERPRET": "1"}
    return int(subprocess.run(command, env=asked, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


def noise_of_a_step() -> int:
    """The same, of three clients, in that process: the interpreter takes a second for each."""
    with stand_in_cuda() as counts:
        if not fused.gives_the_bits_of_the_host(CUDA):
            raise SystemExit(fused.why_not(CUDA) or "Triton is not asked to interpret its kernels")
        rows = torch.zeros(3, sum(one.numel() for one in cnn(0).parameters()), device=CUDA)
        counts.reset()
        add_gaussian_rows_([NoiseStream(bytes([client]) * 32) for client in range(3)], rows, [1.0, 1.0, 1.0])
        return of_noise(counts.launches)


def main() -> int:
    """Run all cases; the exit status says whether all agree."""
    parser = argparse.ArgumentParser(description="every algorithm on the stand-in CUDA device")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--noise-of-a-step", action="store_true", help="print the launches of Triton's noise alone")
    asked = parser.parse_args()
    if asked.noise_of_a_step:
        print(noise_of_a_step())
        return 0
    task, rows, began = small_task(), [], time.thread_time()
    for algorithm, engine, private in CASES:
        row = {"algorithm": algorithm, "engine": engine, "dp-sgd": private}
        try:
            counts = compare(task, algorithm, engine, private)
            row |= {"agrees": True, "launches": counts.launches.total(), "waits": counts.waits.total()}
        except Exception as error:
            row |= {"agrees": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    agree = sum(row["agrees"] for row in rows)
    print(f"{agree} of {len(rows)} agree")
    steps = []
    for kind in LAUNCHES:
        mechanism, _, how = kind.partition(", ")
        private, network = mechanism == "dp-sgd", NETWORKS.get(how, cnn)
        for clients in (10, 50):
            with mock.patch.object(whole_rows, "LARGEST", 0 if how == "too large" else whole_rows.LARGEST):
                step, waits = a_step(clients, NOISY if private else None, network)
            noise = of_noise(step)
            row = {"step": kind, "clients": clients, "dp-sgd": private, "launches": step.total() - noise}
            steps.append(row | {"launches of noise": noise, "waits": waits.total()})
            print(json.dumps(steps[-1]), flush=True)
    record = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_seconds": round(time.thread_time() - began),
        "agree": agree,
        "steps": steps,
        "launches of noise by Triton's kernel": by_kernel(),
        "rows": rows,
    }
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if agree == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
