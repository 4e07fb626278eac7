"""A study claims no more than its files allow, whatever happened to its runs."""

import html
import json
import math
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import privfl as pf
from privfl.data.partitions import describe
from privfl.errors import DataError
from privfl.experiment import Experiment
from privfl.study.clients import in_words, read_clients, write_clients
from privfl.study.plots import finite, pareto
from privfl.study.report import report_directory
from privfl.study.store import CELLS
from privfl.study.summary import Summary
from privfl.study.sweep import OTHER_CLIENTS, _same_clients, sweep_statement
from tests.study.stores import NAME, folders, had, shown

NOISY_GRADIENTS = {"training": {"noise_multiplier": 2.0, "sample_rate": 0.1}}
NOISY_UPDATES = {
    "update": [{"name": "clip", "max_norm": 1.0}, {"name": "gaussian-noise", "noise_multiplier": 3.0}],
}


def settings(**changes) -> dict:
    usual = {
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "training": {"learning_rate": 0.5, "batch_size": 36, "steps": 1},
        "rounds": 2,
        "workers": 1,
    }
    return usual | changes


def alike(*names: str, **changes) -> pf.Study:
    """Runs that differ in their names and in the learning rate."""
    rates = [{"training": {"learning_rate": 0.5 - number / 10}} for number in range(len(names))]
    return pf.Study(settings(**changes), title="t", variants=tuple(map(pf.Variant, names, rates)))


def test_no_client_is_promised_anything_over_runs_that_deal_the_data_differently(tmp_path):
    """Client 0 of seed 0 holds rows that all four clients of seed 1 share: their noise was not made for that."""
    had(tmp_path, pf.Study(settings(privacy=NOISY_UPDATES), title="t", seeds=2))
    owners = [np.empty(1438, dtype=int) for _ in range(2)]
    for seed, owner in enumerate(owners):
        clients = Experiment.from_dict(settings(seed=seed)).task().clients
        for client in range(len(clients)):
            owner[clients[client].numpy()] = client
    assert len(set(owners[1][owners[0] == 0])) == 4
    results = shown(tmp_path)
    for result in results:
        assert result.epsilons["client/public"] is not None
    together = sweep_statement(tmp_path, results)
    assert together.cell("client", "public").epsilon == math.inf
    assert any(OTHER_CLIENTS in reason for reason in together.cell("client", "public").reasons)
    single = max(result.epsilons["sample/public"] for result in results)
    assert single < together.cell("sample", "public").epsilon <= 2 * single
    assert "spread over many there" in report_directory(tmp_path / NAME).read_text(encoding="utf-8")


def test_runs_that_deal_alike_add_up_for_whole_clients_too(tmp_path):
    had(tmp_path, alike("a", "b", privacy=NOISY_UPDATES))
    results = shown(tmp_path)
    single = results[0].epsilons["client/public"]
    assert single < sweep_statement(tmp_path, results).cell("client", "public").epsilon <= 2 * single


def test_natural_clients_are_the_same_under_every_seed_and_dealt_ones_are_not():
    ledgers = [pf.privacy.accounting.ledger.Ledger(3) for _ in range(2)]
    natural = [{"dataset": {"name": "shakespeare"}, "seed": seed} for seed in (0, 1)]
    dealt = [one | {"partition": {"name": "iid", "clients": 3}} for one in natural]
    own = [{"data": {"inputs": "x", "rows": rows}, "seed": seed} for seed, rows in enumerate(("a", "b"))]
    assert _same_clients(ledgers, natural)
    assert not _same_clients(ledgers, dealt)
    assert not _same_clients(ledgers, [natural[0], dealt[1]])
    assert not _same_clients(ledgers, own)
    assert _same_clients(ledgers, [own[0], own[0]])
    assert not _same_clients([ledgers[0], pf.privacy.accounting.ledger.Ledger(1)], natural)


