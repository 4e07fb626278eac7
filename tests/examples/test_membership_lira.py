"""The membership study runs in its small form, keeps what is finished, and stays under the private run's ceiling."""

import json
from pathlib import Path

import pytest

from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "membership_lira.py"


def run(folder):
    return python(SCRIPT, "--small", "--out", folder)


@pytest.mark.slow
def test_the_small_study_attacks_three_victims_and_goes_on_where_it_stopped(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    store = json.loads((tmp_path / "results.json").read_text())
    found = {(row["victim"], row["name"]): row for row in store["rows"]}
    assert len(found) == 3 * 7 + 2 * 5 + 2
    for (victim, name), row in found.items():
        assert row["metrics"]["auc"]["low"] <= row["metrics"]["auc"]["value"] <= row["metrics"]["auc"]["high"]
        assert set(row["nulls"]) > {"chance"}, "chance and one null that is scored"
        assert row["seconds_per_unit"] > 0
        if victim == "DP-SGD":
            assert row["metrics"]["auc"]["low"] <= store["ceiling"]["auc"], name
    assert 0 < store["victims"]["DP-SGD"]["epsilon"] <= 8
    for figure in ("membership-roc.png", "membership-rates.png"):
        assert (tmp_path / figure).stat().st_size > 20_000
    assert (tmp_path / "table.md").read_text(encoding="utf-8").count("\n") == 2 + len(found)
    again = run(tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == "", "nothing is attacked twice"
