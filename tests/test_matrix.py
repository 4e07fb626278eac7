"""The page of tested versions: it is that of its results, and these are of the ranges that pyproject.toml has today."""

import json

import pytest

from tests import matrix


@pytest.fixture
def results():
    return json.loads(matrix.RAW.read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_results(results):
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(results)


def test_the_ranges_are_those_that_passed(results):
    assert {"lowest", "newest"} == {one["resolution"] for one in results}
    for one in results:
        assert one["passed"] > 100
        assert one["failed"] == 0
        assert one["ranges"] == matrix.ranges(), "a range has changed: run make matrix"


def test_what_pytest_says_is_read():
    said = (
        "tests/test_one.py:3 1 passed over in silence\n1 failed, 12 passed, 2 skipped, 3 warnings in 61.20s (0:01:01)\n"
    )
    for after in ("", "nanobind: leaked 4 instances!\nThis is an error in the binding code.\n"):
        outcomes = ("passed", "failed", "skipped", "error")
        assert [matrix.counted(said + after, name) for name in outcomes] == [12, 1, 2, 0]
    assert matrix.counted("", "passed") == 0


def test_an_interpreter_that_is_none_is_refused_by_name(tmp_path):
    with pytest.raises(SystemExit, match="no-such-python is no Python"):
        matrix.interpreters([str(tmp_path / "no-such-python")])
