"""The demo shows what privacy costs, an attack and an audit, and says no more than its runs' files do."""

import csv
import math

import numpy as np
import pytest

from privfl.commands import demo
from privfl.commands.demo import ATTACKED, SIZE, meaningless_labels, run_demo, studies
from privfl.commands.demo_sentences import attacked, audited, costs, hidden
from privfl.commands.examine import check, examine
from privfl.data.partitions.simple import IID
from privfl.errors import PrivflError
from privfl.federation.task import load
from privfl.simulation.run_directory import RunDirectory
from privfl.study.file import Study
from privfl.study.report import report_directory
from privfl.study.results import Results
from privfl.study.store import CELLS, Member, Store
from tests.commands.command_line import privfl


def test_the_labels_of_the_attacked_federation_mean_nothing_and_its_clients_hold_the_same_images():
    task = meaningless_labels(0)
    whole = load("digits", partition=IID(clients=20), model="logistic", seed=0)
    assert len(task.clients) == 20
    assert task.inputs.sum() == pytest.approx(float(whole.inputs.sum()), rel=1e-5)
    counts = np.bincount(np.concatenate([task.targets.numpy(), task.test_targets.numpy()]), minlength=10)
    assert counts.min() > 100  # 180 expected, standard deviation 13
    assert 100 <= len(task.clients[ATTACKED]) <= SIZE["bound"] + 40


def member(method: str, level: str, seed: int = 0, accuracy: float = 0.5, **epsilons: float) -> Member:
    claims = {f"epsilon {cell}": epsilons.get(cell.replace("/", "_"), math.inf) for cell in CELLS}
    return Member(method, level, seed, f"{method}-{level}", "done", metrics={"test_accuracy": accuracy} | claims)


def test_a_sentence_says_before_whom_a_claim_holds():
    both, one = {"sample_server": 2.999, "sample_public": 2.999}, {"sample_public": 2.999}
    told = costs(Results("t", [member("A", "no privacy", accuracy=0.9), member("A", "ε = 3", **both)]))
    assert told.startswith("A names 90.0 % of the held-out digits right without privacy, 50.0 % at ε = 3. Its clients")
    assert "there is no guarantee against the server" in costs(Results("t", [member("A", "ε = 3", **one)]))
    assert "Not all of its claims are finite" in costs(Results("t", [member("A", "ε = 3")]))
    assert costs(Results("t", [])) == hidden(Results("t", [])) == ""


def test_every_cell_is_called_finite_only_if_every_one_is():
    all_four = {cell.replace("/", "_"): 9.001 for cell in CELLS}
    assert "Every cell of the statement is finite" in hidden(Results("t", [member("S", "noise 1", **all_four)]))
    told = hidden(Results("t", [member("S", "noise 1", **all_four | {"client_server": math.inf})]))
    assert "Some cells of the statement stay ∞" in told
    assert "ε = ∞ for a client (9.01 for an image)" in told


@pytest.mark.parametrize(("low", "verdict"), [(0.01, "it succeeds"), (-0.01, "no better than a coin")])
def test_an_attack_succeeds_only_if_its_interval_lies_above_the_nulls(tmp_path, low, verdict):
    store, one = Store(tmp_path), member("A", "ε = 1")
    folder = store.path(one.run) / "attacks"
    folder.mkdir(parents=True)
    auc, gain = {"value": 0.6, "low": 0.5, "high": 0.7}, {"value": 0.1, "low": low, "high": 0.2}
    told = {"primary": "auc", "metrics": {"auc": auc}, "advantage": {"auc": gain}}
    RunDirectory(folder).write_json("loss-trajectory.json", told)
    assert f"At ε = 1 it scores 0.60 (95 % interval 0.50 to 0.70): {verdict}" in attacked(Results("t", [one]), store)


@pytest.mark.parametrize("refuted", [True, False])
def test_a_bound_is_rounded_down_and_a_refuted_claim_is_shouted(tmp_path, refuted):
    store, one = Store(tmp_path), member("A", "ε = 1")
    folder = store.path(one.run) / "audits"
    folder.mkdir(parents=True)
    bounds = [{"epsilon": 0.999, "assumes": ""}, {"epsilon": 1.5678, "assumes": "Gaussian"}]
    told = {"claim": 1.0011, "bounds": bounds, "refuted": refuted, "confidence": 0.95}
    RunDirectory(folder).write_json("rare-tokens.json", told)
    text = audited(Results("t", [one]), store)
    assert "ε is at most 1.01, it is at least 0.99, with nothing assumed, and at least 1.56 if" in text
    assert ("A CLAIM IS REFUTED" in text) == refuted


@pytest.mark.slow
def test_the_demo_in_small_ends_in_one_report_with_every_part_and_goes_on_where_it_was(tmp_path, capsys):
    small = studies(seeds=1, rounds=2, epochs=1, canaries=20)
    small[3].run(tmp_path, processes=1, examine=examine, check=check)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(written) == 2
    run_demo(tmp_path, small, processes=1)
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 14
    for row in rows:
        server, public = (float(row[f"epsilon sample/{who}"] or "inf") for who in ("server", "public"))
        if row["level"] == "no privacy":
            assert (server, public) == (math.inf, math.inf)
        elif row["method"] == "Secure sum":
            assert max(float(row[f"epsilon {cell}"] or "inf") for cell in CELLS) < math.inf
        else:
            target = float(row["level"].removeprefix("ε = "))
            assert 0.95 * target < public <= target
            assert (server == math.inf) == (row["method"] == "FedSampling")
    printed = capsys.readouterr().out
    for word in ("Every cell of the statement is finite", "Attack: ", "Without privacy it scores", "Audit: "):
        assert word in printed
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "loss-trajectory on FedAvg, labels by heart, no privacy, seed 0" in page
    assert "rare-tokens of FedAvg, one step a round, ε = 8, seed 0" in page
    assert (tmp_path / "figures" / "pareto.png").exists()
    assert report_directory(tmp_path).read_text(encoding="utf-8") == page


def test_a_demo_in_which_every_run_fails_says_why(tmp_path):
    base = {"rounds": 1, "dataset": {"name": "digits"}, "partition": {"name": "iid", "clients": 4}}
    broken = Study(base | {"training": {"learning_rate": 1e38}}, title="t")
    with pytest.raises(PrivflError, match=r"no run of the demo succeeded; the first says: .*without having learnt"):
        run_demo(tmp_path, [broken], processes=1)


def test_a_demo_of_which_a_run_fails_tells_the_rest_and_exits_with_1(tmp_path, monkeypatch):
    base = {"rounds": 1, "workers": 1, "dataset": {"name": "digits"}, "partition": {"name": "iid", "clients": 4}}
    good = Study(base | {"model": {"name": "logistic"}}, title="good")
    broken = Study(base | {"training": {"learning_rate": 1e38}}, title="broken")
    monkeypatch.setattr(demo, "studies", lambda: [good, broken, good, good])
    code, out, err = privfl("demo", "--out", tmp_path)
    assert code == 1
    assert err.splitlines()[-1].endswith("1 of the demo's runs failed, each named above with its reason")
    assert "without having learnt" in out
    assert (tmp_path / "report.html").exists()
