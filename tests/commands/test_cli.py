"""The command line: what a stranger types, and one sentence where it cannot work."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import pytest

from audits.registry import AUDITS
from privfl.algorithms import ALGORITHMS
from privfl.cli import main
from privfl.data.catalog import datasets
from privfl.data.partitions import PARTITIONS
from privfl.errors import ConfigError
from privfl.models import models
from privfl.study.store import Store

EXPERIMENT = """
rounds = 4
[partition]
name = "iid"
clients = 4
[model]
name = "logistic"
[training]
learning_rate = 0.1
batch_size = 50
"""


@dataclass
class Done:
    """What a command left: exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def privfl(*arguments, folder=None, **environment):
    """The entry point itself, in this process: starting torch anew for every command would take minutes."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["privfl", *map(str, arguments)]),
        patch.dict(os.environ, {"COLUMNS": "200"} | environment),
        contextlib.chdir(folder or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


def test_help_shows_the_product_and_does_not_wait_for_torch():
    program = "import sys; sys.argv[1:] = ['--help']; from privfl.cli import main\n"
    program += "try: main()\nfinally: print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0
    assert shown.stdout.strip().endswith("False")
    for command in ("run", "demo", "list", "data", "account", "report"):
        assert command in shown.stdout


def test_a_run_prints_its_statement_and_fills_its_directory(experiment, tmp_path):
    done = privfl("run", experiment, "--set", "seed=3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Privacy statement: 4 clients" in done.stdout
    assert "accuracy" in done.stderr
    folder = tmp_path / "runs" / "small"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    expected = {
        "config.toml",
        "engine.json",
        "environment.json",
        "fingerprint.json",
        "metrics.jsonl",
        "run.lock",
        "timing.jsonl",
        "statement.json",
        "summary.json",
    }
    assert files == expected | {"checkpoints/latest.npz"}
    assert "seed = 3" in (folder / "config.toml").read_text()
    assert privfl("report", folder).returncode == 0
    assert "<table" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_same_run_again_needs_resume_or_another_folder(experiment, tmp_path):
    assert privfl("run", experiment, folder=tmp_path).returncode == 0
    again = privfl("run", experiment, folder=tmp_path)
    assert again.returncode == 2
    assert again.stderr.strip().endswith(
        "go on with --resume or choose another folder with --out (from Python: resume=True, or another out=)"
    )
    assert privfl("run", experiment, "--resume", folder=tmp_path).returncode == 0
    other = privfl("run", experiment, "--resume", "--set", "seed=9", folder=tmp_path)
    assert other.returncode == 2
    assert "other settings" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "algorithm.name=fedavgg"], "did you mean 'fedavg'"),
        (["--set", "training.epochs=-1"], "training.epochs is -1"),
        (["--set", "partition.clients=5000"], "5000"),
        (["--set", "model.name=lstm"], "lstm"),
        (["--set", "privacy.budget.epsilon=1"], "does not allow a single round"),
        (["--set", "dataset.name=cifar10"], "cifar10 needs"),
        (["--set", "device=gpu"], "unknown device 'gpu'"),
    ],
)
def test_a_users_error_is_one_sentence_on_stderr_and_exit_code_2(experiment, tmp_path, arguments, sentence):
    settings = {"PRIVFL_DATA": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "https_proxy": "http://127.0.0.1:9"}
    done = privfl("run", experiment, *arguments, folder=tmp_path, **settings)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("privfl: ")


def test_a_run_that_learns_nothing_is_recorded_whole_and_ends_with_the_reason(experiment, tmp_path):
    done = privfl("run", experiment, "--set", "training.learning_rate=1e30", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("privfl: the run failed: no upload could be used in any of 4 rounds")
    assert "Privacy statement" in done.stdout
    assert len((tmp_path / "runs" / "small" / "metrics.jsonl").read_text().splitlines()) == 4
    assert privfl("report", tmp_path / "runs" / "small").returncode == 0


def test_a_model_that_diverges_without_losing_an_upload_is_recorded(experiment, tmp_path):
    wide = ("--set", "training.learning_rate=1e30", "--set", "max_upload_norm=inf")
    assert privfl("run", experiment, *wide, folder=tmp_path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "runs" / "small" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["test_loss"] is None or lines[-1]["test_loss"] > 100


def test_a_run_may_go_on_with_another_number_of_workers(experiment, tmp_path):
    assert privfl("run", experiment, "--set", "workers=1", folder=tmp_path).returncode == 0
    assert privfl("run", experiment, "--set", "workers=2", "--resume", folder=tmp_path).returncode == 0


def test_a_missing_file_and_a_folder_without_a_run_are_one_sentence(tmp_path):
    assert "cannot read none.toml" in privfl("run", "none.toml", folder=tmp_path).stderr
    assert "holds no finished run and no study" in privfl("report", tmp_path).stderr
    Store(tmp_path / "studies")
    assert "is the folder of no study; the store holds none" in privfl("report", tmp_path / "studies").stderr


def test_debug_shows_where_an_error_came_from(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read none\.toml"):
        privfl("run", "none.toml", folder=tmp_path, PRIVFL_DEBUG="1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_run_whose_output_nothing_takes_names_its_folder(experiment, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["privfl", "run", str(experiment), "--out", "out", *form])
    errors = io.StringIO()
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full), contextlib.redirect_stderr(errors):
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
    assert errors.getvalue().endswith(
        "\nprivfl: standard output: No space left on device; the run is done and lies in out "
        "(privfl report out writes its page)\n"
    )
    assert (tmp_path / "out" / "statement.json").exists()


def test_a_disk_that_refuses_a_report_asks_for_no_option_that_report_lacks(experiment, tmp_path):
    assert privfl("run", experiment, "--out", "out", folder=tmp_path).returncode == 0
    (tmp_path / "out" / "report.html").mkdir()
    done = privfl("report", "out", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("privfl: cannot write out/report.html: ")
    assert done.stderr.endswith("; what was saved before is intact, mend that and repeat the command\n")


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on_and_the_run_goes_on(experiment, tmp_path):
    settings = ["--set", "rounds=100", "--set", "checkpoint_seconds=0.0", "--out", "out"]
    command = [sys.executable, "-m", "privfl", "run", str(experiment), *settings]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell may have it ignored
    )
    metrics = tmp_path / "out" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") > 20):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "go on with --resume" in errors
    assert "Traceback" not in errors
    done = privfl("run", experiment, *settings, "--resume", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert metrics.read_text().count("\n") == 100


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("algorithms", set(ALGORITHMS)),
        ("partitions", set(PARTITIONS)),
        ("datasets", {entry.name for entry in datasets()}),
        ("models", {model.name for model in models()}),
        ("audits", set(AUDITS)),
        ("mechanisms", {"dpsgd", "clip", "gaussian-noise", "size: grr", "size: laplace"}),
    ],
)
def test_lists_are_complete_and_valid_json(kind, names):
    rows = json.loads(privfl("list", kind, "--json").stdout)
    assert names <= {row["name"] for row in rows}
    assert all(row["summary"] for row in rows)


def test_many_algorithms_take_a_line_each_and_one_is_told_in_full():
    overview = privfl("list", "algorithms").stdout
    assert all(any(line.split()[:1] == [name] for line in overview.splitlines()) for name in ALGORITHMS)
    assert "learning_rate" not in overview
    told = privfl("list", "algorithms", "bsm-fedavg").stdout
    assert "weighting = size" in told
    assert "no: bsm-fedavg masks the classes" in told
    unknown = privfl("list", "algorithms", "fedavgg")
    assert unknown.returncode == 2
    assert "did you mean 'fedavg'?" in unknown.stderr


def account(*arguments):
    done = privfl("account", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_accounts_agree_with_published_and_cross_computed_values():
    """Randomised response by trinomial convolution, Gaussian by dp-accounting 0.6.0's PLD (see tests/oracles)."""
    answers = account("response", "--epsilon", 3, "--domain", 99, "--answers", 100, "--delta", 1e-5)
    assert answers["epsilon"] == pytest.approx(101.72, abs=0.01)
    steps = account("epsilon", "--noise-multiplier", 1.5, "--sample-rate", 0.04, "--steps", 2250, "--delta", 1e-5)
    assert steps["epsilon"] == pytest.approx(6.768787, rel=1e-3)
    assert steps["lower"] <= steps["epsilon"]
    noise = account("noise", "--target-epsilon", 3, "--sample-rate", 0.01, "--steps", 1000, "--delta", 1e-5)
    spent = account("epsilon", "--noise-multiplier", noise["noise_multiplier"], "--sample-rate", 0.01, "--steps", 1000)
    assert 2.98 < spent["epsilon"] <= 3.0


