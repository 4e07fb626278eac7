"""The study of client-level noise runs in its small form, goes on where it stopped, and agrees with dp_accounting."""

import json
from pathlib import Path

import pytest

from tests.programs import python

EXAMPLE = Path(__file__).parents[2] / "examples" / "client_level.py"


def study(out):
    done = python(EXAMPLE, "--out", out, "--small")
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((out / "results.json").read_text())


def test_the_small_study_states_what_dp_accounting_computes_and_goes_on_where_it_stopped(tmp_path):
    _, rows = study(tmp_path)
    for row in rows:
        server, public = row["epsilon"]["client/server"], row["epsilon"]["client/public"]
        assert server == (float("inf") if row["noise"] == "central" else public)
        if row["method"] == "FedAvg":  # FedSampling's clients answer with their sizes besides
            assert public == pytest.approx(row["dp_accounting"], rel=1e-4)
        else:
            assert public > row["dp_accounting"]
    (tmp_path / "results.json").write_text(json.dumps(rows[:-1]))
    printed, again = study(tmp_path)
    assert [row["epsilon"] for row in again] == [row["epsilon"] for row in rows]
    assert printed.count(" seed ") == 1
    assert "| FedAvg | 20 | central | ∞ |" in printed
