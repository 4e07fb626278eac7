"""A file holds the old or the new content, whatever stops the machine, and JSON knows whether it was changed."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from privfl.errors import DataError, PrivflError
from privfl.files import (
    CannotWrite,
    append,
    erase,
    make_folder,
    read_json,
    read_lines,
    remove,
    then,
    write_json,
    write_whole,
)
from tests.runs.disk import Disk


def refusing(name, code):
    """A function of ``os`` that fails with ``code``."""

    def refuse(*arguments, **more):
        raise OSError(code, os.strerror(code))

    return name, refuse


@pytest.mark.parametrize("name", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_leaves_the_old_content_and_says_why(tmp_path, monkeypatch, name, code):
    path = tmp_path / "file"
    write_whole(path, b"old")
    monkeypatch.setattr(os, *refusing(name, code))
    with pytest.raises(PrivflError, match=f"cannot write {path}: {os.strerror(code)}; what was saved before is intact"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("code", "asked"), [(errno.ENOSPC, "make room"), (errno.EROFS, "mend that")])
def test_whoever_cannot_be_resumed_says_another_mend(code, asked):
    with pytest.raises(PrivflError) as refused, then("try again"):
        raise CannotWrite(Path("page"), OSError(code, "no"))
    assert str(refused.value) == f"cannot write page: no; what was saved before is intact, {asked} and try again"


def test_the_sentence_stays_when_nothing_can_be_tidied_up_either(tmp_path, monkeypatch):
    monkeypatch.setattr(os, *refusing("fsync", errno.ENOSPC))
    monkeypatch.setattr(os, *refusing("unlink", errno.EROFS))
    with pytest.raises(PrivflError, match="No space left on device"):
        write_whole(tmp_path / "file", b"new")


def test_content_name_and_new_folders_are_forced_to_disk_in_that_order(tmp_path):
    disk = Disk(tmp_path)
    with disk.watched():
        write_whole(tmp_path / "new" / "file", b"content")
    assert disk.steps == [
        ("mkdir", "new"),
        ("fsync", "."),
        ("open", "new/file.part"),
        ("write", "new/file.part"),
        ("fsync", "new/file.part"),
        ("replace", "new/file"),
        ("fsync", "new"),
    ]


def test_what_an_interruption_left_beside_a_file_lends_it_neither_content_nor_permissions(tmp_path):
    beside = tmp_path / "key.part"
    beside.write_bytes(b"left over")
    beside.chmod(0o666)
    write_whole(tmp_path / "key", b"key", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b"key"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_link_beside_a_file_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (tmp_path / "file.part").symlink_to(other)
    write_whole(tmp_path / "file", b"content")
    assert other.read_bytes() == b"untouched"
    assert not (tmp_path / "file").is_symlink()


def test_a_line_is_appended_in_one_piece(tmp_path):
    append(tmp_path / "lines", "1\n")
    append(tmp_path / "lines", "2\n")
    assert (tmp_path / "lines").read_text() == "1\n2\n"
    with pytest.raises(PrivflError, match=r"cannot write .*: Is a directory"):
        append(tmp_path, "3\n")


def test_an_erased_file_was_zeros_on_disk_before_it_went(tmp_path):
    path, seen = tmp_path / "key", []
    path.write_bytes(b"secret")

    def look(disk, number, half):
        if disk.steps[number] == ("unlink", "key"):
            seen.append((path.read_bytes(), disk.after_power_cut(names=True)["key"]))

    with Disk(tmp_path, look).watched():
        erase(path)
    assert seen == [(bytes(6), bytes(6))]
    assert not path.exists()
    erase(path)
    remove(path)


def test_a_link_is_not_erased(tmp_path):
    (tmp_path / "other").write_bytes(b"untouched")
    (tmp_path / "key").symlink_to(tmp_path / "other")
    with pytest.raises(DataError, match="key is a symbolic link"):
        erase(tmp_path / "key")
    assert (tmp_path / "other").read_bytes() == b"untouched"


def test_a_file_in_the_way_of_a_folder_is_said(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
    with pytest.raises(PrivflError, match=r"cannot write .*/file/a: (Not a directory|File exists)"):
        write_whole(tmp_path / "file" / "a", b"")


CONTENT = {"rounds": 3, "epsilon": {"sample/public": 1.5}, "warnings": ["δ", None]}


def test_json_comes_back_as_it_was(tmp_path):
    write_json(tmp_path / "a.json", CONTENT)
    assert read_json(tmp_path / "a.json") == CONTENT


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace("1.5", "1.4"), "is damaged or was changed since it was written"),
        (lambda text: text.replace("rounds", "round"), "is damaged or was changed since it was written"),
        (lambda text: text.replace("digest", "digits"), "holds no digest"),
        (lambda text: text[:-3], "is damaged: "),
        (lambda text: "[]", "holds no JSON object"),
        (lambda text: json.dumps(CONTENT), "is damaged, or of an earlier version of privfl: it holds no digest"),
        (lambda text: "[" * 100_000, "is damaged: "),
        (lambda text: "\udcff", "is damaged: "),
        (lambda text: text.replace("1.5", "NaN"), "is damaged: "),
        (lambda text: text.replace("1.5", "1e999"), "is damaged: "),
    ],
)
def test_json_that_was_changed_is_one_sentence(tmp_path, change, told):
    path = tmp_path / "a.json"
    write_json(path, CONTENT)
    path.write_bytes(change(path.read_text(encoding="utf-8")).encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=told):
        read_json(path)


def test_json_files_that_trade_their_places_are_noticed(tmp_path):
    for name in ("a.json", "b.json"):
        write_json(tmp_path / name, CONTENT)
    (tmp_path / "a.json").replace(tmp_path / "b.json")
    with pytest.raises(DataError, match="is damaged or was changed"):
        read_json(tmp_path / "b.json")


def test_json_that_is_missing_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_json(tmp_path / "a.json")


def test_lines_are_read_up_to_the_first_that_is_torn_and_those_of_a_missing_file_are_none(tmp_path):
    assert read_lines(tmp_path / "none.jsonl") == []
    (tmp_path / "some.jsonl").write_text('{"round": 0}\n{"round": 1}\n{"rou')
    assert read_lines(tmp_path / "some.jsonl") == [{"round": 0}, {"round": 1}]
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(tmp_path)
