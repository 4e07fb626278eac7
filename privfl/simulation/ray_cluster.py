"""The connection to a Ray cluster: one that is there, or one that is started on this machine for a run."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from privfl.engine.workspace import cores
from privfl.errors import ConfigError, PrivflError, brief

PROBE_SECONDS = 5.0
"""How long a head may take to accept a connection; Ray itself tries a dead address for minutes."""
TOKENS = {"RAY_AUTH_MODE": "token"}
"""Environment of a cluster of one's own; Ray reads it when it is imported, and from 2.60 on wants tokens anyway."""
OWN = {"RAY_worker_niceness": "0"}
"""Environment of a cluster of one's own: the run waits for its workers, so they do not yield to other processes."""
_TOKEN = secrets.token_hex(32)
"""What lets processes into clusters that this one starts; Ray keeps the first that it reads."""


def ray_module(address: str | None) -> Any:
    """The package ``ray``, imported late: most runs do not need it. Nothing is reported to its makers.

    Args:
        address: of the cluster that will be used; ``None`` is one of one's own, which nobody enters without a token.

    Raises:
        ConfigError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    tokens = TOKENS if address is None and "ray" not in sys.modules else {}
    with _environment(tokens):
        try:
            import ray
        except ImportError as error:
            raise ConfigError("engine = 'ray' needs Ray, which is not installed; pip install 'privfl[ray]'") from error
    return ray


@contextmanager
def connected(address: str | None, workers: int | None, gpus: float | None = None) -> Iterator[int]:
    """A connection to the cluster at ``address`` (``host:port``), or ``None``: to one of this machine's, started here.

    A program that is connected to a cluster already stays so; any other connection is closed in the end.

    Yields:
        How many workers there shall be: ``workers``, or as many as CPUs are free, and shares of ``gpus`` if asked for.

    Raises:
        ConfigError: there is no cluster at the address, or it has fewer free CPUs or GPUs than ``workers`` need.
    """
    ray = ray_module(address)
    if address is not None:
        _probe(address)
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if address not in (None, current):
            raise ConfigError(
                f"address is '{address}', but this program is connected to the Ray cluster at {current}; leave address "
                "out, or call ray.shutdown() first"
            )
        yield _workers(ray, workers, gpus)
        return
    with _environment({"RAY_AUTH_TOKEN": _TOKEN, **OWN} if address is None else {}):
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address is None:
                ray.init("local", num_cpus=workers or cores(), include_dashboard=False, **quiet)
            else:
                ray.init(address, **quiet)
        except Exception as error:  # Ray raises Exception itself where its processes do not start in time
            ray.shutdown()
            where = "on this machine" if address is None else f"at {address}"
            raise ConfigError(
                f"Ray {'cannot be started' if address is None else 'refuses the connection'} {where} "
                f"({brief(str(error), 200)}); see that its version is {ray.__version__}, as here, "
                "and that the machine is not overloaded"
            ) from error
        try:
            yield _workers(ray, workers, gpus)
        finally:
            ray.shutdown()


def _probe(address: str) -> None:
    """Refuse an address at which nobody listens.

    Raises:
        ConfigError: naming it.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16) or "/" in address:
        raise ConfigError(f"address is '{address}'; give host:port of a Ray head, as `ray start --head` prints it")
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}); start one (`ray start --head`), or leave address out for "
            "one on this machine"
        ) from error


def _workers(ray: Any, wanted: int | None, gpus: float | None) -> int:
    if gpus is not None:
        free = float(ray.available_resources().get("GPU", 0.0))
        room = int((free + 1e-9) / gpus)
        if room < max(wanted or 1, 1):
            every = float(ray.cluster_resources().get("GPU", 0.0))
            raise ConfigError(
                f"{wanted or 1} workers need {gpus:g} of a GPU each, and of the {every:g} GPUs that the Ray cluster "
                f"declares {free:g} are free; lower gpus or workers, or leave gpus out and train on CPUs"
            )
        wanted = wanted or min(room, int(ray.available_resources().get("CPU", 0)))
    free, every = (int(found.get("CPU", 0)) for found in (ray.available_resources(), ray.cluster_resources()))
    if max(wanted or 1, 1) > free:
        raise ConfigError(
            f"{wanted or 1} workers need a CPU each, and of the {every} of the Ray cluster {free} are free; lower "
            "workers, or wait for others to finish"
        )
    return wanted or free


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for Ray's processes; what was set by the user counts, and all is as before in the end."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def unsendable(ray: Any, what: str, value: object, most: int) -> str:
    """Why ``value``, called ``what``, cannot be sent to other processes, with the mend; empty if it can."""
    try:
        size = len(ray.cloudpickle.dumps(value))
    except Exception as error:  # what a user's own object raises when it is pickled may be anything
        return (
            f"{what} cannot be sent to Ray's workers ({brief(f'{type(error).__name__}: {error}', 200)}); keep locks, "
            "open files and generators out of its fields"
        )
    if size > most:
        return (
            f"{what} takes {size / 1e6:.0f} MB when it is sent to Ray's workers, as if it carried data; keep "
            "arrays out of its fields, and let the task hold them"
        )
    return ""


class WorkersLost(PrivflError):
    """No worker is left."""
