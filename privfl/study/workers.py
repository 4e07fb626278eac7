"""Jobs side by side in processes of their own; one that dies takes no other along."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")

DIED = "its process died (killed, out of memory, or the script has no `if __name__` guard)"


def outcomes(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[J, R | None]]:
    """Every job with what ``work`` made of it, in the order in which they end; ``None`` if its process died.

    One process is this one; more start afresh, so ``work`` and the jobs must be importable and picklable. They may be
    killed at any moment, and are when this one is, or is interrupted.
    """
    if processes == 1:
        yield from ((job, work(job)) for job in jobs)
        return
    orphans = []
    with _pool(min(processes, len(jobs))) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        for future in as_completed(waiting):
            try:
                yield waiting[future], future.result()
            except BrokenProcessPool:
                orphans.append(waiting[future])
    for job in orphans:  # a process was killed and took its pool along; alone, each job shows whether it was the one
        with _pool(1) as pool:
            try:
                yield job, pool.submit(work, job).result()
            except BrokenProcessPool:
                yield job, None


def cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end at once when whoever uses it is interrupted, instead of after what they are at."""
    others = set(active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_be_interruptible)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown()


def _be_interruptible() -> None:
    """End this process at once by Ctrl-C, and when the one that started it is killed: it would work on for nobody."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
