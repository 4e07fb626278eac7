"""The commit that a run records is that of privfl's own source, or none."""

import re
import shutil
import subprocess

import pytest

from privfl.simulation.commit import commit


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not there")
def test_a_commit_is_told_with_its_changes_and_only_where_git_tracks_the_package(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    assert commit(package) is None  # a repository around an installed package is not the package's
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    commit.cache_clear()
    clean = commit(package)
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (package / "__init__.py").write_text("changed")
    commit.cache_clear()
    assert commit(package) == f"{clean}-dirty"
    commit.cache_clear()


def test_without_git_no_commit_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    commit.cache_clear()
    assert commit(tmp_path) is None
    commit.cache_clear()
