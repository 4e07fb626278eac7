"""Whether a round that is computed again after an interruption comes out as before.

A resumed run repeats the rounds since its last checkpoint under the noise that they had, which costs nothing as long as
the same is sent. What draws from a generator of its own, reads the time or depends on the machine sends something else:
then one noise covers two messages, whoever saw both subtracts it, and nothing is claimed any more. So a run writes down
a hash of the server's state after every round, on the disk before metrics, transcript or callbacks tell of the round.

Not seen are uploads that differ and add up to the same, and what a server's own code had seen of a round that was cut
off in the middle.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from privfl.algorithms.base import Tensors
from privfl.errors import DataError
from privfl.privacy.accounting.release import Release, everywhere, unprotected
from privfl.simulation.run_directory import ROUNDS, RunDirectory

REPEATED_NOISE = "noise that was used twice"
REASON = (
    "a round that was computed again after an interruption came out otherwise under the same noise, which the two "
    "together give away; let nothing draw from generators of its own (torch.rand draws from the client's), on a GPU "
    "set execution.deterministic, or keep a checkpoint of every round (checkpoint_seconds = 0)"
)


class RepeatedRounds:
    """What the rounds of the run in ``directory`` came to so far; nothing is kept of a run that adds no noise."""

    def __init__(self, directory: RunDirectory | None, *, noisy: bool) -> None:
        """Raises DataError if the file was damaged; a last line that was cut short tells of nothing that was shown."""
        self._directory = directory if noisy else None
        self._known: dict[int, set[str]] = {}
        if directory is None or not noisy or not (directory.path / ROUNDS).exists():
            return
        content = (directory.path / ROUNDS).read_bytes()
        whole, _, rest = content.rpartition(b"\n")
        lines = [_read(line) for line in whole.splitlines()]
        for line in lines:
            self._known.setdefault(line["round"], set()).add(line["came_to"])
        if rest:
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


def repeated_noise() -> Release:
    """What it costs that a round came out twice: every claim."""
    return everywhere(REPEATED_NOISE, unprotected(REASON))


def _read(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
        told = {name: line[name] for name in ("round", "came_to")}
    except (ValueError, KeyError, TypeError, RecursionError):
        line = told = {}
    if not told or line != {**told, **_check(told)}:
        raise DataError(f"{ROUNDS} in the run directory is damaged; restore it, or choose another --out")
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