def test_a_page_shows_the_epsilon_of_the_statement_when_the_index_says_less(tmp_path):
    had(tmp_path, pf.Study(settings(privacy=NOISY_GRADIENTS), title="t"))
    change(tmp_path, "UPDATE metrics SET value = 0.0625 WHERE name LIKE 'epsilon %'")
    assert "0.0625" not in report_directory(tmp_path / NAME).read_text(encoding="utf-8")
    (folder,) = folders(tmp_path)
    statement = json.loads((folder / "statement.json").read_text(encoding="utf-8"))
    claimed = next(c["bound"]["epsilon"] for c in statement["cells"] if c["unit"] == "sample")
    assert shown(tmp_path)[0].epsilons["sample/server"] == claimed


@pytest.mark.parametrize("told", ["NULL", "'much'"])
def test_an_index_whose_epsilon_is_no_number_claims_nothing_or_is_refused(tmp_path, told):
    had(tmp_path, pf.Study(settings(privacy=NOISY_GRADIENTS), title="t"))
    change(tmp_path, f"UPDATE metrics SET value = {told} WHERE name = 'epsilon sample/public'")
    if told == "NULL":
        assert shown(tmp_path)[0].epsilons["sample/public"] is None
        return
    with pytest.raises(DataError, match=r"results\.sqlite is damaged"):
        report_directory(tmp_path / NAME)


def change(out: Path, statement: str) -> None:
    """Change the index of the store ``out`` behind its back."""
    with closing(sqlite3.connect(out / "results.sqlite", isolation_level=None)) as index:
        index.execute("PRAGMA foreign_keys = OFF")
        index.execute(statement)


def test_an_index_cannot_name_a_folder_outside_its_store(tmp_path):
    had(tmp_path, pf.Study(settings(), title="t"))
    for table in ("runs", "metrics", "members"):
        change(tmp_path, f"UPDATE {table} SET run = '../../elsewhere'")
    with pytest.raises(DataError, match=r"names the run '../../elsewhere', which is no folder of"):
        report_directory(tmp_path / NAME)


def test_an_index_nested_without_end_is_one_sentence(tmp_path):
    had(tmp_path, pf.Study(settings(), title="t"))
    change(tmp_path, f"UPDATE studies SET told = '{100_000 * '['}'")
    with pytest.raises(DataError, match=r"results\.sqlite is damaged"):
        report_directory(tmp_path / NAME)


@pytest.mark.parametrize("name", ["statement.json", "summary.json"])
def test_a_finished_run_that_was_damaged_since_is_named_with_its_folder(tmp_path, name):
    assert had(tmp_path, alike("a", "b")) == []
    damaged = folders(tmp_path)[0]
    (damaged / name).write_text("{")
    with pytest.raises(DataError, match=re.escape(str(damaged))):
        report_directory(tmp_path / NAME)


def test_a_run_whose_budget_ends_before_its_first_evaluation_is_reported_and_has_its_page(tmp_path):
    cut = settings(privacy=NOISY_GRADIENTS | {"budget": {"epsilon": 0.8}}, rounds=40, evaluate_every=20)
    (failure,) = had(tmp_path, pf.Study(cut, title="t"))
    assert "before its first evaluation; set a smaller evaluate_every" in failure
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped"] == "budget"
    assert 0 < summary["rounds"] < 20
    page = report_directory(folder).read_text(encoding="utf-8")
    assert "was never evaluated on the test data" in page
    assert "would have exceeded its privacy budget" in page


def test_a_study_with_failures_names_them_and_says_that_their_cost_is_not_counted(tmp_path):
    bad = pf.Variant("b <i>", {"training": {"learning_rate": 1e38}})
    (failure,) = had(tmp_path, pf.Study(settings(privacy=NOISY_GRADIENTS), title="t", variants=(pf.Variant("a"), bad)))
    page = report_directory(tmp_path / NAME).read_text(encoding="utf-8")
    assert "What the 1 runs that failed had released before is not counted" in page
    assert failure.startswith("b <i>, ")
    assert html.escape(failure, quote=False)[:40] in page


def test_an_unfinished_study_is_told_from_a_folder_that_holds_nothing(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"its index results\.sqlite is gone, start the study again"):
        report_directory(tmp_path)


