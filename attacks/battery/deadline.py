"""A limit of time for work that does not look at a clock."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(BaseException):
    """The time is up. No ``Exception``, so that nobody who survives errors survives this."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in this thread once ``seconds`` have passed.

    It comes between two steps of Python: one long call into compiled code is waited for. Work that ends too late is
    given up as well, whether or not a busy machine let the clock's thread have its turn before.
    """
    thread, guard = ctypes.c_ulong(threading.get_ident()), threading.Lock()
    state = {"ended": False}

    def stop() -> None:
        with guard:
            if not state["ended"]:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(OutOfTime))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    began = time.monotonic()
    timer.start()
    try:
        yield
        if time.monotonic() - began > seconds:
            raise OutOfTime
    finally:
        with guard:
            state["ended"] = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # one that is on its way is called back
        timer.cancel()
