"""A study keeps what it has, reports what failed, and its page says nothing that no statement says."""

import json
import math
import os
import re
import runpy
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import privfl as pf
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.printed import round_up
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.run_directory import RunDirectory
from privfl.study.findings import findings, percent
from privfl.study.plots import curves, finite, pareto, run_charts
from privfl.study.report import report_directory
from privfl.study.store import CELLS
from privfl.study.summary import Result, Summary, summarise
from privfl.study.sweep import sweep_statement, worst_case
from privfl.study.workers import Workers
from tests.study.stores import NAME, folders, had, shown

EXAMPLE = Path(__file__).parents[2] / "examples" / "privacy_utility.py"


def settings(noise: float | None = None, **changes) -> dict:
    privacy = {"size": {"name": "laplace", "epsilon": 4.0, "bound": 600, "lower": 200}, "noise_key": 7}
    if noise is not None:
        privacy["training"] = {"noise_multiplier": noise, "sample_rate": 0.1}
    usual = {
        "dataset": {"name": "digits"},
        "partition": {"name": "iid", "clients": 4},
        "model": {"name": "logistic"},
        "training": {"learning_rate": 0.5, "batch_size": 36, "steps": 1},
        "privacy": privacy,
        "rounds": 3,
        "workers": 1,
        "engine": "loop",
    }
    return usual | changes


def both() -> pf.Study:
    noisy = {"privacy": {"training": {"noise_multiplier": 2.0, "sample_rate": 0.1}}}
    levels = (pf.Variant("none", axis="noise"), pf.Variant("noisy <b>", noisy, axis="noise"))
    return pf.Study(settings(), title="A <script> of & studies", seeds=2, variants=levels)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("study")
    assert had(out, both()) == []
    return out


@pytest.fixture
def study(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


def statement(folder: Path) -> Statement:
    return Statement.from_json((folder / "statement.json").read_text(encoding="utf-8"))


def test_what_a_page_shows_of_runs_is_what_their_directories_hold(finished):
    results = shown(finished)
    assert [(r.level, r.seed) for r in results] == [("none", 0), ("none", 1), ("noisy <b>", 0), ("noisy <b>", 1)]
    for result in results:
        folder = finished / "runs" / result.folder
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert result.value == last["test_accuracy"]
        for cell in statement(folder).cells:
            told = result.epsilons[f"{cell.unit}/{cell.observer}"]
            assert told == (None if math.isinf(cell.epsilon) else cell.epsilon)


def test_an_error_that_is_no_users_fault_leaves_its_traceback_until_the_run_succeeds(tmp_path, monkeypatch):
    def broken(self, out=None, **rest):
        raise ZeroDivisionError("by a loss of one's own")

    one = pf.Study(settings(), title="t")
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "run", broken)
        (failure,) = had(tmp_path, one)
    assert "ZeroDivisionError: by a loss of one's own" in failure
    (left,) = tmp_path.glob("runs/*/error.txt")
    assert "ZeroDivisionError" in left.read_text(encoding="utf-8")
    with pytest.raises(
        DataError, match="no run of 't' is done: 1 of 1 runs failed, the first because ZeroDivisionError"
    ):
        report_directory(tmp_path / NAME)
    assert had(tmp_path, one) == []
    assert not left.exists()


def test_fewer_than_one_process_is_refused_before_any_run(tmp_path):
    with pytest.raises(ConfigError, match="in 0 processes"):
        pf.Study(settings(), title="t").run(tmp_path / "x", processes=0)
    assert not (tmp_path / "x").exists()


def _killed(name: str) -> str:
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@pytest.mark.slow
def test_a_process_that_is_killed_fails_its_own_run_only():
    with Workers(2) as workers:
        outcomes = dict(workers.outcomes(_killed, ["a", "killed", "b"]))
    assert outcomes == {"a": "a", "killed": None, "b": "b"}


@pytest.mark.slow
def test_processes_of_their_own_give_the_numbers_of_this_process(finished, tmp_path):
    assert had(tmp_path, both(), processes=2) == []
    assert shown(tmp_path) == shown(finished)
    for mine, theirs in zip(folders(tmp_path), folders(finished), strict=True):
        assert (mine / "metrics.jsonl").read_text() == (theirs / "metrics.jsonl").read_text()


