"""The runs of a study on a Ray cluster: each is a task of its own on one CPU; one that dies takes no other along."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from privfl.errors import ConfigError
from privfl.simulation.ray_cluster import connected, ray_module
from privfl.study.workers import J, R, Workers

TRIES = 2
"""A run whose process was killed goes on from its last checkpoint; one that dies again is to blame itself."""


@dataclass
class ClusterWorkers(Workers):
    """Processes of the cluster at ``address``, which reads and writes the same disk as this machine.

    Args:
        processes: how many runs go side by side at most; ``None``: as many as there are free CPUs.
        address: ``host:port`` of the head.
        folder: that its processes read and write.

    Raises:
        ConfigError: on entering: there is no cluster at the address, it has fewer free CPUs than ``processes``, or the
            folder is not there.
    """

    processes: int | None = None  # type: ignore[assignment]
    address: str = ""
    folder: Path = Path()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self.processes = opening.enter_context(connected(self.address, self.processes))
            for _, seen in self.outcomes(Path.is_dir, [self.folder]):
                if not seen:
                    raise ConfigError(
                        f"the folder {self.folder} is not there on a node of the Ray cluster at {self.address}; put "
                        "the store on a disk that all nodes share"
                    )
            self._open = opening.pop_all()
        return self

    def outcomes(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[J, R | None]]:
        """See :meth:`Workers.outcomes`; a job whose process died is tried again."""
        ray = ray_module(self.address)
        assert self.processes is not None
        task = ray.remote(num_cpus=1, max_retries=0)(_do)
        waiting = [(job, 1) for job in reversed(jobs)]
        running: dict[Any, tuple[J, int]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.processes:
                    job, tried = waiting.pop()
                    running[task.remote(work, job)] = job, tried
                for ended in ray.wait(list(running))[0]:
                    job, tried = running.pop(ended)
                    try:
                        yield job, ray.get(ended)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from error
                    except ray.exceptions.RayError:
                        if tried < TRIES:
                            waiting.append((job, tried + 1))
                        else:
                            yield job, None
        finally:
            for one in running:
                ray.cancel(one, force=True)


def _do(work: Callable[[J], R], job: J) -> R:
    return work(job)
