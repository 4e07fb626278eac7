"""The benchmarks run; what they say about speed is not a test's business."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


@pytest.mark.slow
def test_the_benchmark_command_writes_json_markdown_and_a_figure(tmp_path):
    command = [sys.executable, str(RUN), "--quick", "--only", "statement", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    rows = json.loads((tmp_path / "latest.json").read_text())["rows"]
    assert [row["benchmark"] for row in rows] == ["statement", "statement"]
    assert all(row["met"] for row in rows)
    assert (tmp_path / "latest.md").read_text().count("| ≤ 10.0 |") == 2
    assert (tmp_path / "latest.png").stat().st_size > 1000
