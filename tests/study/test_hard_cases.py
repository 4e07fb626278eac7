"""A study claims no more than its files allow, whatever happened to its runs."""

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import privfl as pf
from privfl.algorithms import Algorithm
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.study.clients import in_words, read_clients
from privfl.study.composed import PythonRun
from privfl.study.grid import CELLS, Cell, Summary, load_results, read_result, run_study
from privfl.study.plots import finite, pareto
from privfl.study.report import report_directory
from privfl.study.sweep import OTHER_CLIENTS, _same_clients, sweep_statement

NOISY_GRADIENTS = {"training": {"noise_multiplier": 2.0, "sample_rate": 0.1}}
NOISY_UPDATES = {
    "update": [{"name": "clip", "max_norm": 1.0}, {"name": "gaussian-noise", "noise_multiplier": 3.0}],
}


def experiment(seed: int = 0, **settings) -> Experiment:
    usual = {
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "training": {"learning_rate": 0.5, "batch_size": 36, "steps": 1},
        "rounds": 2,
        "seed": seed,
        "workers": 1,
    }
    return Experiment.from_dict(usual | settings)


def study(out: Path, *cells: Cell) -> list[str]:
    return run_study(cells, out, title="t", processes=1)[1]


def test_no_client_is_promised_anything_over_runs_that_deal_the_data_differently(tmp_path):
    """Client 0 of seed 0 holds rows that all four clients of seed 1 share: their noise was not made for that."""
    study(tmp_path, *(Cell("FedAvg", "noisy", experiment(seed, privacy=NOISY_UPDATES)) for seed in (0, 1)))
    owners = [np.empty(1438, dtype=int) for _ in range(2)]
    for seed, owner in enumerate(owners):
        clients = experiment(seed).task().clients
        for client in range(len(clients)):
            owner[clients[client].numpy()] = client
    assert len(set(owners[1][owners[0] == 0])) == 4
    results = load_results(tmp_path)
    for result in results:
        assert result.epsilons["client/public"] is not None
    together = sweep_statement(tmp_path, results)
    assert together.cell("client", "public").epsilon == math.inf
    assert any(OTHER_CLIENTS in reason for reason in together.cell("client", "public").reasons)
    single = max(result.epsilons["sample/public"] for result in results)
    assert single < together.cell("sample", "public").epsilon <= 2 * single
    assert "spread over many there" in report_directory(tmp_path).read_text(encoding="utf-8")


def test_runs_that_deal_alike_add_up_for_whole_clients_too(tmp_path):
    study(tmp_path, *(Cell(method, "noisy", experiment(privacy=NOISY_UPDATES)) for method in ("a", "b")))
    results = load_results(tmp_path)
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


def test_a_page_shows_the_epsilon_of_the_statement_when_results_json_says_less(tmp_path):
    study(tmp_path, Cell("FedAvg", "noisy", experiment(privacy=NOISY_GRADIENTS)))
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    rows[0]["epsilons"] = dict.fromkeys(CELLS, 0.0625)
    (tmp_path / "results.json").write_text(json.dumps(rows), encoding="utf-8")
    page = report_directory(tmp_path).read_text(encoding="utf-8")
    assert "0.0625" not in page
    statement = json.loads((tmp_path / "runs" / rows[0]["folder"] / "statement.json").read_text(encoding="utf-8"))
    claimed = next(c["bound"]["epsilon"] for c in statement["cells"] if c["unit"] == "sample")
    assert load_results(tmp_path)[0].epsilons["sample/server"] == claimed


def test_results_cannot_name_a_folder_outside_the_study(tmp_path):
    study(tmp_path, Cell("FedAvg", "l", experiment()))
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    rows[0]["folder"] = "../../elsewhere"
    (tmp_path / "results.json").write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"names the run '../../elsewhere', which is no folder of"):
        report_directory(tmp_path)


def test_results_nested_without_end_are_one_sentence(tmp_path):
    study(tmp_path, Cell("FedAvg", "l", experiment()))
    (tmp_path / "results.json").write_text(100_000 * "[", encoding="utf-8")
    with pytest.raises(DataError, match=r"results\.json is damaged"):
        load_results(tmp_path)


