"""The six questions that users ask most: every study is possible as it stands, and a small form of one runs."""

from pathlib import Path

import pytest

from privfl.commands.examine import check, examine
from privfl.study.file import Study

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
QUESTIONS = ("skew", "secure_sums", "real_epsilon", "prototypes", "noise_places", "fairness")
SMALL = ("study.seeds=1", "rounds=1", "evaluate_every=1")


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_run_of_a_question_is_possible(name):
    study = Study.from_toml(STUDIES / f"{name}.toml")
    assert len(study.all_seeds) == 3
    resolved = Study.from_toml(STUDIES / f"{name}.toml", SMALL).resolve()
    assert [f"{one.point}: {one.problem}" for one in resolved if one.problem] == []
    check(study, resolved)


def test_a_question_is_answered_in_small_form(tmp_path):
    small = Study.from_toml(STUDIES / "prototypes.toml", [*SMALL, "study.grid.partition.clients=[18]"])
    results = small.run(tmp_path, processes=1, examine=examine, check=check)
    assert [one.state for one in results.members] == ["done", "done"]
    assert all(0 <= one.metrics["attack prototype-tracing auc"] <= 1 for one in results.members)
