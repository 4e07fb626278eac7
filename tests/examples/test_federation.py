"""One command starts four hospitals and a server as processes of their own, over a network with certificates."""

import json
import socket
from pathlib import Path

import pytest

from privfl.experiment import Experiment
from tests.programs import python

FOLDER = Path(__file__).parents[2] / "examples" / "federation"


@pytest.mark.slow
def test_five_processes_train_together_and_claim_what_the_simulation_claims(tmp_path, data_folder):
    pytest.importorskip("nvflare", reason="pip install 'privfl[federation]'")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    done = python(FOLDER / "start.py", "--out", tmp_path / "federation", "--port", str(port))
    assert done.returncode == 0, done.stderr
    run = tmp_path / "federation" / "server" / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["clients"] for line in lines] == [4] * 5
    expected = Experiment.from_toml(FOLDER / "experiment.toml").run().statement
    assert json.loads((run / "statement.json").read_text(encoding="utf-8")) == json.loads(expected.to_json())
    assert "sample/server" in done.stdout
    for hospital in range(4):
        account = tmp_path / "federation" / f"client-{hospital}" / "state" / "account.json"
        assert json.loads(account.read_text(encoding="utf-8"))["runs"], "every hospital has written down what it gave"
