"""The study of prototypes: nobody shares an image, its small form attacks, keeps what is finished and draws."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "attack_prototypes.py"


@pytest.fixture(scope="module")
def study():
    before = list(sys.path)
    sys.path.insert(0, str(SCRIPT.parent))  # as it is when the script is run: its figures are a file beside it
    spec = importlib.util.spec_from_file_location("prototype_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    sys.path[:] = before


def test_the_full_study_has_the_papers_counts_on_both_datasets(study):
    assert [plan.dataset for plan in study.FULL] == ["cifar10", "fashion-mnist"]
    assert all(list(plan.holders) == [1, 2, 5, 20, 100, 500] for plan in study.FULL)


def test_victims_background_and_public_share_no_image(study):
    world = study.federation(study.SMALL)
    held = torch.cat(world.rows)
    assert len(held) == len(held.unique())
    for count, clients in world.victims.items():
        for client in clients:
            found = torch.bincount(world.dataset.targets[world.rows[client]], minlength=10)
            assert found.tolist() == [count] * 10
    assert torch.bincount(world.public.targets).tolist() == [study.SMALL.public] * 10
    own = {tuple(image.flatten().tolist()) for image in world.dataset.inputs[held]}
    shared = sum(tuple(image.flatten().tolist()) in own for image in world.public.inputs)
    assert shared == 0, "digits has no duplicates, so an image in both would be the same row"


def test_the_small_study_attacks_draws_and_keeps_what_is_done(study, tmp_path):
    done = python(SCRIPT, "--small", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "results.json").read_text())["digits"]
    assert set(row["inversion"]) == set(row["tracing"]) == {"1", "5", "20"}
    for methods in row["inversion"].values():
        assert set(methods) == set(study.METHODS)
        for found in methods.values():
            assert set(found["nulls"]) == {"mean image", "class mean", "random image", "others' prototype"}
    single = row["inversion"]["1"]["direct"]
    assert single["gain_over_others"]["low"] > 0, "two-nn's features of one digit give it away"
    assert 0 <= single["identified"]["pixels"] <= 1
    assert row["tracing"]["1"]["metrics"]["auc"]["value"] > 0.9
    assert row["tracing"]["1"]["members"] == 20
    assert row["sanity"]["upcnn"] > row["sanity"]["mean image"] + 3
    assert all(found["seconds_per_image"] > 0 for found in row["inversion"]["5"].values())
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("sheet-digits.png", "leakage.png"))

    lost = row["tracing"].pop("5")
    (tmp_path / "results.json").write_text(json.dumps({"digits": row}))
    again = study.study(study.SMALL, tmp_path)["digits"]
    assert again["tracing"]["5"]["metrics"] == lost["metrics"]
    assert again["inversion"] == row["inversion"]
