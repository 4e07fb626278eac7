"""The study of gradient inversion runs in its small form, recovers its images, keeps what is done and draws."""

import json
from pathlib import Path

from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "attack_gradients.py"


def test_the_small_study_recovers_single_digits_and_draws(tmp_path):
    done = python(SCRIPT, "--small", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "gradients.json").read_text())
    assert rows.pop("digits, idlg, ±0.5, labels of single images")["right"] == 20
    assert list(rows) == ["digits, idlg, ±0.5", "digits, inverting-gradients, ±0.5"]
    assert min(rows["digits, idlg, ±0.5"]["psnr"]) > 40
    for row in rows.values():
        assert row["right_labels"] == 2
        assert set(row["nulls"]) == {"mean image", "class mean", "random image", "others' update"}
        assert sum(row["psnr"]) > max(map(sum, row["nulls"].values()))
        assert row["seconds_per_image"] > 0
    assert (tmp_path / "gradients-digits.png").stat().st_size > 3000
