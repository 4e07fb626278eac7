"""The example that audits DP-SGD, in small form."""

import json
from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).parents[2]


def test_the_example_audits_honest_and_broken_runs(tmp_path):
    done = python("examples/audit_dpsgd.py", "--out", tmp_path, "--small")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "audits.json").read_text())
    assert len(rows) == 2 * 4 + 2
    names = [row["name"] for row in rows[:4]]
    assert names == ["one run", "one run, f-DP", "trials of one run", "two worlds"]
    assert all(bound["confidence"] == pytest.approx(0.95) for row in rows[:8] for bound in row["bounds"])
    broken = {row["setting"]: row for row in rows[8:]}
    assert set(broken) == {"half the noise", "everybody in every batch"}
