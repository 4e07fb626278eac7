"""The benchmarks run, and record what they measure; what they say about speed is not a test's business."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from privfl.study.file import Study
from privfl.study.store import Store
from tests.programs import python

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = ["rounds=1", "evaluate_every=1", "study.seeds=1", "study.epsilon=[inf]", "study.variant=[]"]


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of ``benchmarks/`` by its name, as the benchmarks import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        module = importlib.import_module(name)
        assert Path(str(module.__file__)).parent == BENCHMARKS
        return module

    return load


def row(benchmark: str, what: str, **more: Any) -> dict[str, Any]:
    return {"benchmark": benchmark, "what": what, "target": 1.0, "median": 0.5, "min": 0.4, "max": 0.6} | more


@pytest.mark.slow
def test_the_benchmark_command_writes_json_and_markdown_and_keeps_what_it_did_not_measure(tmp_path):
    machine = {"processor": "another", "load": 0.25}
    stale = [row("statement", "stale", met=True), row("memory", "kept", met=True)]
    (tmp_path / "latest.json").write_text(json.dumps({"machine": machine, "rows": stale}))
    python(BENCHMARKS / "run.py", "--quick", "--only", "statement", "--out", tmp_path).check_returncode()
    record = json.loads((tmp_path / "latest.json").read_text())
    assert [row["benchmark"] for row in record["rows"]] == [*["statement"] * 4, "memory"]
    assert all(row["met"] == (row["median"] <= row["target"]) for row in record["rows"])
    assert record["measured"]["memory"] == machine
    assert {"processor", "load", "torch", "opacus", "numpy", "dp-accounting"} <= set(record["measured"]["statement"])
    assert (tmp_path / "latest.md").read_text(encoding="utf-8").count("| ≤ 10.0 |") == 2
    epsilons = [row["epsilon"] for row in record["rows"] if "every round's ε" in row["what"]]
    assert all(1 < epsilon < 100 for epsilon in epsilons)
    assert len(epsilons) == 2


@pytest.mark.slow
def test_a_start_is_timed_until_the_first_round_and_a_command_that_fails_is_left_out(benchmark_module):
    starts = benchmark_module("starts")
    (name,) = (name for name in starts.COMMANDS if "digits_dpsgd" in name)
    found = starts.least(starts.COMMANDS[name], starts.ROOT, 1)
    whole = starts.least(["-m", "privfl", "run", str(starts.ROOT / "examples" / "digits_dpsgd.toml")], starts.ROOT, 1)
    assert 0 < found["cpu"] < whole["cpu"]
    assert starts.least(["-m", "privfl", "no-such-command"], starts.ROOT, 1) is None


def test_a_benchmark_that_fails_costs_no_other_its_result(tmp_path, benchmark_module, monkeypatch, capsys):
    runner, made = benchmark_module("run"), [{"what": "quick", "target": 1.0, "median": 0.5, "min": 0.4, "max": 0.6}]

    def failing(repeats: int) -> list[dict[str, Any]]:
        raise SystemExit("a peer ended with -6")

    monkeypatch.setattr(benchmark_module("memory"), "run", failing)
    for name in ("round_time", "statement"):
        monkeypatch.setattr(benchmark_module(name), "run", lambda repeats: made)
    only = [word for name in ("round_time", "memory", "statement") for word in ("--only", name)]
    monkeypatch.setattr(sys, "argv", ["run.py", *only, "--out", str(tmp_path)])
    monkeypatch.setattr(runner.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="1 of the benchmarks failed"):
        runner.main()
    assert "memory failed, the others go on: a peer ended with -6" in capsys.readouterr().out
    assert [row["benchmark"] for row in json.loads((tmp_path / "latest.json").read_text())["rows"]] == [
        "round_time",
        "statement",
    ]


def test_merging_replaces_the_rows_of_the_benchmarks_that_ran_and_no_others(benchmark_module):
    merged = benchmark_module("record").merged
    first = merged({}, [row("a", "1"), row("b", "2")], {"a": {"load": 1.0}, "b": {"load": 2.0}})
    second = merged(first, [row("a", "3"), row("a", "4"), row("c", "5")], {"a": {"load": 3.0}, "c": {"load": 4.0}})
    assert [item["what"] for item in second["rows"]] == ["3", "4", "2", "5"]
    assert second["measured"] == {"a": {"load": 3.0}, "b": {"load": 2.0}, "c": {"load": 4.0}}
    emptied = merged(second, [], {"a": {"load": 5.0}})
    assert [item["what"] for item in emptied["rows"]] == ["2", "5"]


def test_a_row_without_a_target_is_neither_met_nor_missed(benchmark_module, tmp_path):
    record = benchmark_module("record")
    verdicts = [record.with_verdict("a", row("a", "w", target=target))["met"] for target in (0.5, 0.49, None)]
    assert verdicts == [True, False, None]
    whole = record.merged({}, [record.with_verdict("a", row("a", "w", target=None))], {"a": {"load": 0.5}})
    assert "| w | – | 0.500 | 0.400 to 0.600 | – |" in record.markdown(whole)


def test_the_table_says_for_each_benchmark_on_which_machine_and_under_which_load_it_was_measured(benchmark_module):
    record = benchmark_module("record")
    measured = {
        "a": {"processor": "x", "load": 0.1},
        "b": {"processor": "y", "load": 0.2},
        "c": {"processor": "x", "load": 0.3},
    }
    text = record.markdown(record.merged({}, [row(name, "w", met=True) for name in measured], measured))
    assert text.startswith("processor x; load before each: a 0.10, c 0.30\n\nprocessor y; load before each: b 0.20\n")


def test_the_networks_are_those_of_the_peers(benchmark_module):
    works = benchmark_module("networks").WORKS
    for work in works.values():
        work.check()
    assert [work.parameters for work in works.values()] == [5_386, 4_780, 1_199_882]


def test_another_network_than_the_peers_stops_the_benchmark(benchmark_module):
    networks = benchmark_module("networks")
    with pytest.raises(SystemExit, match="5,386 parameters, the peers' 1,199,882"):
        networks.Work(networks.small_network, 1_199_882, 10, 10, "cnn").check()


def test_the_first_rounds_and_the_evaluated_last_one_are_not_timed(benchmark_module):
    timed_gaps = benchmark_module("rounds").timed_gaps
    ends = [0.0, 100.0, 103.0, 107.0, 200.0]  # five rounds end; the first two warm up, the last evaluates
    assert timed_gaps(ends, warmup=2) == [3.0, 4.0]
    assert timed_gaps(ends, warmup=1) == [100.0, 3.0, 4.0]


@pytest.mark.slow
def test_a_run_of_its_own_prints_what_the_peers_scripts_print():
    given = ["--work", "small", "--cohort", "2", "--engine", "loop", "--rounds", "3", "--warmup", "1", "--noise"]
    done = python(BENCHMARKS / "rounds.py", *given)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["rounds_timed"] == 2
    assert line["trained_by"] == "LoopEngine"
    assert line["s_per_round_median"] > 0
    assert 0 <= line["test_accuracy"] <= 1


def test_absent_peers_are_left_out_with_a_sentence_that_says_how_to_install_them(benchmark_module, tmp_path):
    peers = benchmark_module("peers")
    nothing, missing = peers.Peers.find({})
    assert nothing.commands(noise=False) == {}
    assert len(missing) == 1
    assert "PRIVFL_BENCH_PEERS" in missing[0]
    (tmp_path / "common.py").touch()
    half, missing = peers.Peers.find({"PRIVFL_BENCH_PEERS": str(tmp_path), "PRIVFL_BENCH_PFL": sys.executable})
    assert set(half.commands(noise=False)) == {"bare loop", "pfl", "pfl, two processes"}
    assert set(half.commands(noise=True)) == {"pfl", "pfl, two processes"}
    assert len(missing) == 1
    assert "flwr[simulation]" in missing[0]
    assert "PRIVFL_BENCH_FLOWER" in missing[0]


def test_without_peers_the_comparison_has_no_rows(benchmark_module, monkeypatch, capsys):
    monkeypatch.delenv("PRIVFL_BENCH_PEERS", raising=False)
    assert benchmark_module("peers").run(1) == []
    assert "left out" in capsys.readouterr().out


def test_privfl_is_compared_with_the_faster_run_of_each_repeat(benchmark_module):
    seconds = {"privfl": [1.0, 1.0, 1.0], "pfl": [2.0, 4.0, 1.0], "pfl, two processes": [4.0, 2.0, 2.0]}
    (only,) = benchmark_module("peers").rows("cnn", False, seconds, {})
    assert (only["median"], only["min"], only["max"]) == (0.5, 0.5, 1.0)
    assert only["target"] == 0.72
    _, narrow = benchmark_module("peers").rows("cnn", False, seconds | {"privfl, bfloat16": [0.4, 0.8, 0.4]}, {})
    assert (narrow["median"], narrow["min"], narrow["max"], narrow["target"]) == (0.4, 0.2, 0.4, 0.5)
    assert narrow["what"] == "round in bfloat16 / the faster of pfl on one and on two processes's round, CNN, cohort 10"


def test_a_run_that_prints_no_result_ends_the_benchmark_with_what_it_said(benchmark_module):
    command = [sys.executable, "-c", "raise ValueError('the work is undefined')"]
    with pytest.raises(SystemExit, match="the work is undefined"):
        benchmark_module("peers").result(command, {})


def test_a_run_that_does_not_end_is_killed_and_left_out_with_what_it_said(benchmark_module, monkeypatch, capsys):
    peers, engines = benchmark_module("peers"), benchmark_module("engines")
    monkeypatch.setattr(peers, "SECONDS_ALLOWED", 2)
    waits = [sys.executable, "-c", "import sys, time; print('no cluster', file=sys.stderr, flush=True); time.sleep(60)"]
    monkeypatch.setattr(peers.Peers, "commands", lambda self, noise: {peers.FLOWER: waits})
    assert engines.peers_milliseconds(5) == {}
    said = capsys.readouterr().out
    assert "Flower is left out" in said
    assert "gave no result in 2 s:\nno cluster" in said


def test_the_scale_of_a_small_federation_is_measured_and_held_against_the_targets(benchmark_module):
    scale = benchmark_module("scale")
    found = scale.measured(30, (4, 2), repeats=1)
    assert len(found["memory"]) == scale.ROUNDS
    assert found["setup"] > 0
    assert found["peak"] >= max(found["memory"]) > 100
    assert [item["target"] for item in scale.rows(found)] == [4.0, 1.05, 2.5, 2.3]
    growing = {"setup": 1.0, "memory": [50.0, 100.0, 110.0], "peak": 1024.0}
    growing |= {"seconds": [[4.0, 6.0], [2.0, 2.0]], "trained_by": []}
    assert [item["median"] for item in scale.rows(growing)] == [1.0, 1.1, pytest.approx(2**30 / 1e9), 2.5]


def test_round_times_are_drawn_with_every_engine_and_peer_that_was_measured(benchmark_module, tmp_path):
    engines = benchmark_module("engines")
    points = [
        {"round_time": {"cohort": cohort, "milliseconds": dict.fromkeys(("loop, 1 core", "pfl"), float(cohort))}}
        for cohort in engines.COHORTS
    ]
    engines.figure([*points, {"what": "no point"}], tmp_path / "round-time.png")
    assert (tmp_path / "round-time.png").stat().st_size > 1000


def test_local_steps_are_held_against_fedavgs_on_the_same_model_and_batches(benchmark_module):
    steps = benchmark_module("steps")
    case = steps.Case("logistic", 1, steps.SUPERFED, {**steps.MIXTURES, "ReBaFL": steps.ReBaFL()}, 1.5)
    rows = steps.measured(case, 2)
    assert [item["what"].split()[3] for item in rows] == ["SuPerFed-MM", "SuPerFed-LM", "ReBaFL"]
    for item in rows:
        assert item["target"] == 1.5
        assert 0 < item["min"] <= item["median"] <= item["max"]
        assert len(item["milliseconds"]) == 2


def test_steps_are_timed_where_they_do_all_of_their_work(benchmark_module):
    steps = benchmark_module("steps")
    task = steps.task_of(steps.CASES[2])
    for algorithm in steps.MIXTURES.values():
        bound = algorithm.bind(task.context(rounds=2, seed=0))
        assert "mixing" in steps.underway(bound, bound.start(steps.flatten(task.model(0))))


def test_mutated_files_are_taken_or_refused_in_a_sentence(benchmark_module):
    """The same mutants every time; the campaign tries twenty thousand."""
    found = benchmark_module("mutated_files").campaign(160, seed=7, limit=3.0, seconds=60.0, show=False)
    assert found["findings"] == []
    assert found["outcomes"]["refused"] > 60
    assert found["tried"] - found["outcomes"]["refused"] > 5  # taken, or cut off on a slow machine
    assert {kind.split()[0] for kind in found["by kind"]} == {"experiment", "study", "attack", "audit", "index"}


def test_the_table_of_faults_is_that_of_the_recorded_results(benchmark_module):
    module = benchmark_module("reliability_table")
    page = module.PAGE.read_text(encoding="utf-8")
    assert page.split(module.START)[1].split(module.END)[0] == module.table()
    assert "came to something else" not in page
    assert "traceback" not in page.split(module.START)[1]


def test_the_campaigns_of_faults_try_what_the_page_says(benchmark_module):
    module = benchmark_module("reliability")
    assert sum(count for _, count in module.KINDS.values()) == 500
    assert set(module.STEPWISE) < set(module.KINDS)


def test_an_interrupted_study_differs_where_a_figure_or_a_file_does(benchmark_module, tmp_path):
    interrupted = benchmark_module("interrupted_study")
    study = Study.from_toml(BENCHMARKS.parent / "examples" / "studies" / "digits.toml", SMALL)
    study.run(tmp_path / "whole", name="digits", processes=1)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    assert interrupted.differences(tmp_path / "whole", tmp_path / "killed", "digits") == {"rows": [], "files": []}
    (run,) = [path for path in (tmp_path / "killed" / "runs").iterdir() if path.is_dir()]
    (run / "metrics.jsonl").write_text("{}", encoding="utf-8")
    Store(tmp_path / "killed").finish(run.name, {"test_accuracy": 0.5, "seconds": 1.0}, {})
    told = interrupted.differences(tmp_path / "whole", tmp_path / "killed", "digits")
    assert told == {"rows": ["fedavg, no privacy, seed 0"], "files": [f"{run.name}/metrics.jsonl"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["membership_seeds", "adversaries"])
def test_the_membership_campaigns_run_small_and_go_on_where_they_stopped(tmp_path, name):
    out = tmp_path / "found.json"
    small = {"dataset": "digits", "clients": 4, "size": 30, "rounds": 2, "public": 150, "width": 16, "references": 60}
    given = [part for key, value in {**small, "shadow-epochs": 2}.items() for part in (f"--{key}", str(value))]
    command = [BENCHMARKS / f"{name}.py", "--out", out, *given]
    command += ["--seeds", "1"] if name == "membership_seeds" else []
    first = python(*command).stdout
    written = out.read_text()
    assert "|" in first
    again = python(*command).stdout
    assert out.read_text() == written
    assert first.endswith(again)


@pytest.mark.slow
def test_a_node_and_a_driver_that_are_killed_on_a_cluster_of_two_nodes_change_nothing(tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "kills.json"
    command = [sys.executable, str(BENCHMARKS / "ray_kills.py"), "--times", "1", "--kinds", "driver", "node"]
    subprocess.run([*command, "--rounds", "8", "--out", str(out)], check=True, capture_output=True, timeout=300)
    driver, node = json.loads(out.read_text())["trials"]
    assert (node["kind"], driver["kind"], node["same"], driver["same"]) == ("node", "driver", True, True)
    assert len(node["noticed"]) == 1
    assert 0 < driver["round"] < 8


class Listed:
    """An operator as PyTorch's tests list it."""

    def __init__(self, function: Any) -> None:
        self.name, self.op = function.__name__, function

    def sample_inputs(self, *_: Any, **__: Any) -> list[Any]:
        return []


def test_what_rounds_by_place_is_noted_or_missed_and_rows_that_meet_or_chance_do_not_count(
    benchmark_module, monkeypatch
):
    places = benchmark_module("places")
    monkeypatch.setattr(places, "MANY", 200)

    def by_place(values: torch.Tensor) -> torch.Tensor:
        """The last of a pass comes out otherwise, by operations that are exact."""
        return values * (1 + 2.0**-20 * (torch.arange(len(values)) == len(values) - 1))

    def centred(values: torch.Tensor) -> torch.Tensor:
        return values - values.mean(0)

    def drawn(values: torch.Tensor) -> torch.Tensor:
        return values * torch.rand_like(values)

    functions = (torch.relu, torch.sigmoid, by_place, centred, drawn)
    found = places.surveyed(map(Listed, functions))
    assert found["row by row"] == ["by_place", "relu", "sigmoid"]
    assert found["noted"] == ["sigmoid"]
    assert found["missed"].keys() == {"by_place"}
