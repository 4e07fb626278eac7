"""The study of first layers runs in its small form: batches and sums come back, and what is done is kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "attack_first_layer.py"


def test_the_small_study_reads_batches_and_sums_of_digits(tmp_path):
    command = [sys.executable, str(SCRIPT), "--small", "--out", str(tmp_path)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=threads)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "results.json").read_text())
    assert list(cells) == ["spear, B = 4", "spear, sum of ten, clipped to 0.1", "imprint, sum of ten"]
    for cell, least in zip(cells.values(), (8, 10, 8), strict=True):
        assert cell["images above 30 dB"] >= least
        assert cell["median psnr"] > cell["best null"] + 20
    assert cells["imprint, sum of ten"]["parallel units"] == 1
    assert cells["imprint, sum of ten"]["parallel units, honest"] == 0
