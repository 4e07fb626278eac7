"""Whether a round that is computed again after an interruption comes out as before.

A resumed run repeats the rounds since its last checkpoint under the noise that they had, which costs nothing as long as
the same is sent. What draws from a generator of its own, reads the time or depends on the machine sends something else:
then one noise covers two messages, whoever saw both subtracts it, and nothing is claimed any more. So a run writes down
a hash of the server's state after every round, on the disk before metrics, transcript or callbacks tell of the round.
So a round that these tell of and the file does not was taken out of it, and the run does not go on.

Not seen are uploads that differ and add up to the same, and what a server's own code had seen of a round that was cut
off in the middle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from privfl.algorithms.base import Tensors
from privfl.errors import DataError
from privfl.privacy.accounting.release import Release, everywhere, unprotected
from privfl.simulation.remote_engine import RemoteEngine
from privfl.simulation.transcript import FOLDER, recorded_rounds

ROUNDS = "rounds.jsonl"
"""A hash of what every round came to."""
DAMAGED = f"{ROUNDS} in the run directory is damaged; restore it, or choose another --out"
REPEATED_NOISE = "noise that was used twice"
REASON = (
    "a round that was computed again after an interruption came out otherwise under the same noise, which the two "
    "together give away; let nothing draw from generators of its own (torch.rand draws from the client's), on a GPU "
    "set execution.deterministic, or keep a checkpoint of every round (checkpoint_seconds = 0)"
)

OLDER = (
    "a client has answered a round before, to another request, so the run's folder may be older than the run, and the "
    "server's noise may cover two messages, which together give it away; restore the newer folder, or start anew"
)


class Folder(Protocol):
    """What is asked of a run directory here."""

    path: Path

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of its metrics."""

    def append(self, name: str, line: Mapping[str, Any], *, durable: bool = False) -> None:
        """Append a line to the file ``name``."""

    def write_lines(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace the file ``name``."""


class RepeatedRounds:
    """What the rounds of the run in ``directory`` came to so far; nothing is kept of a run that adds no noise."""

    def __init__(self, directory: Folder | None, *, noisy: bool) -> None:
        """Raises DataError if the file was damaged, and PrivflError if the disk refuses."""
        self._directory = directory if noisy else None
        self._known: dict[int, set[str]] = {}
        if directory is None or not noisy:
            return
        lines = read_rounds(directory.path / ROUNDS)
        for line in lines:
            self._known.setdefault(line["round"], set()).add(line["came_to"])
        # Whoever was killed may have left a line that is cut short, or one, or the file's name, not on the disk yet.
        directory.write_lines(ROUNDS, lines)

    def differs(self, round: int, server: Tensors) -> bool:
        """Whether ``round``, after which the server has ``server``, came out otherwise once; written down first."""
        if self._directory is None:
            return False
        found, known = _hash(server), self._known.setdefault(round, set())
        if found not in known:
            told = {"round": round, "came_to": found}
            self._directory.append(ROUNDS, {**told, **_check(told)}, durable=True)
            known.add(found)
        return len(known) > 1

    def releases(self, round: int, server: Tensors, engine: object) -> list[Release]:
        """Nothing, or if noise of ``round`` covers two messages what that costs: every claim.

        Clients elsewhere remember rounds that a run directory which was put back does not know.
        """
        found = [repeated_noise()] if self.differs(round, server) else []
        if isinstance(engine, RemoteEngine) and engine.repeats:
            found.append(repeated_noise(OLDER))
            engine.repeats = False
        return found


def repeated_noise(reason: str = REASON) -> Release:
    """What it costs that a round came out twice: every claim."""
    return everywhere(REPEATED_NOISE, unprotected(reason))


def check_shown(directory: Folder, first: int, *, always: bool) -> None:
    """See that the file tells of every round from ``first`` on that anybody was shown, since these are repeated.

    It tells of a round before anything else does, so that no interruption, and no power cut, leaves one out.

    Args:
        always: the run has had the file since it began, which earlier versions of privfl did not see to.

    Raises:
        DataError: it does not, it was damaged, or a file of the transcript is no round.
    """
    path = directory.path / ROUNDS
    rounds = [line["round"] for line in read_rounds(path)]
    if always and rounds and rounds[0] != 0:
        raise DataError(DAMAGED)
    told = set(rounds)
    lines = [line.get("round") for line in directory.metrics() if isinstance(line, dict)]
    shown = {*range(len(recorded_rounds(directory.path / FOLDER))), *(one for one in lines if isinstance(one, int))}
    unknown = sorted(round for round in {*shown, *range(first)} - told if always or round >= first)
    if unknown or (always and not path.exists()):
        what = f"says nothing of round {unknown[0]}, which was shown already" if unknown else "is missing"
        raise DataError(
            f"{path} {what}, so nobody can tell whether the rounds since the checkpoint come out as they did under the "
            "same noise; restore it, or start anew with another --out"
        )


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """The lines of the file ``path``, none if there is none; a last line that was cut short is left out.

    Raises:
        DataError: it was damaged, or cannot be read.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; restore it, or choose another --out") from error
    lines = [_read(line) for line in content.rpartition(b"\n")[0].splitlines()]
    latest, seen = lines[0]["round"] if lines else 0, set[tuple[int, str]]()
    for line in lines:  # a round is the next one, or came out otherwise than before
        told = (line["round"], line["came_to"])
        if told in seen or line["round"] > latest + 1:
            raise DataError(DAMAGED)
        seen.add(told)
        latest = max(latest, line["round"])
    return lines


def _read(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
        told = {name: line[name] for name in ("round", "came_to")}
    except (ValueError, KeyError, TypeError, RecursionError):
        line = told = {}
    if not told or line != {**told, **_check(told)}:
        raise DataError(DAMAGED)
    return dict(line)


def _check(told: dict[str, Any]) -> dict[str, str]:
    """By which damage to a line is noticed."""
    return {"digest": hashlib.sha256(json.dumps(told).encode()).hexdigest()}


def _hash(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {whole.dtype} {tuple(whole.shape)} ".encode())
        digest.update(whole.view(-1).numpy().data)
    return digest.hexdigest()
