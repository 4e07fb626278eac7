"""What a folder of results holds is results, also after a process that held it was killed."""

import pytest

import privfl as pf
from privfl.files import write_json
from privfl.lock import FolderLock
from privfl.study.attacks import read_attacks
from privfl.study.audits import read_audits
from privfl.study.filed import filed
from privfl.study.record import read_run

AUDIT = {
    **{"audit": "rare-tokens", "unit": "sample", "observer": "server", "claim": 2.0, "verdict": "not refuted"},
    **{"refuted": False, "settings": {}, "bounds": [{"epsilon": 0.5, "assumes": "", "details": {}}]},
}


@pytest.fixture
def run(tmp_path):
    """A finished run that somebody was about to attack and to audit when the process was killed."""
    task = pf.load("digits", partition=pf.IID(clients=2), model="logistic")
    pf.simulate(task, pf.FedAvg(), rounds=1, out=tmp_path / "run")
    for room in ("attacks", "audits"):
        folder = tmp_path / "run" / room
        lock = FolderLock(folder)
        with lock.held():
            left = (folder / "holder.json").read_bytes()
        (folder / "holder.json").write_bytes(left)
    return tmp_path / "run"


def test_who_held_the_folder_is_no_result(run):
    assert filed(run / "audits") == []
    assert read_audits(run) is None
    assert read_attacks(run) is None
    assert not any(name.startswith(("audit", "attack")) for name in read_run(run)[0])


def test_results_beside_it_are_read(run):
    write_json(run / "audits" / "rare-tokens.json", AUDIT)
    assert [path.name for path in filed(run / "audits")] == ["rare-tokens.json"]
    assert read_run(run)[0]["audit rare-tokens bound"] == 0.5
    assert len(read_audits(run)["rows"]) == 1
