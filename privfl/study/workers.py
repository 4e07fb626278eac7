"""Jobs side by side in processes of their own; one that dies takes no other along."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from threading import Thread
from types import TracebackType
from typing import Self, TypeVar

J = TypeVar("J")
R = TypeVar("R")

DIED = "its process died (killed, out of memory, or the script has no `if __name__` guard)"
PRELOADED = ["privfl.study.execution", "privfl.study.members"]
"""What every process needs, which takes seconds to load: where processes can be forked, one loads it for all."""


@dataclass
class Workers:
    """Processes that live as long as whatever uses them, however many lots of jobs it has.

    Args:
        processes: how many. One is this one; more start afresh, when the first job comes.
    """

    processes: int
    _open: ExitStack = field(default_factory=ExitStack, init=False)
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool = None
        self._open.__exit__(kind, error, trace)

    def outcomes(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[J, R | None]]:
        """Every job with what ``work`` made of it, in the order in which they end; ``None`` if its process died.

        ``work`` and the jobs must be importable and picklable for more than one process. Processes may be killed at any
        moment, and are when this one is, or is interrupted.
        """
        if self.processes == 1:
            yield from ((job, work(job)) for job in jobs)
            return
        orphans = []
        if self._pool is None:
            self._pool = self._open.enter_context(_pool(self.processes))
        waiting = {self._pool.submit(work, job): job for job in jobs}
        for future in as_completed(waiting):
            try:
                yield waiting[future], future.result()
            except BrokenProcessPool:
                orphans.append(waiting[future])
                self._pool = None
        for (
            job
        ) in orphans:  # a process was killed and took its pool along; alone, each job shows whether it was the one
            with _pool(1) as pool:
                try:
                    yield job, pool.submit(work, job).result()
                except BrokenProcessPool:
                    yield job, None


def outcomes(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[J, R | None]]:
    """One lot of jobs by :class:`Workers` of its own."""
    with Workers(min(processes, max(len(jobs), 1))) as workers:
        yield from workers.outcomes(work, jobs)


def cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context() -> BaseContext:
    """How processes begin: as forks of one that has loaded what they need and started nothing, or from nothing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end at once when whoever uses it is interrupted, instead of after what they are at."""
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, mp_context=_context(), initializer=_be_interruptible)
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
