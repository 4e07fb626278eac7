"""One process at a time writes to a folder, another one is told who it is, and a dead one is in nobody's way."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading

import pytest

from privfl import lock as lock_module
from privfl.errors import ConfigError, PrivflError
from privfl.lock import HOLDER, LOCK, FolderLock, Holder

CHILD = """
import sys, time
from pathlib import Path
from privfl.lock import FolderLock
with FolderLock(Path(sys.argv[1])).held():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lock_module, "PATIENCE", 0.05)


@pytest.mark.usefixtures("impatient")
def test_the_second_one_is_told_who_holds_the_folder(tmp_path):
    told = []

    def second():
        try:
            with FolderLock(tmp_path).held():
                told.append("held")
        except ConfigError as error:
            told.append(str(error))

    with FolderLock(tmp_path).held():
        second()
        other = threading.Thread(target=second)
        other.start()
        other.join()
    second()
    assert told[0] == told[1]
    assert told[0].startswith(f"{tmp_path} is in use by process {os.getpid()} on ")
    assert told[0].endswith("; wait for its end, stop it, or choose another folder")
    assert told[2] == "held"


@pytest.mark.usefixtures("impatient")
def test_another_process_is_named_and_after_its_death_the_folder_is_free(tmp_path, caplog):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(ConfigError, match=f"in use by process {child.pid} on .*, since 20"),
            FolderLock(tmp_path).held(),
        ):
            pass
    finally:
        child.kill()
        child.wait()
    with caplog.at_level(logging.WARNING), FolderLock(tmp_path).held():
        pass
    (record,) = caplog.records
    assert f"was in use by process {child.pid} on" in record.message
    assert record.message.endswith("which died without letting go; this process takes over")


def test_who_lets_go_leaves_no_name_and_the_next_one_says_nothing(tmp_path, caplog):
    for _ in range(2):
        with FolderLock(tmp_path / "new").held():
            assert Holder.of(tmp_path / "new").pid == os.getpid()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK]
    assert caplog.records == []


def test_a_folder_that_went_or_is_somebody_elses_is_noticed(tmp_path):
    folder = tmp_path / "run"
    lock = FolderLock(folder)
    lock.check()  # nothing is held, nothing can be lost
    with lock.held():
        lock.check()
        mine = (folder / HOLDER).read_bytes()
        (folder / HOLDER).unlink()
        with pytest.raises(PrivflError, match=rf"run lost its {HOLDER} while it was being written to"):
            lock.check()
        shutil.rmtree(folder)
        with pytest.raises(PrivflError, match="run was removed while it was being written to"):
            lock.check()
        with FolderLock(folder).held(), pytest.raises(PrivflError, match="run was taken over by process"):
            lock.check()
        (folder / HOLDER).write_bytes(mine)
        lock.check()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": "x"}', '{"pid": 1e999}', "[" * 100_000])
def test_a_damaged_name_stops_nobody(tmp_path, content):
    (tmp_path / HOLDER).write_text(content)
    with FolderLock(tmp_path).held():
        assert json.loads((tmp_path / HOLDER).read_text())["pid"] == os.getpid()


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PrivflError, match=r"cannot write .*file"), FolderLock(tmp_path / "file").held():
        pass


def test_the_name_of_a_holder_that_died_can_be_cleared_and_that_of_a_living_one_cannot(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    with first.held():
        first.clear()
        second.clear()
        assert (tmp_path / HOLDER).exists()
        name = (tmp_path / HOLDER).read_bytes()
    (tmp_path / HOLDER).write_bytes(name)
    second.clear()
    assert not (tmp_path / HOLDER).exists()
    with first.held():
        pass