def test_no_name_of_a_method_leads_a_figure_out_of_its_folder_or_onto_another(tmp_path):
    had(tmp_path / "a" / "b", alike("x/../../../escaped", "Fed Avg", "fed-avg"))
    report_directory(tmp_path / "a" / "b" / NAME)
    pictures = sorted(path.relative_to(tmp_path / "a" / "b" / NAME).as_posix() for path in tmp_path.rglob("*.png"))
    drawn = ["clients", "curves-fed-avg", "curves-fed-avg-2", "curves-x-..-..-..-escaped", "pareto"]
    assert pictures == sorted(f"figures/{name}.png" for name in drawn)


def test_the_clients_of_a_run_are_recorded_told_and_drawn(tmp_path):
    had(tmp_path, pf.Study(settings(), title="t"))
    (folder,) = folders(tmp_path)
    report, true = read_clients(folder), Experiment.from_dict(settings()).task().report
    assert np.array_equal(report.counts, true.counts)
    assert (report.available, report.distinct, report.shared) == (1438, 1438, 0)
    assert report.distance_to_pool == pytest.approx(true.distance_to_pool)
    sizes = true.counts.sum(axis=1)
    sentence = f"4 clients hold 1,438 of 1,438 training examples, {sizes.min():,} to {sizes.max():,} each"
    assert in_words(report).startswith(sentence)
    for place in (folder, tmp_path / NAME):
        page = report_directory(place).read_text(encoding="utf-8")
        assert sentence in page
        assert "no\nstatement covers them" in page
        assert (place / "figures" / "clients.png").read_bytes().startswith(b"\x89PNG")


def test_counts_of_many_clients_and_classes_are_written_without_their_zeros(tmp_path):
    parts = np.split(np.arange(4000), 2000)
    report = describe(parts, np.arange(4000) % 2000, 2000)
    task = SimpleNamespace(report=report)
    write_clients(tmp_path, task)
    assert (tmp_path / "clients.json").stat().st_size < 500_000  # as a table it has 12 MB
    read = read_clients(tmp_path)
    assert (read.held != report.held).nnz == 0
    assert read.sizes.tolist() == report.sizes.tolist()


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"counts": [[1, 2], [0, 0]]}', '{"counts": 3}', '{"counts": {"shape": [1, 2]}}'],
)
def test_damaged_counts_are_one_sentence(tmp_path, content):
    (tmp_path / "clients.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"clients\.json is damaged"):
        read_clients(tmp_path)


def test_a_page_says_that_held_out_examples_are_not_protected(tmp_path):
    had(tmp_path, pf.Study(settings(privacy=NOISY_GRADIENTS), title="t"))
    page = report_directory(tmp_path / NAME).read_text(encoding="utf-8")
    assert "come from held-out examples, which\nno mechanism protects" in page


@pytest.mark.parametrize("epsilons", [(1, 3, 8, 12.4, 81.2), (1e-3, 1.2, 1.6, 900), tuple(np.geomspace(1, 1e4, 30))])
def test_labels_of_the_pareto_plot_do_not_touch_however_wide_the_axis_is(epsilons):
    rows = [Summary("fedavg", str(e), 3, 0.8, 0.01, dict.fromkeys(CELLS, float(e))) for e in epsilons]
    chart = pareto(rows)
    chart.draw_without_rendering()
    (axes,) = chart.axes
    boxes = [text.get_window_extent() for text in axes.get_xticklabels() if "nothing" not in text.get_text()]
    assert len(boxes) >= 3
    assert all(one.x1 < other.x0 for one, other in pairwise(sorted(boxes, key=lambda box: box.x0)))


def test_a_method_that_releases_nothing_stands_at_zero_in_the_pareto_plot():
    rows = [Summary("local", "l", 3, 0.6, 0.01, dict.fromkeys(CELLS, 0.0))]
    rows += [Summary("fedavg", str(e), 3, 0.8, 0.01, dict.fromkeys(CELLS, e)) for e in (1.0, 8.0)]
    (axes,) = pareto(rows).axes
    ticks = dict(zip([text.get_text() for text in axes.get_xticklabels()], axes.get_xticks(), strict=True))
    drawn = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1 and line.get_ydata()[0] == 0.6]
    assert drawn == [pytest.approx(ticks["0\n(nothing released)"], rel=0.05)] * len(drawn)
    assert drawn
    assert ticks["0\n(nothing released)"] < ticks[finite(1.0)]
    assert axes.get_xlim()[0] < drawn[0]


