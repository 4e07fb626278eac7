"""Where a run stands, as one file: tensors by name, and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from privfl.errors import DataError
from privfl.simulation.archive import encode_archive, open_archive

PREFIX = "tensor/"
MEND = "restore it, or start anew with another --out"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after ``round`` finished rounds: tensors by name, and JSON-able ``meta``."""

    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    def encode(self, run: str | None) -> bytes:
        """As the content of a file; ``run`` tells which run this is a checkpoint of."""
        arrays = {f"{PREFIX}{name}": tensor.detach().cpu().numpy() for name, tensor in self.tensors.items()}
        return encode_archive({"round": self.round, "run": run, **self.meta}, arrays)


def read_checkpoint(path: Path) -> tuple[Checkpoint, str | None]:
    """What :meth:`Checkpoint.encode` put into the file ``path``: the checkpoint, and which run it belongs to.

    Raises:
        DataError: it is damaged, was changed, or is of another version.
    """
    with open_archive(path, MEND) as archive:
        meta = dict(archive.meta)
        tensors = {name.removeprefix(PREFIX): archive[name] for name in archive.names if name.startswith(PREFIX)}
        round, run = meta.pop("round"), meta.pop("run")
    if not isinstance(round, int) or round < 0:
        raise DataError(f"cannot read {path}: it says that {round!r} rounds are done; {MEND}")
    return Checkpoint(round, tensors, meta), run
