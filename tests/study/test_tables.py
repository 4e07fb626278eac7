"""Tables: LaTeX that compiles, Markdown and text that are never cut, JSON and CSV that lose nothing."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from privfl.study.results import Results
from privfl.study.store import CELLS, Member
from privfl.study.tables import Format, latex, markdown, write_table

NASTY = r"[a] 50% & $x_1$ #2 {~^\} <ε> | ü"


@pytest.fixture
def results() -> Results:
    epsilons = {
        f"epsilon {cell}": value for cell, value in zip(CELLS, (2.9996, 1.0411, math.inf, math.inf), strict=True)
    }
    members = [
        Member(NASTY, "ε = 3", seed, f"r{seed}", "done", metrics={"test_accuracy": 0.9 + seed / 100, **epsilons})
        for seed in (0, 1)
    ]
    return Results("t", [*members, Member("b", "l", 0, "x", "failed", "it diverged")])


def test_latex_escapes_what_has_a_meaning_and_keeps_its_columns(results):
    text = write_table(results, Format.latex)
    assert text.startswith(r"\begin{tabular}{ll")
    assert text.endswith(r"\end{tabular}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = len(re.search(r"\{(l+r+)\}", text)[1])
    bare = [re.sub(r"\\[a-zA-Z]+(\{\})?|\\[&%$#_{}]|\$[^$]*\$", "", row.removesuffix(r"\\")) for row in rows]
    assert [row.count("&") + 1 for row in bare] == [columns] * 2
    assert not any(re.search(r"[%#_^~\\$<>ε∞±]", row) for row in bare)
    assert rows[1].startswith("{}[a]")  # after a line break a bare bracket would be its argument
    assert r"$\infty$" in rows[1]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(results, tmp_path):
    text = write_table(results, Format.latex)
    (tmp_path / "t.tex").write_text(rf"\documentclass{{article}}\begin{{document}}{text}\end{{document}}", "utf-8")
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_a_printed_epsilon_is_never_below_the_claim(results):
    for how in (Format.text, Format.markdown, Format.latex):
        assert "3.00" in write_table(results, how)
        assert "1.05" in write_table(results, how)


def test_text_says_what_judged_and_is_not_cut(results):
    text = write_table(results, Format.text)
    assert NASTY in text
    assert "90.5 ± 0.7 %" in text
    assert "test_accuracy" in text


def test_markdown_has_as_many_cells_in_every_row(results):
    lines = write_table(results, Format.markdown).splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_markdown_shows_every_name_as_it_is():
    table = markdown(["a|b"], [["\\|"], ["<b>&lt;"], ["a\nb"], ["plain 5 %"]])
    assert table.splitlines() == [
        r"| a\|b |", "|---|", r"| \\\| |", "| &lt;b>&amp;lt; |", "| a b |", "| plain 5 % |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("+x", "'+x"),
        ("-x", "'-x"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("-0.5", "-0.5"),
        ("-inf", "-inf"),
        ("a=1", "a=1"),
        ("", ""),
    ],
)
def test_csv_holds_no_formula_and_numbers_as_numbers(name, shown):
    member = Member(name, "l", 0, "r0", "done", metrics={"test_accuracy": -0.25, "=metric": 1.0})
    (line,) = csv.DictReader(io.StringIO(write_table(Results("t", [member]), Format.csv)))
    assert line["method"] == shown
    assert line["test_accuracy"] == "-0.25"
    assert "=metric" not in line
    assert line["'=metric"] == "1.0"


def test_json_and_csv_hold_every_run_with_infinity_in_words(results):
    told = json.loads(write_table(results, Format.json))
    assert told["rows"][0]["epsilons"]["client/public"] == "inf"
    assert [run["state"] for run in told["runs"]] == ["done", "done", "failed"]
    lines = list(csv.DictReader(write_table(results, Format.csv).splitlines()))
    assert (lines[0]["epsilon client/public"], lines[1]["test_accuracy"], lines[2]["reason"]) == (
        "inf", "0.91", "it diverged"
    )  # fmt: skip
    assert lines[2]["test_accuracy"] == ""


def test_an_empty_table_is_still_a_table():
    assert latex(["a"], []).count(r"\hline") == 3


@pytest.mark.parametrize("how", [Format.text, Format.markdown, Format.latex, Format.json])
def test_wherever_epsilon_of_a_run_under_a_fixed_key_is_written_it_says_not_to_release_it(results, how):
    assert "DO NOT RELEASE" not in write_table(results, how)
    fixed = replace(results, members=[replace(results.members[0], reproducible=True), *results.members[1:]])
    assert "DO NOT RELEASE: the noise of 1 of 2 runs came from a fixed key" in write_table(fixed, how)
    (first, second, _) = csv.DictReader(write_table(fixed, Format.csv).splitlines())
    assert (first["reproducible"], second["reproducible"]) == ("True", "False")
