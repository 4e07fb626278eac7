"""A run on disk survives whatever stops it."""

import errno
import json
import os
import re
import stat

import numpy as np
import pytest
import torch

from privfl.errors import ConfigError, DataError, PrivflError
from privfl.simulation.run_directory import Checkpoint, RunDirectory, read_lines, write_whole


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


def test_a_checkpoint_comes_back_as_it_was(directory):
    directory.begin({"rounds": 3}, resume=False)
    tensors = {"server/parameters": torch.randn(7), "server/rate": torch.tensor(0.3, dtype=torch.float64)}
    directory.save(Checkpoint(2, tensors, {"ledger": {"a": [1, 2]}}))
    found = directory.begin({"rounds": 3}, resume=True)
    assert found is not None
    assert found.round == 2
    assert found.meta == {"ledger": {"a": [1, 2]}}
    for name, tensor in tensors.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype


def test_a_second_run_in_the_same_folder_is_refused(directory):
    directory.begin({}, resume=False)
    with pytest.raises(ConfigError, match="already holds a run"):
        directory.begin({}, resume=False)


def test_a_run_is_not_resumed_with_other_settings(directory):
    settings = {"rounds": 3, "workers": 1, "privacy": {"update": [{"name": "clip"}], "target_delta": 1e-5}}
    directory.begin(settings, resume=False)
    same = {"privacy": dict(reversed(settings["privacy"].items())), "workers": 7, "rounds": 3}
    directory.begin(same, resume=True)
    other = {"rounds": 4, "seed": 1, "privacy": {"update": []}}
    differing = re.escape(
        "privacy.target_delta is 1e-05 there and 'not set' here; privacy.update is [{'name': 'clip'}] there and [] "
        "here; rounds is 3 there and 4 here; seed is 'not set' there and 1 here; repeat"
    )
    with pytest.raises(ConfigError, match=f"other settings: {differing}"):
        directory.begin(other, resume=True)


def test_a_run_whose_settings_were_changed_by_hand_is_not_gone_on_with(directory):
    directory.begin({"rounds": 3}, resume=False)
    (directory.path / "config.toml").write_text("rounds = 4\n")
    for settings in ({"rounds": 3}, {"rounds": 4}):
        with pytest.raises(DataError, match="was changed since the run began"):
            directory.begin(settings, resume=True)
    (directory.path / "config.toml").unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        directory.begin({"rounds": 3}, resume=True)


def test_metrics_beyond_the_checkpoint_and_a_torn_last_line_are_cut(directory):
    directory.begin({}, resume=False)
    for round in range(5):
        directory.append("metrics.jsonl", {"round": round})
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "test_acc')
    directory.save(Checkpoint(3, {}, {}))
    directory.begin({}, resume=True)
    assert directory.metrics() == [{"round": 0}, {"round": 1}, {"round": 2}]


def test_a_damaged_checkpoint_is_one_sentence(directory):
    directory.begin({}, resume=False)
    directory.save(Checkpoint(1, {"server/parameters": torch.ones(100)}, {}))
    content = directory.checkpoint_file.read_bytes()
    directory.checkpoint_file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"cannot read .*latest\.npz"):
        directory.begin({}, resume=True)


def test_a_checkpoint_with_pickled_objects_is_refused(directory):
    directory.begin({}, resume=False)
    directory.checkpoint_file.parent.mkdir()
    np.savez(directory.checkpoint_file, meta=np.array([{"round": 1}], dtype=object))
    with pytest.raises(DataError, match="cannot read"):
        directory.begin({}, resume=True)


def test_a_full_disk_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PrivflError, match="No space left on device; what was saved before is intact"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_really_full_disk_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    directory = RunDirectory.__new__(RunDirectory)
    directory.path = type("Folder", (), {"__truediv__": lambda self, name: __import__("pathlib").Path("/dev/full")})()
    with pytest.raises(PrivflError, match="cannot write /dev/full: No space left on device"):
        directory.append("metrics.jsonl", {"round": 0, "padding": "x" * 10_000})


def test_the_noise_key_is_private_stays_the_same_while_the_run_lasts_and_is_erased(directory):
    directory.begin({}, resume=False)
    assert directory.noise_key(b"\x01" * 32) == b"\x01" * 32
    assert directory.noise_key(b"\x02" * 32) == b"\x01" * 32
    assert stat.S_IMODE(directory.key_file.stat().st_mode) == 0o600
    directory.erase_key()
    assert not directory.key_file.exists()


def test_the_environment_names_the_versions(directory):
    directory.begin({}, resume=False)
    environment = json.loads((directory.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__


def test_lines_of_a_missing_file_are_none(tmp_path):
    assert read_lines(tmp_path / "none.jsonl") == []
