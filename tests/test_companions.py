"""A file of one's own called attacks.py or audits.py is neither run nor taken for privfl's."""

import subprocess
import sys
import types

import pytest

import attacks
from privfl.companions import companion
from privfl.errors import ConfigError


@pytest.mark.parametrize("name", ["attacks", "audits"])
def test_a_file_of_that_name_in_the_working_directory_is_refused_and_not_run(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("print('this file ran')")
    kind = name.removesuffix("s")
    (tmp_path / "asked.toml").write_text(f'run = "run"\n[[{kind}]]\nname = "any"\n')
    command = [sys.executable, "-m", "privfl", kind, "asked.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "this file ran" not in done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert f"{name}.py where privfl's package '{name}' should be; rename it" in done.stderr


def test_one_that_was_imported_before_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "attacks", types.ModuleType("attacks"))
    with pytest.raises(ConfigError, match="Python finds nothing that it could import where privfl's package 'attacks'"):
        companion("attacks.registry")


def test_a_package_without_code_of_that_name_is_refused(tmp_path, monkeypatch):
    (tmp_path / "attacks").mkdir()
    monkeypatch.delitem(sys.modules, "attacks")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if "editable" not in repr(finder)])
    with pytest.raises(ConfigError, match="where privfl's package 'attacks' should be"):
        companion("attacks")


def test_the_package_beside_privfl_is_the_one():
    assert companion("attacks") is attacks
    assert companion("attacks.registry").ATTACKS is attacks.ATTACKS
