"""What a table shows of a run is what its directory holds now, or nothing is claimed for it."""

import math
import shutil

import privfl as pf
from privfl.experiment import Experiment
from privfl.study.results import Results
from privfl.study.store import CELLS, Store
from privfl.study.tables import Format, write_table
from privfl.study.tuning import Tuning
from tests.study.stores import small


def shown(out) -> float:
    return Results.of(Store(out), "t").members[0].metrics["epsilon sample/public"]


def went_on(out, settings: dict, run: str, rounds: int) -> float:
    """What ``run`` claims after so many rounds."""
    ended = Experiment.from_dict({**settings, "rounds": rounds}).run(out / "runs" / run, resume=True)
    return ended.statement.cell("sample", "public").epsilon


def test_a_run_that_went_on_is_shown_with_what_it_has_spent_by_now(tmp_path):
    base = small(tmp_path)
    (run,) = pf.Study(base, title="t").run(tmp_path / "out", processes=1).members
    after = went_on(tmp_path / "out", {**base, "seed": 0}, run.run, 8)
    assert after > run.metrics["epsilon sample/public"] + 0.1
    assert shown(tmp_path / "out") == after
    assert pf.Study(base, title="t").run(tmp_path / "out", processes=1).members[0].metrics["rounds"] == 8


def test_a_tuned_run_that_went_on_is_priced_anew_together_with_its_tuning(tmp_path):
    base = small(tmp_path)
    study = pf.Study(
        base, title="t", metric="test_accuracy", tuning=Tuning("training.momentum", (0.0, 0.1), choice_epsilon=0.5)
    )
    (run,) = study.run(tmp_path / "out", processes=1).members
    settings = Experiment.of_run(tmp_path / "out" / "runs" / run.run).to_dict()
    alone = went_on(tmp_path / "out", settings, run.run, 8)
    assert shown(tmp_path / "out") > max(alone, run.metrics["epsilon sample/public"]) + 0.1


def test_for_a_run_whose_directory_is_gone_nothing_is_claimed(tmp_path):
    study = pf.Study(small(tmp_path), title="t", seeds=2)
    run, other = study.run(tmp_path / "out", processes=1).members
    shutil.rmtree(tmp_path / "out" / "runs" / run.run)
    found = Results.of(Store(tmp_path / "out"), "t")
    assert {found.members[0].metrics[f"epsilon {cell}"] for cell in CELLS} == {math.inf}
    assert found.members[1].metrics == other.metrics
    assert "Nothing is claimed (∞) for 1 of the runs: their directories were removed" in write_table(found, Format.text)