@pytest.mark.parametrize("name", ["statement.json", "summary.json", "environment.json"])
def test_a_finished_run_that_was_damaged_since_loses_no_other(tmp_path, name):
    cells = [Cell(method, "l", experiment()) for method in ("a", "b")]
    assert study(tmp_path, *cells) == []
    (tmp_path / "runs" / cells[0].folder / name).write_text("{")
    failures = study(tmp_path, *cells)
    assert [result.method for result in load_results(tmp_path)] == ["b"]
    assert len(failures) == 1
    assert failures[0].startswith("a-l-seed0: ")
    assert "a-l-seed0: " in report_directory(tmp_path).read_text(encoding="utf-8")


def test_a_run_whose_budget_ends_before_its_first_evaluation_is_reported_and_loses_no_other(tmp_path):
    budget = NOISY_GRADIENTS | {"budget": {"epsilon": 0.8}}
    cut = Cell("cut", "l", experiment(privacy=budget, rounds=40, evaluate_every=20))
    failures = study(tmp_path, Cell("a", "l", experiment()), cut)
    folder = tmp_path / "runs" / cut.folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped"] == "budget"
    assert 0 < summary["rounds"] < 20
    if "test_accuracy" in summary:  # a round loop that evaluates when it stops leaves nothing to report
        assert failures == []
        return
    assert [result.method for result in load_results(tmp_path)] == ["a"]
    assert "before its first evaluation; set a smaller evaluate_every" in failures[0]
    with pytest.raises(DataError, match="before its first evaluation"):
        read_result("cut", "l", 0, folder)
    page = report_directory(folder).read_text(encoding="utf-8")
    assert "was never evaluated on the test data" in page
    assert "would have exceeded its privacy budget" in page


def test_a_study_with_failures_says_that_their_cost_is_not_counted(tmp_path):
    impossible = experiment(privacy=NOISY_GRADIENTS | {"training": {"noise_multiplier": 1.0, "noise_at": "server"}})
    study(tmp_path, Cell("a", "l", experiment(privacy=NOISY_GRADIENTS)), Cell("b", "l", impossible))
    assert "What the 1 runs that failed had released before is not counted" in report_directory(tmp_path).read_text(
        encoding="utf-8"
    )


def test_an_unfinished_study_is_told_from_a_folder_that_holds_nothing(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="the study is not finished, start it again"):
        report_directory(tmp_path)


def test_no_name_of_a_method_leads_a_figure_out_of_its_folder_or_onto_another(tmp_path):
    names = ("x/../../../escaped", "Fed Avg", "fed-avg")
    study(tmp_path / "a" / "b", *(Cell(name, f"l{i}", experiment()) for i, name in enumerate(names)))
    report_directory(tmp_path / "a" / "b")
    pictures = sorted(path.relative_to(tmp_path / "a" / "b").as_posix() for path in tmp_path.rglob("*.png"))
    drawn = ["clients", "curves-fed-avg", "curves-fed-avg-2", "curves-x-..-..-..-escaped", "pareto"]
    assert pictures == sorted(f"figures/{name}.png" for name in drawn)


def test_the_clients_of_a_run_are_recorded_told_and_drawn(tmp_path):
    study(tmp_path, Cell("FedAvg", "l", experiment()))
    folder = tmp_path / "runs" / "FedAvg-l-seed0"
    report, true = read_clients(folder), experiment().task().report
    assert np.array_equal(report.counts, true.counts)
    assert (report.available, report.distinct, report.shared) == (1438, 1438, 0)
    assert report.distance_to_pool == pytest.approx(true.distance_to_pool)
    sizes = true.counts.sum(axis=1)
    sentence = f"4 clients hold 1,438 of 1,438 training examples, {sizes.min():,} to {sizes.max():,} each"
    assert in_words(report).startswith(sentence)
    for place in (folder, tmp_path):
        page = report_directory(place).read_text(encoding="utf-8")
        assert sentence in page
        assert "no\nstatement covers them" in page
        assert (place / "figures" / "clients.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", ["{", "[]", '{"counts": [[1, 2], [0, 0]]}', '{"counts": 3}'])
def test_damaged_counts_are_one_sentence(tmp_path, content):
    (tmp_path / "clients.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"clients\.json is damaged"):
        read_clients(tmp_path)


def test_a_page_says_that_held_out_examples_are_not_protected(tmp_path):
    study(tmp_path, Cell("FedAvg", "l", experiment(privacy=NOISY_GRADIENTS)))
    page = report_directory(tmp_path).read_text(encoding="utf-8")
    assert "come from held-out examples, which\nno mechanism protects" in page


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


def digits(seed: int) -> pf.Task:
    return pf.load("digits", partition=pf.IID(clients=4), model="logistic", seed=seed)


def composed(algorithm: Algorithm, seed: int = 0, task=digits, rounds: int = 2) -> PythonRun:
    dpsgd = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.1)
    arguments = {
        "training": pf.LocalTraining(steps=1),
        "privacy": pf.Privacy(training=dpsgd, noise_key=7),
        "execution": pf.Execution(workers=1),
    }
    return PythonRun(task, algorithm, pf.Schedule(rounds, seed), arguments)


