"""Ctrl-C, in one sentence."""

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
    """Turn Ctrl-C into one sentence and exit code 130."""
    try:
        with _quietly():
            yield
    except KeyboardInterrupt:
        typer.echo(f"\nprivfl: interrupted; what was saved is intact, {mend}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Objects that an interrupt leaves half made, such as an archive about to be written, complain no more.

    Python shows the traceback of an error that occurs while an object goes, which nobody can catch. Only errors after
    Ctrl-C are kept back, and only where it does what Python lets it do.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted, shown = False, sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    def show(error: sys.UnraisableHookArgs) -> None:
        if not interrupted:
            shown(error)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = show
    try:
        yield
    except KeyboardInterrupt as error:
        traceback.clear_frames(error.__traceback__)  # so that they go now, and not as the process ends
        raise
    finally:
        sys.unraisablehook = shown
        signal.signal(signal.SIGINT, signal.default_int_handler)
