"""The list of mutants fits the code: each has just one place, compiles, and names tests that exist."""

import ast
from collections import Counter
from functools import cache

import pytest

from tests.mutants.catalogue import ROOT, Mutant, code_digest, mutants
from tests.mutants.report import Result, read, write

LISTED = mutants()


def test_there_are_mutants_of_every_room_and_no_two_are_one():
    assert len(LISTED) >= 160
    rooms = {one.path.rsplit("/", 1)[0] for one in LISTED}
    assert {"privfl/engine", "privfl/simulation", "audits/bounds"} <= rooms
    assert {f"privfl/privacy/{room}" for room in ("door", "clipping", "noise", "channel", "accounting")} <= rooms
    assert [key for key, times in Counter(one.key for one in LISTED).items() if times > 1] == []


@cache
def read_and_parsed(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return text, ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutant", LISTED, ids=lambda one: f"{one.room}-{one.key}")
def test_a_mutant_has_one_place_and_compiles(mutant):
    text, tree = read_and_parsed(mutant.path)
    assert ast.dump(ast.parse(mutant.applied(text))) != tree, "it changes nothing"


def test_the_tests_that_mutants_name_exist():
    missing = set()
    for name in {test for one in LISTED for test in (*one.likely, *one.wider)}:
        path, _, function = name.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8") if function else ""
        if not (ROOT / path).exists() or (function and f"\ndef {function}(" not in text):
            missing.add(name)
    assert missing == set()


def test_a_mutant_without_its_place_is_refused():
    one = Mutant("room", "file.py", "a", "b", "nothing", (), ())
    assert one.applied("xay") == "xby"
    for text in ("xy", "aa"):
        with pytest.raises(ValueError, match=r"file\.py holds"):
            one.applied(text)


def test_a_result_holds_until_its_file_or_for_a_survivor_a_test_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.mutants.report.PAGE", tmp_path / "mutants.md")
    monkeypatch.setattr("tests.mutants.report.RAW", tmp_path / "mutants.jsonl")
    killed, survivor = (Mutant("room", "file.py", "a", new, f"breaks {new}", (), ()) for new in "bc")
    results = {
        killed.key: Result(killed.key, "file now", "tests now", "killed", "tests/test_it.py::test_it[1]", 1.0),
        survivor.key: Result(survivor.key, "file now", "tests now", "survived", "", 60.0),
    }
    write([killed, survivor], results)
    page = (tmp_path / "mutants.md").read_text(encoding="utf-8")
    assert "| room | 2 | 1 | 1 | 0 |" in page
    assert "50.0 %" in page
    assert "- `file.py`: breaks c (survived). **not explained" in page
    assert "| breaks b | `file.py` | `test_it.py::test_it` |" in page
    assert read([killed, survivor], "tests now", lambda one: "file now") == results
    assert read([killed, survivor], "other tests", lambda one: "file now") == {killed.key: results[killed.key]}
    assert read([killed, survivor], "tests now", lambda one: "another file") == {}


def test_words_do_not_change_what_code_does():
    one = code_digest('"""What it is."""\n\ndef twice(x):\n    """Doubles."""\n    return 2 * x\n')
    assert one == code_digest("def twice(x):\n    return (2 * x)  # doubled\n")
    assert one != code_digest("def twice(x):\n    return 3 * x\n")
    assert code_digest("raise ValueError(f'{x} is odd')") == code_digest("raise ValueError(f'{x} is not even')")
    assert code_digest("x = 'odd'") != code_digest("x = 'even'")
