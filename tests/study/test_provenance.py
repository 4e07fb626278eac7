"""Where a run comes from is told from its files, and what they do not say is said to be unknown."""

from privfl.study.provenance import code, data, not_tried

MACHINE = {"python": "3.11.7", "packages": {"torch": "2", "privfl": "0.1"}}


def test_the_commit_is_told_or_said_not_to_be_recorded():
    assert dict(code(MACHINE | {"commit": "abc"}))["commit of privfl"] == "abc"
    assert dict(code(MACHINE))["commit of privfl"].startswith("not recorded")
    assert dict(code(MACHINE))["versions"] == "privfl 0.1, torch 2, Python 3.11.7"


def test_data_of_the_catalog_have_title_and_licence_and_own_data_say_where_they_are_from():
    known = dict(data({"dataset": {"name": "digits"}, "partition": {"name": "dirichlet", "alpha": 0.5}}))
    assert known["licence of the data"] == "CC BY 4.0"
    assert known["dealt to clients by"] == "dirichlet (alpha = 0.5): a simulated division"
    assert dict(data({"arrays": {"file": "patients.csv"}}))["data"] == "own data: patients.csv"
    assert dict(data({"arrays": "data.npz"}))["data"] == "own data: data.npz"
    assert dict(data({"task": "mine:hospitals"}))["data"] == "own data from mine:hospitals"
    handed = dict(data({"data": {"inputs": "f00"}}))
    assert "only hashes of it" in handed["data"]
    assert handed["dealt to clients by"] == "the clients that the data name"


def test_what_was_not_recorded_cannot_be_attacked(tmp_path):
    for record, missing in (("false", 2), ("true", 0), ('["server"]', 1)):
        (tmp_path / "config.toml").write_text(f"record = {record}\n")
        assert sum(one.startswith("Attacks on") for one in not_tried(tmp_path)) == missing
