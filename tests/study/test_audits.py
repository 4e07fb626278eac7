"""A run's page shows what audits of it certified beside what was claimed."""

import math

import pytest

import audits
import privfl as pf
from audits.result import AuditResult
from privfl.errors import DataError
from privfl.files import write_json
from privfl.study.audits import read_audits


def result(claim, hits):
    bound = audits.epsilon_from_counts(hits, 1000, 1000 - hits, 1000, delta=1e-5, confidence=0.99)
    return AuditResult(
        audit="made up", unit="sample", observer="server", claim=claim, delta=1e-5, confidence=0.95, bounds=(bound,)
    )


@pytest.fixture
def run(tmp_path):
    task = pf.load("digits", partition=pf.IID(clients=2), model="logistic")
    return pf.simulate(task, pf.FedAvg(), rounds=1, out=tmp_path / "run")


def filed(run, name, audit):
    folder = run.path / "audits"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", audit.to_json())


def test_a_page_without_audits_has_no_such_section(run):
    assert read_audits(run.path) is None
    pf.write_report(run, run.path / "report.html")
    assert "<h3>Audits</h3>" not in (run.path / "report.html").read_text(encoding="utf-8")


def test_a_page_names_claim_bound_and_verdict_of_every_audit(run):
    honest, broken = result(math.inf, 700), result(0.5, 900)
    filed(run, "honest", honest)
    filed(run, "broken", broken)
    told = read_audits(run.path)
    bound = audits.epsilon_from_counts(900, 1000, 100, 1000, delta=1e-5, confidence=0.99).epsilon
    first = ("broken", "sample / server", "0.5", f"≥ {bound:.4g}", "nothing", broken.verdict)
    assert told["rows"][0] == first
    assert told["rows"][1][2] == "∞"
    assert "Claims were refuted by broken." in told["sentence"]
    pf.write_report(run, run.path / "report.html")
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "<h3>Audits</h3>" in page
    assert broken.verdict in page


def test_a_damaged_result_is_named(run):
    filed(run, "half", result(1.0, 600))
    path = run.path / "audits" / "half.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(DataError, match=r"half\.json is damaged.* repeat `privfl audit`"):
        read_audits(run.path)
