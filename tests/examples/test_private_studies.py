"""What privacy does to the papers' methods: every run on real data is possible, with one rate for all or its own."""

from pathlib import Path

import pytest

from privfl.commands.examine import check
from privfl.study.file import Study

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
METHODS, BUDGETS = 7, 4


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("papers_private", 3),
        ("papers_private_heart", 3),
        ("papers_private_tuned", 8),
        ("papers_private_heart_tuned", 10),
    ],
)
def test_every_run_of_every_method_at_every_budget_is_possible(name, seeds):
    study = Study.from_toml(STUDIES / f"{name}.toml")
    assert len(study.all_seeds) == seeds
    resolved = Study.from_toml(STUDIES / f"{name}.toml", ["study.seeds=1"]).resolve()
    assert [f"{one.point}: {one.problem}" for one in resolved if one.problem] == []
    assert len(resolved) == METHODS * BUDGETS
    check(study, resolved)
