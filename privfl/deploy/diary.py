"""What a client remembers on disk: its budget's ledger, which rounds it has answered and how, and what it keeps.

What a client has begun to answer is written down, and forced to disk, before it computes, together with what the answer
costs: so whatever the machine does in between, a round is charged once, and never answered otherwise than it was. The
answers themselves outlive the process and need not outlive the machine: one that is gone is computed again, under the
same noise, or where secrets went with the process not at all.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from privfl.algorithms.base import Tensors
from privfl.errors import DataError, PrivflError
from privfl.files import cannot_write, make_folder, read_json, remove, write_json, write_whole
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource
from privfl.privacy.secagg.store import FolderStore
from privfl.privacy.sizes.known_sizes import SIZE, SIZE_RESPONSE
from privfl.privacy.sizes.responses import SizeResponses
from privfl.simulation.archive import encode_archive, open_archive

MEND = "restore the client's folder; without it the client cannot tell what it has already sent"
NOISE_KEY = "noise_key"
PRIVATE = 0o600
ROUNDS_KEPT = 2
"""Answers of so many of the latest rounds are kept, so that a server that restarts hears the same bytes."""


Books = tuple[Ledger, Ledger]
"""What has been given away in all runs, and in one."""


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
        self._lock = FileLock(folder / "account.lock")
        self._answers: dict[str, dict[str, int]] = {}
        with self._alone():
            self._read()

    def _read(self) -> None:
        self._seen = self._on_disk()
        if self._account.exists():
            told = read_json(self._account, MEND)
            self.ledger = Ledger.from_state(told["ledger"])
            self._runs: dict[str, dict[str, Any]] = told["runs"]
        elif (self.folder / "runs").exists():
            raise DataError(f"{self._account} is missing, and this client has answered before; {MEND}")
        else:
            self.ledger = _empty()
            self._runs = {}
            self._write({}, self.ledger)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process reads or writes here."""
        try:
            self._lock.acquire()
        except OSError as error:
            raise cannot_write(self._account, error) from error
        try:
            yield
        finally:
            self._lock.release()

    def noise(self, run: str, fixed: NoiseSource | None) -> NoiseSource:
        """The noise of the run whose policy has the digest ``run``; of a ``fixed`` key where the experiment has one."""
        if fixed is not None:
            return fixed
        path = self.folder / NOISE_KEY
        with self._alone():  # of two processes that draw a key one would go on with a key that is nowhere
            if not path.exists():
                if self._runs[run]["begun"]:
                    raise DataError(f"{path} is missing, and this client has answered in this run before; {MEND}")
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
            self._note(run, {"policy": policy, "begun": {}, "sizes": SizeResponses().state()})

    def bind(self, run: str, prepared: str) -> None:
        """Note what answers in the run depend on, beside requests: a digest of the client's data, code and libraries.

        Raises:
            DataError: it has changed since the run began, and other answers would come under the same noise.
        """
        before = self._runs[run].get("prepared")
        if before is None:
            self._note(run, {"prepared": prepared})
        elif before != prepared:
            raise DataError(
                "this client's data, its code or its libraries have changed since it began this run, in which it "
                "answers no more; put them back, or wait for another run"
            )

    def begun(self, run: str, what: str) -> str | None:
        """The digest of the request to which ``what`` (a phase of a round, say) is being answered, or was."""
        digest: str | None = self._runs[run]["begun"].get(what)
        return digest

    def books(self, run: str) -> Books:
        """What has been given away in all runs, and in this one."""
        told = self._runs[run].get("ledger")
        return self.ledger, _empty() if told is None else Ledger.from_state(told)

    def begin(self, run: str, what: str, request: str, books: Books, sizes: SizeResponses | None = None) -> None:
        """Note, before any of it is computed, that ``what`` is answered to the request with this digest.

        Args:
            books: with what the answer costs.
            sizes: the table of size answers with this one, where it is one.

        Raises:
            AnsweredOtherwise: it was begun to another request.
        """
        before = self.begun(run, what)
        if before is not None and before != request:
            raise AnsweredOtherwise(f"{what} was answered before, to another request; it is not answered a second time")
        changed: dict[str, Any] = {} if sizes is None else {"sizes": sizes.state()}
        every, own = books
        if before is None:
            changed |= {"begun": {**self._runs[run]["begun"], what: request}, "ledger": own.state()}
        if changed:
            self._note(run, changed, self.ledger if before is not None else every)

    def sizes(self, run: str) -> SizeResponses:
        """The size answers of the run so far."""
        return SizeResponses.from_state(self._runs[run]["sizes"])

    def answer(self, run: str, request: str) -> bytes | None:
        """The answer to a request that was answered before, if it is still kept; a machine that lost its power may have
        left anything in its place."""
        round = self._kept_answers(run).get(request)
        return None if round is None else self._answer(run, round, request).read_bytes()

    def newest(self, run: str) -> int:
        """The latest round of which an answer is kept; -1: none is."""
        return max(self._kept_answers(run).values(), default=-1)

    def keep_answer(self, run: str, round: int, request: str, reply: bytes) -> None:
        """Keep an answer, before it is sent; those of much earlier rounds go."""
        kept = self._kept_answers(run)
        write_whole(self._answer(run, round, request), reply, mode=PRIVATE, folders=False, durable=False)
        kept[request] = round
        for old, its in [(old, its) for old, its in kept.items() if its <= round - ROUNDS_KEPT]:
            with suppress(FileNotFoundError):
                self._answer(run, its, old).unlink()
            del kept[old]

    def _kept_answers(self, run: str) -> dict[str, int]:
        """By the digest of its request the round of each answer that is kept."""
        if run not in self._answers:
            make_folder(self._folder(run))
            names = (path.stem.split("-") for path in self._folder(run).glob("answer-*.bin"))
            self._answers[run] = {request: int(round) for _, round, request in names}
        return self._answers[run]

    def _answer(self, run: str, round: int, request: str) -> Path:
        return self._folder(run) / f"answer-{round:06d}-{request}.bin"

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
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        write_whole(self._kept(run, round), encode_archive({}, arrays), mode=PRIVATE)
        for path in folder.glob("kept-*.npz"):
            if int(path.stem.split("-")[1]) < since:
                remove(path)

    def _kept(self, run: str, round: int) -> Path:
        return self._folder(run) / f"kept-{round:06d}.npz"

    def _folder(self, run: str) -> Path:
        return self.folder / "runs" / run[:32]

    def _note(self, run: str, changed: dict[str, Any], ledger: Ledger | None = None) -> None:
        runs = {**self._runs, run: {**self._runs.get(run, {}), **changed}}
        with self._alone():
            self._write(runs, self.ledger if ledger is None else ledger)

    def _write(self, runs: dict[str, dict[str, Any]], ledger: Ledger) -> None:
        """Nothing is remembered here that is not on disk: whatever could not be written was not begun."""
        if self._seen != self._on_disk():
            raise PrivflError(
                f"{self._account} was written by another process; end all processes of this client but one"
            )
        write_json(self._account, {"ledger": ledger.state(), "runs": runs}, folders=False, indent=None)
        self._runs, self.ledger, self._seen = runs, ledger, self._on_disk()

    def _on_disk(self) -> bytes:
        """What tells one content of the account from another."""
        return hashlib.sha256(self._account.read_bytes() if self._account.exists() else b"").digest()


def _empty() -> Ledger:
    return Ledger(1, ("update", SIZE, SIZE_RESPONSE))
