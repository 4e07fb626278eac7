"""The page of a study tells what all runs together spent first, and judges by whatever metric the study chose."""

import math

import numpy as np
import pytest

import privfl as pf
from privfl.study.axes import Variant
from privfl.study.report import report_directory
from privfl.study.results import Results
from privfl.study.shown import plot_results, report_study
from privfl.study.store import Store
from privfl.study.sweep import sweep_statement
from tests.study.pages import Page

BASE = {"rounds": 2, "workers": 1, "algorithm": {"name": "fedavg", "weighting": "uniform"}}


def lengths(seed: int) -> pf.Task:
    """Twelve rows of each of four clients: a number is predicted, not a class."""
    inputs = np.random.default_rng(seed).normal(size=(48, 3)).astype(np.float32)
    return pf.Task.from_arrays(
        inputs, inputs @ np.float32([1, 2, 3]), kind="regression", partition=pf.IID(clients=4), seed=seed
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits")
    base = BASE | {
        "dataset": {"name": "digits"},
        "partition": {"name": "iid", "clients": 4},
        "model": {"name": "logistic"},
        "training": {"steps": 1, "learning_rate": 0.5},
        "privacy": {"training": {"sample_rate": 0.1}},
    }
    variants = tuple(
        Variant(name, {"algorithm": {"name": name, "weighting": "uniform"}}) for name in ("fedavg", "fedprox")
    )
    study = pf.Study(base, title="Two <methods>", seeds=2, epsilon=(math.inf, 3.0), variants=variants)
    results = study.run(out, name="two", processes=1)
    return out, results, report_study(results, Store(out), out / "two").read_text(encoding="utf-8")


def test_a_study_says_who_learns_what_from_all_runs_together(digits):
    _, _, text = digits
    Page(text)
    assert "Two &lt;methods&gt;" in text
    assert "Against whoever sees a released model, and against the server too, 2 of 4 settings claim something." in text
    assert "Nothing is claimed by every method at “no privacy”." in text
    assert "that claim anything, taken together; what the others reveal has no limit." in text
    assert "whoever picks the best of these runs" in text


def test_the_bounds_of_the_first_screen_are_those_of_the_sweep(digits):
    from privfl.study.assurance import found
    from privfl.study.shown import _result

    out, results, text = digits
    private = [
        _result(one, Store(out), 0.5) for one in results.done if math.isfinite(one.metrics["epsilon sample/public"])
    ]
    spent = sweep_statement(out, private).cell("sample", "public").epsilon
    single = max(one.metrics["epsilon sample/public"] for one in results.done if one.level != "no privacy")
    assert spent > single
    answers = text.partition('<section id="answers">')[2].partition("</section>")[0]
    assert found(spent, 1e-5) in answers
    assert found(single, 1e-5) not in answers
    assert found(single, 1e-5) in text


def test_every_setting_has_its_row_with_values_to_sort_by(digits):
    _, _, text = digits
    table = text.partition('<section id="findings">')[2].partition("</table>")[0]
    assert table.count("<tr>") == 1 + 4
    assert table.count('data-value="Infinity"') == 2 * 2 + 4 * 2


def test_figures_of_a_study_are_files_too(digits, tmp_path):
    out, results, _ = digits
    drawn = {path.name for path in plot_results(results, tmp_path)}
    assert {"pareto-sample-server.svg", "pareto-sample-public.png"} <= drawn
    assert (out / "two" / "figures" / "curves-fedprox.png").read_bytes().startswith(b"\x89PNG")


def test_a_study_of_a_regression_is_judged_by_its_error(tmp_path):
    base = BASE | {"task": "tests.study.test_study_page:lengths", "training": {"learning_rate": 0.01}}
    study = pf.Study(base, title="lengths", seeds=2, metric="test_rmse")
    results = study.run(tmp_path, name="lengths", processes=1)
    text = report_study(results, Store(tmp_path), tmp_path / "lengths").read_text(encoding="utf-8")
    row = Results.of(Store(tmp_path), "lengths").rows()[0]
    assert f"{row.mean:.4g} ± {row.deviation:.2g}" in text
    assert "No run of this study claims anything against anybody" in text
    assert "points ahead" not in text
    runs = [one.run for one in results.done]
    assert report_directory(tmp_path / "runs" / runs[0]).exists()
