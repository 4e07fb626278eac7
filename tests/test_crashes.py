"""A process of the suite that dies is told of at the end, with the place where it was."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DYING = """
import ctypes, time

def called():
    {}

def test_that_dies():
    called()

def test_that_does_not():
    pass
"""
CONFTEST = """
import pytest
from tests.crashes import Crashes

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.register(Crashes(config), "crashes")
"""


@pytest.mark.parametrize(
    ("does", "said"), [("ctypes.string_at(0)", "Fatal Python error: Segmentation fault"), ("time.sleep(60)", "Timeout")]
)
def test_where_a_process_was_that_died_is_told_at_the_end(does, said, tmp_path):
    (tmp_path / "test_dying.py").write_text(DYING.format(does))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    settings = "faulthandler_timeout = 5\nfaulthandler_exit_on_timeout = true\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}")
    command = [sys.executable, "-m", "pytest", "-n", "1", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    end = done.stdout.split("gw0 died")[1]
    assert said in end
    assert "in called" in end
    assert "1 failed, 1 passed" in end
