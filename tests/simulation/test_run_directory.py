"""A run on disk survives whatever stops it."""

import errno
import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from privfl.errors import ConfigError, DataError, PrivflError
from privfl.files import append, sha256, write_whole
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation.checkpoint import Checkpoint
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.repeated_rounds import RepeatedRounds
from privfl.simulation.run_directory import CHECKPOINT, RunDirectory

FINGERPRINT = Fingerprint({"inputs": "a", "targets": "b", "model": "c", "torch": "2.12.0"}, {"model": "my_net:Net"})
KEY = NoiseSource(b"\x01" * 32, reproducible=False)


def begin(directory, settings, *, resume=False, source=KEY, fingerprint=FINGERPRINT, noisy=True):
    """The checkpoint to go on from."""
    return directory.begin(settings, fingerprint, source, noisy=noisy, resume=resume)[0]


def end(directory):
    """Make the run one that came to its end with the checkpoint that is there."""
    directory.write_json("summary.json", {"sha256": {CHECKPOINT: sha256(directory.checkpoint_file)}})


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


def test_a_checkpoint_comes_back_as_it_was(directory):
    begin(directory, {"rounds": 3}, noisy=False)
    tensors = {"server/parameters": torch.randn(7), "server/rate": torch.tensor(0.3, dtype=torch.float64)}
    directory.save(Checkpoint(2, tensors, {"ledger": {"a": [1, 2]}}))
    found = begin(directory, {"rounds": 3}, noisy=False, resume=True)
    assert found is not None
    assert found.round == 2
    assert found.meta == {"ledger": {"a": [1, 2]}}
    for name, tensor in tensors.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype


def test_a_second_run_in_the_same_folder_is_refused(directory):
    begin(directory, {})
    with pytest.raises(ConfigError, match="already holds a run"):
        begin(directory, {})


def test_a_run_is_not_resumed_with_other_settings(directory):
    settings = {"rounds": 3, "workers": 1, "privacy": {"update": [{"name": "clip"}], "target_delta": 1e-5}}
    begin(directory, settings)
    same = {"privacy": dict(reversed(settings["privacy"].items())), "workers": 7, "rounds": 3}
    begin(directory, same, resume=True)
    other = {"rounds": 4, "seed": 1, "privacy": {"update": []}}
    differing = re.escape(
        "privacy.target_delta is 1e-05 there and 'not set' here; privacy.update is [{'name': 'clip'}] there and [] "
        "here; rounds is 3 there and 4 here; seed is 'not set' there and 1 here; repeat"
    )
    with pytest.raises(ConfigError, match=f"other settings: {differing}"):
        begin(directory, other, resume=True)


def test_a_run_whose_settings_were_changed_by_hand_is_not_gone_on_with(directory):
    begin(directory, {"rounds": 3})
    (directory.path / "config.toml").write_text("rounds = 4\n")
    for settings in ({"rounds": 3}, {"rounds": 4}):
        with pytest.raises(DataError, match="was changed since the run began"):
            begin(directory, settings, resume=True)
    (directory.path / "config.toml").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        begin(directory, {"rounds": 3}, resume=True)


def test_metrics_beyond_the_checkpoint_and_a_torn_last_line_are_cut(directory):
    begin(directory, {})
    rounds = RepeatedRounds(directory, noisy=True)
    for round in range(5):
        rounds.differs(round, {})
        directory.append("metrics.jsonl", {"round": round})
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "test_acc')
    directory.save(Checkpoint(3, {}, {}))
    begin(directory, {}, resume=True)
    assert directory.metrics() == [{"round": 0}, {"round": 1}, {"round": 2}]


def test_seconds_that_cannot_be_written_again_are_left_out(directory):
    begin(directory, {}, noisy=False)
    (directory.path / "timing.jsonl").write_text('{"round": 0, "seconds": 1.0}\n{"round": 1, "seconds": [1e999]}\n')
    directory.save(Checkpoint(2, {}, {}))
    begin(directory, {}, noisy=False, resume=True)
    assert (directory.path / "timing.jsonl").read_text() == '{"round": 0, "seconds": 1.0}\n'


def test_a_damaged_checkpoint_is_one_sentence(directory):
    begin(directory, {})
    directory.save(Checkpoint(1, {"server/parameters": torch.ones(100)}, {}))
    content = directory.checkpoint_file.read_bytes()
    directory.checkpoint_file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"cannot read .*latest\.npz"):
        begin(directory, {}, resume=True)


def test_a_checkpoint_with_pickled_objects_is_refused(directory):
    begin(directory, {})
    np.savez(directory.checkpoint_file, meta=np.array([{"round": 1}], dtype=object))
    with pytest.raises(DataError, match="cannot read"):
        begin(directory, {}, resume=True)


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
    with pytest.raises(PrivflError, match="cannot write /dev/full: No space left on device"):
        append(Path("/dev/full"), "x" * 10_000)


def resumed_key(directory, **changed):
    """The key that a run goes on with where another one was drawn anew."""
    fresh = NoiseSource(b"\x02" * 32, reproducible=False)
    given = {"noisy": True, "resume": True, "source": fresh, **changed}
    return directory.begin({"rounds": 3}, FINGERPRINT, given.pop("source"), **given)[1]


