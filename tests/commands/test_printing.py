"""Commands print where they can, and say so in one sentence where they cannot."""

import errno
import os
import subprocess
import sys

import pytest

from privfl.commands.printing import console, is_of_printing, kept
from privfl.errors import PrivflError

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


def privfl(redirections, *arguments, **environment):
    """What ``privfl ARGUMENTS`` does with the shell's ``redirections``, such as ``>&-``."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "privfl", *arguments]
    told = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=told)


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix")
def test_a_closed_standard_output_takes_nothing_and_stops_nothing():
    done = privfl(">&-", "list", "algorithms")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix")
def test_a_closed_standard_error_puts_no_sentence_among_results():
    done = privfl("2>&-", "list", "nothing")
    assert (done.returncode, done.stdout) == (2, "")


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_standard_output_that_is_full_is_named(unbuffered):
    done = privfl(">/dev/full", "schema", "experiment", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr == ("privfl: standard output: No space left on device; what was saved before is intact\n")


def test_a_table_without_standard_output_goes_nowhere(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    console().print("nothing")


def test_what_is_kept_is_said_save_to_a_reader_that_has_gone():
    with (
        pytest.raises(PrivflError, match=r"^standard output: no room; the run is in here$"),
        kept("the run is in here"),
    ):
        raise OSError(errno.ENOSPC, "no room")
    with pytest.raises(BrokenPipeError), kept("the run is in here"):
        raise BrokenPipeError(errno.EPIPE, "gone")


def test_an_error_of_a_file_is_not_of_printing():
    with pytest.raises(OSError, match="no room") as caught:
        raise OSError(errno.ENOSPC, "no room")
    assert not is_of_printing(caught.value)
