"""FedEvg's study runs in its small form, keeps what is finished, and draws."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "papers" / "fedevg.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fedevg")


def run(folder):
    return python(SCRIPT, "--small", "--out", folder)


def test_the_small_study_measures_draws_and_goes_on_where_it_stopped(folder):
    done = run(folder)
    assert done.returncode == 0, done.stderr
    store = json.loads((folder / "results.json").read_text())
    assert [row["name"] for row in store["rows"]] == ["1.0:signed", "0.01:exact", "1.0:fedcvae", "0.01:fedcgan"]
    assert set(store["references"]) == {"real images", "noise", "FedAvg 1.0", "FedAvg 0.01"}
    assert "that no client holds" in store["features"]
    for row in store["rows"]:
        assert 0 <= row["test_accuracy"] <= 1
        assert row["fid"] > store["references"]["real images"]["fid"], "three rounds do not beat real images"
        drawn = row["name"].endswith(("fedcvae", "fedcgan"))
        assert drawn == ("accuracy_of_more" in row) == ("saturated_pixels" not in row)
        assert drawn or len(row["saturated_pixels"]) == len(row["pull_norm"]) == 3
        assert sum(map(sum, row["label_counts"])) == 300
        assert row["epsilon"] == "inf"
        name = row["name"].replace(":", "-")
        with np.load(folder / f"synthetic-{name}.npz", allow_pickle=False) as stored:
            assert stored["images"].shape == (20, 1, 8, 8)
            assert np.bincount(stored["labels"]).tolist() == [2] * 10
        for figure in ("curves", f"evolution-{name}", f"sheet-{name}"):
            assert (folder / f"{figure}.png").stat().st_size > 3000
    again = run(folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout == "", "nothing is trained twice"
    assert json.loads((folder / "results.json").read_text()) == store
