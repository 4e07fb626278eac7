"""The order in which several processes run the suite."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.order import LONGEST, dealt

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Test:
    nodeid: str
    __test__ = False


TESTS = [Test(f"tests/a.py::test_{number}") for number in range(50)]
TESTS += [Test(f"{name}_{number}") for names in LONGEST for name in names for number in range(2)]
TESTS += [Test(f"tests/z.py::test_{number}") for number in range(41)]


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
def test_each_process_begins_with_a_long_group_and_no_test_is_lost(processes):
    found = dealt(TESTS, processes)
    assert sorted(found, key=TESTS.index) == TESTS
    start, left = 0, len(found)
    for place in range(processes):  # the stretches that xdist hands out
        length = left // (processes - place)
        if place < len(LONGEST):
            assert found[start].nodeid.startswith(LONGEST[place][0])
        start, left = start + length, left - length


def test_a_few_tests_that_are_all_long_are_dealt_too():
    few = [test for test in TESTS if test.nodeid.startswith("tests/test_docs.py")]
    assert sorted(dealt(few, 3), key=few.index) == few


def test_the_long_tests_are_there():
    for name in (name for names in LONGEST for name in names):
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")