def test_a_terminal_that_has_no_epsilon_still_gets_its_answer():
    command = [sys.executable, "-m", "privfl", "account", "epsilon", "--noise-multiplier", "1", "--steps", "10"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "cp1252"}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert b"epsilon = " in done.stdout
    assert b"epsilon = epsilon" not in done.stdout


def test_impossible_accounts_are_one_sentence():
    assert privfl("account", "epsilon", "--noise-multiplier", 1, "--steps", 10, "--sample-rate", 2).returncode == 2
    assert privfl("account", "noise", "--target-epsilon", -1, "--steps", 10).returncode == 2
    for number in (-1, 1e-300, 1e300):
        impossible = privfl("account", "epsilon", "--noise-multiplier", number, "--steps", 10)
        assert impossible.returncode == 2
        assert "give 0, or a number between 1e-15 and 1e+09" in impossible.stderr
    nothing = privfl("account", "response", "--epsilon", 1, "--domain", 5, "--answers", 0)
    assert "--answers is 0; give a whole number of at least 1" in nothing.stderr


def test_an_account_says_when_delta_does_all_the_work():
    arguments = ["epsilon", "--noise-multiplier", 5, "--steps", 1, "--delta"]
    assert account(*arguments, 0.4)["epsilon"] == 0
    assert account(*arguments, 0.4)["note"].endswith("a claim for fewer than 2.5 units, else none")
    assert "fewer than 2.5 units" in privfl("account", *arguments, 0.4).stdout
    assert "note" not in account(*arguments, 1e-5)
    for command in (arguments[:-1], ["noise", "--target-epsilon", 3, "--steps", 10]):
        refused = privfl("account", *command, "--delta", 0.9)
        assert refused.returncode == 2
        assert "--delta is 0.9; give a number from 0 up to but not including 0.5" in refused.stderr


def test_data_commands(tmp_path):
    assert "needs no file" in privfl("data", "get", "digits").stdout
    assert "CC BY 4.0" in privfl("data", "info", "digits").stdout
    arguments = ["--partition", "dirichlet", "--set", "clients=5", "--set", "alpha=0.3", "--out", "p.png"]
    done = privfl("data", "plot", "digits", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_python_m_privfl_and_the_version():
    done = subprocess.run([sys.executable, "-m", "privfl", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"privfl {version('privfl')}\n")
    assert privfl("--version").stdout == done.stdout


def test_flags_take_no_value_in_the_help():
    for arguments, flags in ((["list"], ["--json"]), (["run"], ["--resume"]), (["account", "epsilon"], ["--json"])):
        lines = privfl(*arguments, "--help", COLUMNS="200").stdout.splitlines()
        shown = [line for line in lines if any(flag in line for flag in flags)]
        assert shown
        assert not any("<bool>" in line for line in shown)
