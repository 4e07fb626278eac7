"""A violation is reduced to a small experiment that still shows it, and a file of it runs again."""

from itertools import count

from audits.fuzz.__main__ import main
from audits.fuzz.drawing import draw
from audits.fuzz.exact import check
from audits.fuzz.experiment import Experiment, Resume
from audits.fuzz.shrink import shrink
from tests.claims.planted.catalogue import INSIDE
from tests.claims.planted.inside import changed


def test_an_experiment_is_what_its_file_says():
    for number in range(200):
        experiment = draw(3, number)
        assert Experiment.from_json(experiment.to_json()) == experiment
    interrupted = Experiment(resume=Resume(2, False, "lost key"))
    assert Experiment.from_json(interrupted.to_json()) == interrupted


def test_a_violation_is_reduced_to_what_it_needs(tmp_path, capsys):
    changes, like = INSIDE["half the noise on updates"]
    long = (one for one in (draw(7, n) for n in count()) if like(one) and len(one.update) > 2)
    with changed(changes):
        drawn = next(one for one in long if any(found.kind == "sensitivity" for found in check(one).violations))
        small = shrink(drawn, "sensitivity")
        file = tmp_path / "small.json"
        file.write_text(small.to_json())
        assert main(["--rerun", str(file)]) == 1
    assert "sensitivity" in capsys.readouterr().out
    assert [link["name"] for link in small.update][-1] == "gaussian-noise"
    assert len(small.update) == 2
    assert small.rounds == 1
    assert len(small.data.rows) == 1
    assert main(["--rerun", str(file)]) == 0