def test_fourteen_methods_can_be_told_apart():
    rows = [
        Summary(f"m{i}", "l", 3, 0.5, 0.01, dict.fromkeys(CELLS, epsilon)) for i in range(14) for epsilon in (1.0, 3.0)
    ]
    (axes,) = pareto(rows).axes
    lines = [line for line in axes.lines if line.get_marker() in "os^DvPX" and len(line.get_xdata()) == 2]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 14


@dataclass(frozen=True)
class Halved(pf.FedAvg):
    """An algorithm of one's own: the server goes half of FedAvg's way."""

    name: ClassVar[str] = "halved"

    def aggregate(self, server, total, round, training):
        return super().aggregate(server, {"update": total["update"] / 2}, round, training)


def test_a_study_takes_algorithms_of_ones_own_and_does_not_repeat_them(tmp_path):
    own = ("tests.study.test_hard_cases:Halved", "fedavg")
    variants = [pf.Variant(name[-6:], {"algorithm": {"name": name, "weighting": "uniform"}}) for name in own]
    one = pf.Study(settings(privacy=NOISY_GRADIENTS | {"noise_key": 7}), title="t", variants=tuple(variants))
    assert had(tmp_path, one) == []
    results = shown(tmp_path)
    assert results[0].value != results[1].value
    assert results[0].epsilons["sample/server"] is not None
    written = [folder / "summary.json" for folder in folders(tmp_path)]
    before = [path.stat().st_mtime_ns for path in written]
    assert had(tmp_path, one) == []
    assert [path.stat().st_mtime_ns for path in written] == before
    assert "Halved" in report_directory(folders(tmp_path)[0]).read_text(encoding="utf-8")


DIVERGED = {"training": {"learning_rate": 1e38, "batch_size": 36, "steps": 1}}


def test_a_run_that_learns_nothing_is_a_failure_of_its_study_and_has_its_page(tmp_path):
    (failure,) = had(tmp_path, pf.Study(settings(**DIVERGED), title="t"))
    assert ": the run ended without having learnt: " in failure
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert "The run failed" in report_directory(folder).read_text(encoding="utf-8")


def test_a_diverged_run_has_its_row_and_its_page(tmp_path):
    assert had(tmp_path, pf.Study(settings(**DIVERGED, max_upload_norm=math.inf), title="t")) == []
    (folder,) = folders(tmp_path)
    assert json.loads((folder / "summary.json").read_text())["test_loss"] is None
    assert 0 <= shown(tmp_path)[0].value < 0.5
    for place in (tmp_path / NAME, folder):
        assert report_directory(place).exists()
    assert "not finite" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_finished_run_is_not_repeated_by_another_number_of_workers(tmp_path):
    assert had(tmp_path, pf.Study(settings(), title="t")) == []
    written = folders(tmp_path)[0] / "summary.json"
    before = written.stat().st_mtime_ns
    assert had(tmp_path, pf.Study(settings(workers=2), title="t")) == []
    assert [folder / "summary.json" for folder in folders(tmp_path)] == [written]
    assert written.stat().st_mtime_ns == before


def test_what_was_not_written_when_a_run_was_killed_after_its_last_round_is_made_up_for(tmp_path):
    one = pf.Study(settings(rounds=1), title="t")
    assert had(tmp_path, one) == []
    (folder,) = folders(tmp_path)
    before = {name: (folder / name).read_bytes() for name in ("clients.json", "traffic.json")}
    for path in [*(folder / name for name in before), *tmp_path.glob("results.sqlite*")]:
        path.unlink()
    assert had(tmp_path, one) == []
    assert {name: (folder / name).read_bytes() for name in before} == before