def test_the_sweep_costs_what_all_ledgers_together_cost(finished):
    noisy = shown(finished)[2:]
    together = sweep_statement(finished, noisy)
    ledgers = []
    for result in noisy:  # equal clients, equal rates: here the worst case of each run is simply its ledger
        state = RunDirectory(finished / "runs" / result.folder).checkpoint().meta["ledger"]
        ledgers.append(Ledger.from_state(state, state["fingerprint"]))
    exact = make_statement(Ledger.merged(ledgers), 1e-5, reproducible_noise=False)
    for cell in exact.cells:
        assert together.cell(cell.unit, cell.observer).epsilon == pytest.approx(cell.epsilon, rel=1e-9)
    single = noisy[0].epsilons["sample/public"]
    assert single < together.cell("sample", "public").epsilon <= 2 * single
    everything = sweep_statement(finished, shown(finished))
    assert everything.cell("sample", "public").epsilon == math.inf


def test_a_sweep_over_unequal_clients_is_never_cheaper_than_any_clients_share():
    first, second = (Ledger(2, ["update"]) for _ in range(2))
    release = next(r for r in _releases() if r.name == "update")
    first.record(release, [0], 5)
    second.record(release, [1], 7)
    worst = Ledger.merged([worst_case(first), worst_case(second)])
    counts = worst.histories("sample", "public").counts.toarray()
    assert counts.tolist() == [[12]]  # somebody may have been client 0 of the first run and client 1 of the second


def _releases():
    from dp_accounting import NeighboringRelation

    from privfl.privacy.accounting.release import Cost, Release
    from privfl.privacy.door.dpsgd import DPSGD

    event = DPSGD(noise_multiplier=2.0).event(2.0, 0.1)
    yield Release.of("update", {("sample", "public"): Cost(event, NeighboringRelation.ADD_OR_REMOVE_ONE)})


def test_the_page_of_a_study_shows_the_statements_numbers_and_fetches_nothing(study):
    page = report_directory(study / NAME).read_text(encoding="utf-8")
    for result in shown(study):
        for epsilon in result.epsilons.values():
            assert ("∞" if epsilon is None else round_up(epsilon)) in page
    assert "A &lt;script&gt; of &amp; studies" in page
    assert "noisy &lt;b&gt;" in page
    assert page.count("<script") == 1
    assert not re.search(r"<b>|<link|(?:src|href)=[\"'](?!data:|#)|url\((?!#)|@import|https?:", page)
    assert "prefers-color-scheme: dark" in page
    assert {path.name for path in (study / NAME / "figures").iterdir()} == {
        "pareto.png",
        "curves-fedavg.png",
        "clients.png",
    }


