"""The study of first layers runs in its small form: batches and sums come back, and what is done is kept."""

import json
from pathlib import Path

from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "attack_first_layer.py"


def test_the_small_study_reads_batches_and_sums_of_digits(tmp_path):
    done = python(SCRIPT, "--small", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "results.json").read_text())
    rounds = cells.pop("rounds 4, noise 0.1, wiener")
    assert list(cells) == ["spear, B = 4", "spear, sum of ten, clipped to 0.1", "imprint, sum of ten"]
    for cell, least in zip(cells.values(), (8, 10, 8), strict=True):
        assert cell["images above 30 dB"] >= least
        assert cell["median psnr"] > cell["best null"] + 20
    assert cells["imprint, sum of ten"]["parallel units"] == 1
    assert cells["imprint, sum of ten"]["parallel units, honest"] == 0
    assert (rounds["rounds"], rounds["labels right"]) == (4, 4)
    assert rounds["epsilon"] > 280, "four noisy rounds of one image are composed"
    assert rounds["gain"]["high"] > 0, "an estimate that knows the noise is not below its null"