def test_the_noise_key_is_private_stays_the_same_while_the_run_lasts_and_is_erased(directory):
    begin(directory, {"rounds": 3})
    assert resumed_key(directory) == KEY
    assert stat.S_IMODE(directory.key_file.path.stat().st_mode) == 0o600
    assert KEY.key.hex() not in (directory.path / "fingerprint.json").read_text()
    directory.key_file.erase()
    assert not directory.key_file.path.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "noise.key is gone, and what was sent since the checkpoint cannot be repeated"),
        (b"", "holds 0 bytes where a key has 32"),
        (b"01" * 31, "holds 31 bytes where a key has 32"),
        (b"no key", "cannot read .*noise.key"),
        ("ä".encode() * 32, "cannot read .*noise.key"),
        (b"03" * 32, "is not the key that the run began with"),
    ],
)
def test_a_run_goes_on_under_its_own_key_or_not_at_all(directory, content, told):
    begin(directory, {"rounds": 3})
    directory.key_file.path.unlink() if content is None else directory.key_file.path.write_bytes(content)
    with pytest.raises(PrivflError, match=told):
        resumed_key(directory)
    directory.save(Checkpoint(2, {}, {}))
    with pytest.raises(PrivflError, match=told):
        resumed_key(directory)
    directory.save(Checkpoint(3, {}, {}))
    resumed_key(directory)  # nothing remains to be sent


def test_a_run_that_came_to_its_end_needs_no_key(directory):
    begin(directory, {"rounds": 3})
    directory.save(Checkpoint(2, {}, {}))
    end(directory)
    directory.key_file.erase()
    assert directory.finished
    resumed_key(directory)


def test_a_fixed_key_and_one_of_the_operating_system_do_not_follow_each_other(directory):
    begin(directory, {"rounds": 3})
    with pytest.raises(ConfigError, match="began with a key from the operating system; set privacy"):
        resumed_key(directory, source=NoiseSource.from_key(5))
    other = RunDirectory(directory.path.with_name("other"))
    begin(other, {"rounds": 3}, source=NoiseSource.from_key(5))
    with pytest.raises(ConfigError, match="began with a fixed noise_key"):
        resumed_key(other)
    with pytest.raises(ConfigError, match=r"privacy\.noise_key is not the key that the run began with"):
        resumed_key(other, source=NoiseSource.from_key(6))
    assert resumed_key(other, source=NoiseSource.from_key(5)).reproducible


def changed(**parts):
    return Fingerprint({**FINGERPRINT.parts, **parts}, FINGERPRINT.names)


@pytest.mark.parametrize(
    ("here", "told"),
    [
        (changed(inputs="x"), "other settings: the inputs; repeat"),
        (changed(targets="x", inputs="x"), "the inputs; the labels; repeat"),
        (changed(local_tests="x"), "which examples clients hold back for tests; repeat"),
        (changed(model="x"), "the code of my_net:Net; repeat"),
        (changed(torch="2.13.0"), r"torch \(2.12.0 there and 2.13.0 here\); repeat"),
    ],
)
def test_what_messages_depend_on_is_compared_and_named(directory, here, told):
    begin(directory, {"rounds": 3})
    with pytest.raises(ConfigError, match=told):
        begin(directory, {"rounds": 3}, resume=True, fingerprint=here)


def test_without_noise_another_library_may_go_on(directory):
    begin(directory, {"rounds": 3})
    begin(directory, {"rounds": 3}, resume=True, fingerprint=changed(torch="2.13.0"), noisy=False)
    with pytest.raises(ConfigError, match="the inputs"):
        begin(directory, {"rounds": 3}, resume=True, fingerprint=changed(inputs="x"), noisy=False)


def test_at_its_end_a_run_is_compared_by_its_settings_and_data(directory):
    begin(directory, {"rounds": 3})
    directory.save(Checkpoint(3, {}, {}))
    end(directory)
    begin(directory, {"rounds": 3}, resume=True, fingerprint=changed(torch="2.13.0", model="x"))
    with pytest.raises(ConfigError, match="the inputs"):
        begin(directory, {"rounds": 3}, resume=True, fingerprint=changed(inputs="x"))


@pytest.mark.parametrize("lost", ["fingerprint.json", "environment.json"])
def test_a_run_that_cannot_be_compared_does_not_go_on(directory, lost):
    begin(directory, {"rounds": 3})
    directory.save(Checkpoint(1, {}, {}))
    (directory.path / lost).unlink()
    for resume in (True, False)[: 1 if lost == "fingerprint.json" else 2]:
        with pytest.raises(DataError, match=lost):
            begin(directory, {"rounds": 3}, resume=resume)


def test_lines_that_differ_from_the_checkpoint_are_replaced_by_its_own(directory):
    begin(directory, {"rounds": 3}, noisy=False)
    directory.append("metrics.jsonl", {"round": 0, "epsilon": {"sample/public": 8.15}})
    directory.save(Checkpoint(1, {}, {"metrics": [{"round": 0, "epsilon": {"sample/public": 8.0}}]}))
    begin(directory, {"rounds": 3}, noisy=False, resume=True)
    assert directory.metrics() == [{"round": 0, "epsilon": {"sample/public": 8.0}}]


def test_the_environment_names_the_versions(directory):
    begin(directory, {})
    environment = json.loads((directory.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__


def test_a_folder_that_cannot_be_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("taken")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path, reason in {
        "a\0b": "embedded null (byte|character)",
        "file": "a file is in its way",
        "file/run": "a file is in its way",
        "n" * 300: "File name too long",
        "link": "No such file",
    }.items():
        with pytest.raises(ConfigError, match=reason) as refusal:
            RunDirectory(tmp_path / path)
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 400
    assert RunDirectory(tmp_path / "a" / "b").path == tmp_path / "a" / "b"


@pytest.mark.parametrize("name", ["file/summary.json", "n" * 300, "a\0b"])
def test_what_cannot_be_written_is_said_and_cleaning_up_hides_nothing(tmp_path, name):
    (tmp_path / "file").write_text("taken")
    with pytest.raises(PrivflError, match=r"^cannot write .*; what was saved before is intact, mend that and resume"):
        write_whole(tmp_path / name, b"new")
