"""What a client remembers on disk: its budget's ledger, which rounds it has answered and how, and what it keeps.

Every file is whole and forced to disk before what it says is acted upon. What a client has begun to answer is written
down before it computes, together with what the answer costs: so whatever the machine does in between, a round is
charged once, and never answered otherwise than it was.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from privfl.algorithms.base import Tensors
from privfl.errors import DataError, PrivflError
from privfl.files import make_folder, read_json, remove, write_json, write_whole
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource
from privfl.privacy.secagg.store import FolderStore
from privfl.privacy.sizes.known_sizes import SIZE, SIZE_RESPONSE
from privfl.privacy.sizes.responses import SizeResponses
from privfl.simulation.archive import encode_archive, open_archive

MEND = "restore the client's folder; without it the client cannot tell what it has already sent"
PRIVATE = 0o600
ROUNDS_KEPT = 2
"""Answers of so many of the latest rounds are kept, so that a server that restarts hears the same bytes."""


class AnsweredOtherwise(PrivflError):
    """A round was answered before, to another request."""


class Diary:
    """One client's memory, in a folder of its own.

    Raises:
        PrivflError: the folder cannot be used.
        DataError: a file in it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FolderStore(folder)
        self._account = folder / "account.json"
        if self._account.exists():
            told = read_json(self._account, MEND)
            self.ledger = Ledger.from_state(told["ledger"])
            self._runs: dict[str, dict[str, Any]] = told["runs"]
        else:
            self.ledger = Ledger(1, ("update", SIZE, SIZE_RESPONSE))
            self._runs = {}
            self._write()

    def noise(self, run: str, fixed: NoiseSource | None) -> NoiseSource:
        """The noise of the run whose policy has the digest ``run``; of a ``fixed`` key where the experiment has one."""
        if fixed is not None:
            return fixed
        path = self.folder / "noise_key"
        if not path.exists():
            write_whole(path, secrets.token_bytes(KEY_BYTES), mode=PRIVATE)
        key = path.read_bytes()
        if len(key) != KEY_BYTES:
            raise DataError(f"{path} has {len(key)} bytes, but a noise key has {KEY_BYTES}; {MEND}")
        return NoiseSource(key, reproducible=False).for_run(bytes.fromhex(run))

    def knows(self, run: str) -> bool:
        """Whether the run was agreed to."""
        return run in self._runs

    def policy(self, run: str) -> dict[str, Any]:
        """The policy of a run that was agreed to."""
        policy: dict[str, Any] = self._runs[run]["policy"]
        return policy

    def agree(self, run: str, policy: dict[str, Any]) -> None:
        """Note a run that was agreed to."""
        if run not in self._runs:
            self._runs[run] = {"policy": policy, "begun": {}, "sizes": SizeResponses().state()}
            self._write()

    def begun(self, run: str, what: str) -> str | None:
        """The digest of the request to which ``what`` (a phase of a round, say) is being answered, or was."""
        digest: str | None = self._runs[run]["begun"].get(what)
        return digest

    def begin(self, run: str, what: str, request: str, ledger: Ledger, sizes: SizeResponses | None = None) -> None:
        """Note, before any of it is computed, that ``what`` is answered to the request with this digest.

        Args:
            ledger: with what the answer costs.
            sizes: the table of size answers with this one, where it is one.

        Raises:
            AnsweredOtherwise: it was begun to another request.
        """
        before = self.begun(run, what)
        if before is not None and before != request:
            raise AnsweredOtherwise(f"{what} was answered before, to another request; it is not answered a second time")
        if before is None:
            self._runs[run]["begun"][what] = request
            self.ledger = ledger
        if sizes is not None:
            self._runs[run]["sizes"] = sizes.state()
        if before is None or sizes is not None:
            self._write()

    def sizes(self, run: str) -> SizeResponses:
        """The size answers of the run so far."""
        return SizeResponses.from_state(self._runs[run]["sizes"])

    def answer(self, run: str, request: str) -> bytes | None:
        """The answer to a request that was answered before, if it is still kept."""
        for path in self._folder(run).glob(f"answer-*-{request}.bin"):
            return path.read_bytes()
        return None

    def keep_answer(self, run: str, round: int, request: str, reply: bytes) -> None:
        """Keep an answer, before it is sent; those of much earlier rounds go."""
        folder = self._folder(run)
        make_folder(folder)
        write_whole(folder / f"answer-{round:06d}-{request}.bin", reply, mode=PRIVATE)
        for path in folder.glob("answer-*.bin"):
            if int(path.name.split("-")[1]) <= round - ROUNDS_KEPT:
                remove(path)

    def kept(self, run: str, round: int) -> Tensors:
        """What the client keeps since ``round`` of the run, of which the server says that it counted; -1: nothing yet.

        Raises:
            DataError: nothing is known of that.
        """
        if round < 0:
            return {}
        path = self._kept(run, round)
        if not path.exists():
            raise DataError(f"the server counts round {round}, of which this client keeps nothing; {MEND}")
        with open_archive(path, MEND) as archive:
            return {name: archive[name] for name in archive.names}

    def keep(self, run: str, round: int, since: int, state: Tensors) -> None:
        """Keep ``state`` after ``round``; what is older than ``since``, which is known to count, goes."""
        folder = self._folder(run)
        make_folder(folder)
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        write_whole(self._kept(run, round), encode_archive({}, arrays), mode=PRIVATE)
        for path in folder.glob("kept-*.npz"):
            if int(path.stem.split("-")[1]) < since:
                remove(path)

    def _kept(self, run: str, round: int) -> Path:
        return self._folder(run) / f"kept-{round:06d}.npz"

    def _folder(self, run: str) -> Path:
        return self.folder / "runs" / run[:32]

    def _write(self) -> None:
        write_json(self._account, {"ledger": self.ledger.state(), "runs": self._runs})
