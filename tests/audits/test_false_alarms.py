"""The benchmark of false alarms measures every auditor, keeps what it has, and its uncorrected rows do over-claim."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from scipy.stats import binomtest

import audits

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def false_alarms(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("false_alarms")


def test_every_case_is_measured_once_and_kept_when_asked_again(false_alarms, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["false_alarms.py", "--seeds", "2", "--out", str(tmp_path / "out.json")])
    false_alarms.main()
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    measured = [(row["auditor"], row["mechanism"]) for row in record["rows"]]
    assert measured == [case[:2] for case in false_alarms.cases()]
    assert len(set(measured)) == len(measured)
    false_alarms.main()
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == record


def test_the_rate_stands_beside_its_exact_interval(false_alarms):
    bounds = iter([0.0, 2.0, 1.0, 3.0])
    row = false_alarms.measured(lambda generator: (None, None), lambda *_: next(bounds), 1.0, 4, "name")
    interval = binomtest(2, 4).proportion_ci(0.95, method="exact")
    assert (row["false_alarms"], row["rate"], row["mean_bound"]) == (2, 0.5, 1.5)
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))


def test_the_best_of_many_numbers_of_guesses_over_claims_where_the_corrected_bound_does_not(false_alarms):
    """200 runs that leak nothing. A correct 5 % auditor exceeds 27 false alarms with probability below 1e-6."""
    cases = {case[:2]: case[2:] for case in false_alarms.cases()}
    for auditor, over in (("not corrected: best number of guesses", True), ("one run, Bonferroni", False)):
        row = false_alarms.measured(*reordered(cases[auditor, "nothing leaks"]), 200, "test")
        assert (row["false_alarms"] > 27) == over


def reordered(case):
    truth, draw, found = case
    return draw, found, truth


def test_what_the_benchmark_takes_for_the_truth_is_not_below_it(false_alarms):
    assert 0 <= false_alarms.GAUSSIAN - audits.GaussianFamily().epsilon(1.0, 1e-5) < 1e-5
