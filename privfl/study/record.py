"""What a finished run reached, as one flat table of numbers: its metrics, its statement, attacks on it, its audits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from privfl.algorithms.base import Algorithm
from privfl.errors import DataError
from privfl.files import read_json, read_lines
from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.channel.field import Field
from privfl.simulation.callbacks import Simulation
from privfl.simulation.run_directory import Metrics, RunDirectory
from privfl.study.attacks import FOLDER as ATTACKS
from privfl.study.audits import FOLDER as AUDITS
from privfl.study.filed import filed

TRAFFIC = "traffic.json"
BYTES = 4
"""Of one number of a message."""
DAMAGED = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What reading a damaged file may raise."""
Values = dict[str, float | None]


def record_traffic(simulation: Simulation, line: Metrics) -> None:
    """A callback of ``simulate`` that writes ``traffic.json`` once: how much one client receives and sends in a round.

    Counted are the numbers of the algorithm's messages at four bytes each, before a mechanism encodes, compresses or
    masks them.
    """
    if simulation.path is not None and not (simulation.path / TRAFFIC).exists():
        write_traffic(simulation.path, simulation.algorithm, simulation.server)


def write_traffic(path: Path, algorithm: Algorithm, server: dict[str, Tensor]) -> None:
    """Write ``traffic.json`` to the run directory ``path``, of a run of ``algorithm`` whose server holds ``server``."""
    phases, phase = [algorithm], algorithm.survey()
    while phase is not None:
        phases.append(phase)
        phase = phase.bind(algorithm.context).survey()
    down = up = 0
    for one in phases:
        received = one.broadcast(one.begin_round(server, 0))
        down += sum(tensor.numel() for tensor in received.values())
        up += _numbers(one.fields(), server["parameters"].numel())
    RunDirectory(path).write_json(TRAFFIC, {"received": down * BYTES, "sent": up * BYTES})


def _numbers(fields: Iterable[Field], parameters: int) -> int:
    return sum(parameters if field.shape is None else math.prod(field.shape) for field in fields)


def read_run(folder: Path) -> tuple[Values, str]:
    """The figures of the run that ended in ``folder``, by name, and why it failed if it did.

    ``test_…``, ``local_…`` and ``personal_…`` are those of the last evaluation, ``epsilon UNIT/OBSERVER`` those of the
    statement (∞ for no claim), ``bytes_received`` and ``bytes_sent`` the sums over all clients and rounds,
    ``attack NAME`` and ``audit NAME`` what was filed under the run. ``None`` is what is not finite or not known.

    Raises:
        DataError: a file is missing or damaged, or the run was never evaluated.
    """
    try:
        return _read(folder)
    except DAMAGED as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder} cannot be read ({error}); remove it and start the study again") from error


def _read(folder: Path) -> tuple[Values, str]:
    summary, statement, lines = RunDirectory(folder).ending()
    values: Values = {}
    for line in lines:
        values |= {name: value for name, value in line.items() if _is_figure(name, value)}
    failure = why_failed(folder)
    if not failure and not any(name.startswith("test_") for name in values):
        raise DataError(
            f"the run ended after {summary['rounds']} rounds ({summary['stopped']}), before its first evaluation; set "
            "a smaller evaluate_every"
        )
    values |= {
        f"epsilon {unit}/{observer}": statement.cell(unit, observer).epsilon for unit in UNITS for observer in OBSERVERS
    }
    values |= {
        "delta": statement.delta,
        "rounds": summary["rounds"],
        "seconds": sum(line["seconds"] for line in read_lines(folder / "timing.jsonl")),
        "dropped": sum(summary["dropped"].values()),
    }
    noise = summary["noise_multiplier"]
    if noise is not None:
        values["noise_multiplier"] = float(max(noise)) if isinstance(noise, list) else float(noise)
    values |= _traffic(folder, lines)
    return values | _attacks(folder) | _audits(folder), failure


def why_failed(folder: Path) -> str:
    """Why the finished run in ``folder`` learnt nothing, empty if it did; its summary may have to keep it secret."""
    summary = RunDirectory(folder).read_json("summary.json") or {}
    if "failure" in summary:
        return str(summary["failure"])
    checkpoint = RunDirectory(folder).checkpoint()
    return "" if checkpoint is None else str(checkpoint.meta.get("failure", ""))


def _is_figure(name: str, value: Any) -> bool:
    return name not in ("round", "clients") and (value is None or isinstance(value, int | float))


def _traffic(folder: Path, lines: Iterable[Mapping[str, Any]]) -> Values:
    """Bytes of the whole run; not known where it is a secret who was drawn."""
    path = folder / TRAFFIC
    if not path.exists():
        return {}
    each = read_json(path, "remove it, or repeat the run")
    arrived = [line.get("clients") for line in lines]
    asked = [
        None if count is None else count + sum(line.get("dropped", {}).values())
        for count, line in zip(arrived, lines, strict=True)
    ]
    if any(count is None for count in asked):
        return {"bytes_received": None, "bytes_sent": None}
    total = sum(count for count in asked if count is not None)
    return {"bytes_received": float(total * each["received"]), "bytes_sent": float(total * each["sent"])}


def _attacks(folder: Path) -> Values:
    values: Values = {}
    for path in filed(folder / ATTACKS):
        told = read_json(path, "repeat `privfl attack`")
        measure = told["primary"]
        values[f"attack {path.stem} {measure}"] = told["metrics"][measure]["value"]
        values[f"attack {path.stem} advantage"] = told["advantage"][measure]["value"]
    return values


def _audits(folder: Path) -> Values:
    values: Values = {}
    for path in filed(folder / AUDITS):
        told = read_json(path, "repeat `privfl audit`")
        values[f"audit {path.stem} bound"] = max(float(bound["epsilon"]) for bound in told["bounds"])
        values[f"audit {path.stem} claim"] = float(told["claim"])
        values[f"audit {path.stem} refuted"] = float(told["refuted"])
    return values
