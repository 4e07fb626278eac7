"""Ctrl-C ends a command in one sentence, whatever it leaves half made."""

import signal
import subprocess
import sys
import threading

import pytest
import typer

from privfl.commands.interrupts import interruptible, only_once

PROGRAM = """
import os, signal, sys
from privfl.commands.interrupts import interruptible

class Half:
    def __init__(self):
        if "interrupt" in sys.argv:
            os.kill(os.getpid(), signal.SIGINT)
        self.whole = True
    def __del__(self):
        print(self.whole and self.missing)

with interruptible("repeat it"):
    Half()
"""
PRESSED = """
import atexit, os, signal
from privfl import cli
from privfl.commands.interrupts import interruptible

def press():
    os.kill(os.getpid(), signal.SIGINT)

@cli.app.command()
def often():
    with interruptible("repeat it"):
        try:
            press()
        finally:
            press()

@cli.app.command()
def elsewhere():
    press()

atexit.register(press)
cli.main()
"""


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """What a shell starts in the background has the signal ignored, and so has what that starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended(*arguments):
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


def test_what_an_interrupt_leaves_half_made_shows_no_traceback():
    done = ended("interrupt")
    assert "interrupted; what was saved is intact, repeat it" in done.stderr
    assert "__del__" not in done.stderr


def test_without_an_interrupt_an_object_that_cannot_go_is_shown():
    done = ended()
    assert done.returncode == 0
    assert "has no attribute 'missing'" in done.stderr


def test_without_an_interrupt_hooks_and_handlers_are_what_they_were():
    before = sys.unraisablehook, signal.getsignal(signal.SIGINT)
    with only_once():
        outer = signal.getsignal(signal.SIGINT)
        with interruptible("go on"):
            assert sys.unraisablehook is not before[0]
        assert signal.getsignal(signal.SIGINT) is outer
    assert (sys.unraisablehook, signal.getsignal(signal.SIGINT)) == before


def test_after_an_interrupt_the_process_ignores_others():
    before = sys.unraisablehook
    with pytest.raises(typer.Exit) as ended, only_once(), interruptible("go on"):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert ended.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert sys.unraisablehook is before


@pytest.mark.parametrize(
    ("command", "said"),
    [("often", "\nprivfl: interrupted; what was saved is intact, repeat it\n"), ("elsewhere", "")],
)
def test_ctrl_c_pressed_again_and_again_up_to_the_end_shows_no_traceback(command, said):
    done = subprocess.run([sys.executable, "-c", PRESSED, command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, said)


def test_another_threads_commands_leave_the_signal_alone():
    found = []

    def command():
        with interruptible("go on"):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_a_signal_that_the_shell_has_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible("go on"):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
