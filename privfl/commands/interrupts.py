"""Ctrl-C, in one sentence, however often it is pressed."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def interruptible(mend: str) -> Iterator[None]:
    """Turn Ctrl-C into one sentence and exit code 130; from the first one on the process ignores others."""
    try:
        with _quietly():
            yield
    except KeyboardInterrupt:
        typer.echo(f"\nprivfl: interrupted; what was saved is intact, {mend}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def only_once() -> Iterator[None]:
    """Let the first Ctrl-C interrupt what Python lets it interrupt, and the process ignore the next ones."""
    if not _reaches_us():
        yield
        return
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)


def _reaches_us() -> bool:
    """Whether Ctrl-C does what Python lets it do: nobody else has a handler, and the shell does not have it ignored."""
    ours = threading.current_thread() is threading.main_thread()
    return ours and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Another one would meet what has no place where it does no harm, such as Python's own end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


@contextmanager
def _quietly() -> Iterator[None]:
    """Objects that an interrupt leaves half made, such as an archive about to be written, complain no more.

    Python shows the traceback of an error that occurs while an object goes, which nobody can catch. Only errors after
    Ctrl-C are kept back, and only where it does what Python lets it do.
    """
    if not _reaches_us():
        yield
        return
    shown = sys.unraisablehook

    def show(error: sys.UnraisableHookArgs) -> None:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            shown(error)

    with only_once():
        sys.unraisablehook = show
        try:
            yield
        except KeyboardInterrupt as error:
            traceback.clear_frames(error.__traceback__)  # so that they go now, and not as the process ends
            raise
        finally:
            sys.unraisablehook = shown
