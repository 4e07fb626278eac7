"""Jobs side by side in processes of their own; one that dies takes no other along."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")

DIED = "its process died (killed, out of memory, or the script has no `if __name__` guard)"


def outcomes(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[J, R | None]]:
    """Every job with what ``work`` made of it, in the order in which they end; ``None`` if its process died.

    One process is this one; more start afresh, so ``work`` and the jobs must be importable and picklable.
    """
    if processes == 1:
        yield from ((job, work(job)) for job in jobs)
        return
    orphans = []
    with _pool(min(processes, len(jobs))) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                try:
                    yield waiting[future], future.result()
                except BrokenProcessPool:
                    orphans.append(waiting[future])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for job in orphans:  # a process was killed and took its pool along; alone, each job shows whether it was the one
        with _pool(1) as pool:
            try:
                yield job, pool.submit(work, job).result()
            except BrokenProcessPool:
                yield job, None


def cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pool(processes: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """See to it that this process ends when the one that started it is killed: it would work on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
