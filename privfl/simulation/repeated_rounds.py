"""Whether a round that is computed again after an interruption comes out as before.

A resumed run repeats the rounds since its last checkpoint under the noise that they had, which costs nothing as long as
the same is sent. What draws from a generator of its own, reads the time or depends on the machine sends something else:
then one noise covers two messages, whoever saw both subtracts it, and nothing is claimed any more. So a run writes down
a hash of what every round came to, before anybody is shown anything of it.
"""

from __future__ import annotations

import hashlib

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
        """Raises DataError if the file cannot be read."""
        self._directory = directory if noisy else None
        self._known: dict[int, set[str]] = {}
        for line in directory.lines(ROUNDS) if directory is not None and noisy else []:
            if not isinstance(line, dict) or not {"round", "sha256"} <= line.keys():
                raise DataError(f"{ROUNDS} in the run directory is damaged; restore it, or choose another --out")
            self._known.setdefault(line["round"], set()).add(line["sha256"])

    def differs(self, round: int, server: Tensors) -> bool:
        """Whether ``round``, after which the server has ``server``, came out otherwise once; written down first."""
        if self._directory is None:
            return False
        found, known = _hash(server), self._known.setdefault(round, set())
        if found not in known:
            self._directory.append(ROUNDS, {"round": round, "sha256": found})
            known.add(found)
        return len(known) > 1


def repeated_noise() -> Release:
    """What it costs that a round came out twice: every claim."""
    return everywhere(REPEATED_NOISE, unprotected(REASON))


def _hash(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {whole.dtype} {tuple(whole.shape)} ".encode())
        digest.update(whole.view(-1).numpy().data)
    return digest.hexdigest()