def test_no_epsilon_on_a_runs_page_is_missing_from_its_statement(study):
    folder = folders(study)[2]
    page = report_directory(folder).read_text(encoding="utf-8")
    claims = statement(folder)
    allowed = {round_up(cell.epsilon) for cell in claims.cells}
    allowed |= {round_up(cell.clients.minimum) for cell in claims.cells} | {"1", "8"}  # the two of the explanation
    allowed |= {round_up(cell.answers.epsilon) for cell in claims.cells if cell.answers is not None}
    told = re.findall(
        r"ε(?:\s|&nbsp;)*=(?:\s|&nbsp;)*([0-9.]*[0-9]|∞)", re.sub(r"<pre>.*?</pre>", "", page, flags=re.S)
    )
    assert round_up(claims.cell("sample", "public").epsilon) in told
    assert set(told) <= allowed
    assert (folder / "figures" / "epsilon.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_in_memory_has_a_page_that_escapes_what_it_shows(tmp_path):
    run = Experiment.from_dict(settings(2.0)).run()
    run.summary["warnings"].append("<img src=x onerror=alert(1)>")
    pf.write_report(run, tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img src=x" not in page
    assert round_up(run.statement.cell("sample", "server").epsilon) in page


def test_the_page_of_a_run_whose_directory_is_damaged_is_one_sentence(tmp_path):
    run = Experiment.from_dict(settings(2.0)).run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(DataError, match=r"summary\.json cannot be read: .*; restore it, or repeat what wrote it"):
        pf.write_report(run, tmp_path / "run.html")


@pytest.mark.parametrize("name", ["statement.json", "summary.json", "environment.json", "config.toml"])
def test_a_missing_file_of_a_run_is_one_sentence_that_names_it(study, name):
    folder = folders(study)[0]
    (folder / name).unlink()
    with pytest.raises(DataError, match=re.escape(name) if name != "statement.json" else "go on with --resume"):
        report_directory(folder)


@pytest.mark.parametrize("name", ["statement.json", "summary.json", "metrics.jsonl", "environment.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", '{"rounds": 3}', "null"])
def test_a_damaged_file_of_a_run_is_one_sentence(study, name, content):
    folder = folders(study)[2]
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        report_directory(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("told", ["{", "[1]", '{"metric": "x"}', "null"])
def test_a_damaged_index_is_one_sentence(study, told):
    with closing(sqlite3.connect(study / "results.sqlite", isolation_level=None)) as index:
        index.execute("UPDATE studies SET told = ?", (told,))
    with pytest.raises(DataError, match=r"results\.sqlite is damaged \(.*\); move it away"):
        report_directory(study / NAME)


def test_a_folder_that_holds_nothing_of_ours_is_refused(tmp_path):
    with pytest.raises(DataError, match="no finished run and no study"):
        report_directory(tmp_path)


def result(method="m", level="l", seed=0, accuracy=0.5, epsilon: float | None = 2.0) -> Result:
    return Result(method, level, seed, accuracy, dict.fromkeys(CELLS, epsilon), "f")


def test_a_summary_is_the_mean_the_sample_deviation_and_the_worst_claim():
    (row,) = summarise([result(accuracy=0.5, epsilon=1.0), result(seed=1, accuracy=0.7, epsilon=2.0)])
    assert (row.seeds, row.value, row.epsilons["sample/public"]) == (2, pytest.approx(0.6), 2.0)
    assert row.deviation == pytest.approx(math.sqrt(0.02))
    assert percent(row) == "60.0 ± 14.1 %"
    (row,) = summarise([result(epsilon=1.0), result(seed=1, epsilon=None)])
    assert row.epsilons["sample/public"] is None


def test_one_seed_tells_no_spread_and_no_winner():
    rows = summarise([result("a", accuracy=0.5), result("b", accuracy=0.9)])
    assert percent(rows[0]) == "50.0 %"
    assert not any("ahead" in sentence for sentence in findings(rows))


def test_findings_say_when_seeds_do_not_settle_it_and_who_claims_nothing_against_the_server():
    def row(method: str, accuracy: float, server: float | None) -> Summary:
        return Summary(method, "ε = 3", 3, accuracy, 0.01, dict.fromkeys(CELLS, 3.0) | {"sample/server": server})

    close = findings([row("a", 0.90, 3.0), row("b", 0.91, 3.0)])[-1]
    assert "1.0 points ahead of a" in close
    assert "do not settle" in close
    apart = findings([row("a", 0.80, 3.0), row("b", 0.91, None)])[-1]
    assert "11.0 points ahead of a, more than twice the spread" in apart
    assert "nothing against the server" in apart


def test_a_printed_epsilon_is_never_below_the_claim():
    assert (finite(None), finite(2.9996), finite(1.0411)) == ("∞", "3.00", "1.05")


def test_the_pareto_plot_draws_every_method_where_its_claim_is():
    rows = summarise([result("a", "1", epsilon=1.0), result("a", "8", epsilon=8.0), result("a", "none", epsilon=None),
                      result("b", "1", epsilon=1.0, accuracy=0.4)])  # fmt: skip
    (axes,) = pareto(rows).axes
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == [finite(1.0), finite(8.0), "∞\n(nothing claimed)"]
    drawn = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    assert drawn[0] == pytest.approx([1.0, 8.0], rel=0.05)


def test_curves_average_over_seeds_and_count_short_runs_up_to_their_end():
    figure = curves({"x": [[(1, 0.2), (2, 0.4)], [(1, 0.4)]]})
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([0.3, 0.4])


def test_a_run_that_claims_nothing_says_so_in_its_figure():
    line = {"round": 0, "test_loss": 1.0, "test_accuracy": 0.5, "epsilon": {}}
    (axes,) = run_charts([line])["epsilon"].axes
    assert "nothing is claimed in any cell" in [text.get_text() for text in axes.texts]


def test_the_example_runs_in_small(tmp_path, monkeypatch, capsys):
    arguments = ["--methods", "fedavg", "--epsilons", "8", "--seeds", "1", "--rounds", "2", "--processes", "1"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--out", str(tmp_path), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert re.search(r"fedavg +ε = 8 .* %.* 8\.00", capsys.readouterr().out)
    assert (tmp_path / "utility" / "report.html").exists()