def test_a_study_takes_algorithms_of_ones_own_and_does_not_repeat_them(tmp_path):
    own = [Cell(algorithm.name, "l", composed(algorithm)) for algorithm in (Halved("uniform"), pf.FedAvg("uniform"))]
    assert study(tmp_path, *own) == []
    results = load_results(tmp_path)
    assert results[0].accuracy != results[1].accuracy
    assert results[0].epsilons["sample/server"] is not None
    written = tmp_path / "runs" / own[0].folder / "summary.json"
    before = written.stat().st_mtime_ns
    assert study(tmp_path, *own) == []
    assert written.stat().st_mtime_ns == before
    faster = dataclasses.replace(own[0].experiment, arguments={"training": pf.LocalTraining(learning_rate=0.3)})
    assert "other settings" in study(tmp_path, Cell("halved", "l", faster))[0]
    assert "halved" in report_directory(tmp_path / "runs" / own[1].folder.replace("fedavg", "halved")).read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_runs_of_ones_own_go_to_other_processes_with_the_same_numbers(tmp_path):
    cell = Cell("FedAvg", "l", composed(pf.FedAvg("uniform")))
    bare = dataclasses.replace(cell.experiment, arguments={"training": pf.LocalTraining(steps=1)})
    cells = [Cell("FedAvg", "l", dataclasses.replace(bare, schedule=pf.Schedule(2, seed))) for seed in (0, 1)]
    numbers = []
    for processes in (1, 2):
        results, failures = run_study(cells, tmp_path / str(processes), title="t", processes=processes)
        assert failures == []
        numbers.append([(result.accuracy, result.tail) for result in results])
    assert numbers[0] == numbers[1]


def test_what_cannot_go_to_another_process_is_refused_before_any_run(tmp_path):
    cells = [Cell("m", "l", composed(pf.FedAvg(), seed, task=lambda seed: digits(seed))) for seed in (0, 1)]
    with pytest.raises(ConfigError, match=re.escape("define its parts at the top of a module, or set processes = 1")):
        run_study(cells, tmp_path / "x", title="t", processes=2)
    assert not (tmp_path / "x").exists()


def test_the_traceback_of_an_earlier_crash_goes_when_the_run_succeeds(tmp_path):
    cell = Cell("FedAvg", "l", experiment())
    stale = tmp_path / "runs" / cell.folder / "error.txt"
    stale.parent.mkdir(parents=True)
    stale.write_text("Traceback")
    assert study(tmp_path, cell) == []
    assert not stale.exists()


def test_a_run_that_learns_nothing_is_a_failure_of_its_study_and_has_its_page(tmp_path):
    diverged = experiment(training={"learning_rate": 1e38, "batch_size": 36, "steps": 1})
    (failure,) = study(tmp_path, Cell("FedAvg", "l", diverged))
    assert failure.startswith("FedAvg-l-seed0: the run ended without having learnt: ")
    folder = tmp_path / "runs" / "FedAvg-l-seed0"
    assert report_directory(folder).exists()
    assert "The run failed" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_diverged_run_has_its_row_and_its_page(tmp_path):
    diverged = experiment(training={"learning_rate": 1e38, "batch_size": 36, "steps": 1}, max_upload_norm=math.inf)
    assert study(tmp_path, Cell("FedAvg", "l", diverged)) == []
    folder = tmp_path / "runs" / "FedAvg-l-seed0"
    assert json.loads((folder / "summary.json").read_text())["test_loss"] is None
    assert 0 <= load_results(tmp_path)[0].accuracy < 0.5
    for place in (tmp_path, folder):
        assert report_directory(place).exists()
    assert "not finite" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_finished_run_is_not_repeated_by_another_number_of_workers(tmp_path):
    assert study(tmp_path, Cell("FedAvg", "l", experiment())) == []
    written = tmp_path / "runs" / "FedAvg-l-seed0" / "summary.json"
    before = written.stat().st_mtime_ns
    assert study(tmp_path, Cell("FedAvg", "l", experiment(workers=2))) == []
    assert written.stat().st_mtime_ns == before
