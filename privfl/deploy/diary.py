"""What a client remembers on disk: its budget's ledger, which rounds it has answered and how, and what it keeps.

What a client has begun to answer is written down, and forced to disk, before it computes, together with what the answer
costs; which answer it came to, by a digest, is written down before that is sent. So whatever the machine does in
between, a round is charged once, and never answered otherwise than it was. The answers themselves outlive the process
and need not outlive the machine: one that is gone is computed again, under the same noise, and sent if it came out as
before; where secrets went with the process it is not.

What is missing or older than the rest is noticed at the start: the account knows the noise key by a check value, every
answer on disk, and how many secure sums were served and opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from privfl.algorithms.base import Tensors
from privfl.errors import DataError, PrivflError
from privfl.files import cannot_write, read_json, remove, write_json, write_whole
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import SIZE_RESPONSE
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource
from privfl.privacy.secagg.store import FolderStore
from privfl.privacy.sizes.known_sizes import SIZE
from privfl.privacy.sizes.responses import SizeResponses
from privfl.simulation.archive import encode_archive, open_archive

MEND = "restore the client's folder; without it the client cannot tell what it has already sent"
NOISE_KEY = "noise_key"
SIGNING_KEY = "signing_key"
SUMS = ("served", "opened")
"""Folders with a file for each secure sum."""
ANSWER = re.compile(r"answer-(\d+)-(\w+)\.bin")
KEPT = re.compile(r"kept-(\d+)\.npz")
PATIENCE = 60.0
"""Seconds in which another process of the client may end what it writes."""
PRIVATE = 0o600
ROUNDS_KEPT = 2
"""Answers of so many of the latest rounds are kept, so that a server that restarts hears the same bytes."""


Books = tuple[Ledger, Ledger]
"""What has been given away in all runs, and in one."""


ANSWERED_BEFORE = "refused: it answered this round before, to another request"
"""What the server is told of :class:`AnsweredOtherwise`."""
NO_LONGER_KEPT = "refused: it answered this round before, and its answer is no longer kept"
"""What the server is told of :class:`NoLongerKept`."""


class AnsweredOtherwise(PrivflError):
    """A round was answered before, to another request."""


class NoLongerKept(AnsweredOtherwise):
    """A round was answered so long ago that nobody can give the same answer again."""


class CameOutOtherwise(PrivflError):
    """An answer that was computed a second time is another one, under the same noise."""


class Diary:
    """One client's memory, in a folder of its own.

    Raises:
        PrivflError: the folder cannot be used.
        DataError: a file in it is damaged, missing, or older than the others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FolderStore(folder)
        self._account = folder / "account.json"
        self._lock = FileLock(folder / "account.lock")
        with self._alone():
            self._read()

    def _read(self) -> None:
        self._seen, self.ledger = self._on_disk(), _empty()
        self._runs: dict[str, dict[str, Any]] = {}
        self._check: str | None = None  # while no noise key is drawn, or one was by a version that noted no check
        if not self._account.exists():
            self._see_nothing_left()
            self._write()
            return
        told = read_json(self._account, MEND)
        self.ledger, self._runs = Ledger.from_state(told["ledger"]), told["runs"]
        self._check = told.get("noise_key")
        if self._check is not None or (self.folder / NOISE_KEY).exists():
            self._key()
        if self._runs and not (self.folder / SIGNING_KEY).exists():
            raise DataError(f"{self.folder / SIGNING_KEY} is missing, and this client has agreed to runs; {MEND}")
        for name, number in told.get("sums", {}).items():
            if (found := self._sums()[name]) < number:
                raise DataError(f"{self.folder / name} holds {found} secure sums, and there were {number}; {MEND}")
        for name, number in self._sums().items():
            if number and not self._runs:  # nobody serves a sum of a run that it has not agreed to
                raise self._older(self.folder / name)
        self._see_answers()

    def _see_nothing_left(self) -> None:
        """See that the folder is as new as it looks without an account."""
        left = [name for name in (NOISE_KEY, "runs") if (self.folder / name).exists()]
        left += [name for name, number in self._sums().items() if number]
        if left:
            raise DataError(
                f"{self._account} is missing beside {left[0]}, so this client may have answered before; {MEND}"
            )
        if (self.folder / SIGNING_KEY).exists():  # they are drawn with an account
            raise DataError(
                f"{self._account} is missing beside {SIGNING_KEY}; restore the client's folder, or if it has never "
                "answered, let `privfl deploy key` draw another key in an empty one"
            )

    def _see_answers(self) -> None:
        """See that the account knows what lies on disk; one that was put back is older than that."""
        known = {run[:32]: run for run in self._runs}
        for folder in sorted((self.folder / "runs").glob("*")):
            if folder.name not in known:
                raise self._older(folder)
            if "answers" not in self._runs[known[folder.name]]:
                continue  # of an earlier version, in whose runs this one takes no part
            answers = self._answers(known[folder.name])
            newest = self.newest(known[folder.name])
            for path in sorted(folder.iterdir()):
                if (kept := KEPT.fullmatch(path.name)) and int(kept[1]) > newest:
                    raise self._older(path)
                answer = ANSWER.fullmatch(path.name)  # an old one goes after the account forgot it, and may come back
                if answer and answer[2] not in answers and int(answer[1]) > newest - ROUNDS_KEPT:
                    raise self._older(path)

    def _older(self, path: Path) -> DataError:
        return DataError(f"{self._account} does not know {path}, so it is older than what this client sent; {MEND}")

    def _sums(self) -> dict[str, int]:
        """How many secure sums were served, and opened, as far as the folder tells."""
        return {name: len(os.listdir(self.folder / name)) for name in SUMS}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process reads or writes here."""
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout as error:
            raise PrivflError(
                f"{self._account} is being written to by another process of this client, for more than {PATIENCE:g} s; "
                "end all processes of this client but one"
            ) from error
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
            if self._check is None and not path.exists():
                write_whole(path, secrets.token_bytes(KEY_BYTES), mode=PRIVATE)
            key = self._key()
        return key.for_run(bytes.fromhex(run))

    def _key(self) -> NoiseSource:
        """The noise key on disk, seen to be the one that was drawn; the account is told which, if it is not yet.

        Raises:
            DataError: it is missing, damaged, or another one.
        """
        path = self.folder / NOISE_KEY
        try:
            key = path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing, and this client has drawn it before; {MEND}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; {MEND}") from error
        if len(key) != KEY_BYTES or not any(key):  # zeros are what a file system may leave after a power cut
            what = f"{len(key)} bytes" if any(key) or not key else f"{len(key)} zeros"
            raise DataError(f"{path} is damaged: it holds {what} where a noise key has {KEY_BYTES} bytes; {MEND}")
        source = NoiseSource(key, reproducible=False)
        if self._check is None:
            self._write(check=source.check)
        elif source.check != self._check:
            raise DataError(f"{path} is damaged, or not the noise key that this client has drawn; {MEND}")
        return source

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
            self._note(run, {"policy": policy, "begun": {}, "answers": {}, "sizes": SizeResponses().state()})

    def others(self, run: str) -> int:
        """In how many runs beside this one the client has answered."""
        return sum(bool(its["begun"]) for one, its in self._runs.items() if one != run)

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

    def told(self, run: str) -> dict[str, Any]:
        """What the server has told once for the whole run."""
        told: dict[str, Any] = self._runs[run].get("told", {})
        return told

    def begin(
        self,
        run: str,
        what: str,
        request: str,
        books: Books,
        sizes: SizeResponses | None = None,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        """Note, before any of it is computed, that ``what`` is answered to the request with this digest.

        Args:
            books: with what the answer costs.
            sizes: the table of size answers with this one, where it is one.
            told: what the server tells with it for the whole run.

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
            changed |= {"told": {**self.told(run), **told}} if told else {}
        if changed:
            self._note(run, changed, self.ledger if before is not None else every)

    def sizes(self, run: str) -> SizeResponses:
        """The size answers of the run so far."""
        return SizeResponses.from_state(self._runs[run]["sizes"])

    def answer(self, run: str, request: str) -> bytes | None:
        """The answer to a request that was answered before, if it is still kept; a machine that lost its power may have
        left anything in its place."""
        if request not in (answers := self._answers(run)):
            return None
        round, digest = answers[request]
        try:
            reply = self._answer(run, round, request).read_bytes()
        except OSError:
            return None
        return reply if hashlib.sha256(reply).hexdigest() == digest else None

    def newest(self, run: str) -> int:
        """The latest round that was answered; -1: none was."""
        return max((round for round, _ in self._answers(run).values()), default=-1)

    def settle(self, run: str, round: int, request: str, reply: bytes) -> None:
        """Note, before anything of it is sent, that ``reply`` is the answer to the request with this digest.

        Those of much earlier rounds are forgotten, in which no phase is answered a second time.

        Raises:
            CameOutOtherwise: another one was; it may have been sent, and both together would give away their noise.
        """
        answers, digest = self._answers(run), hashlib.sha256(reply).hexdigest()
        if request not in answers:
            kept = {old: its for old, its in answers.items() if its[0] > round - ROUNDS_KEPT}
            self._note(run, {"answers": {**kept, request: [round, digest]}})
        elif answers[request][1] != digest:
            raise CameOutOtherwise(
                f"the answer in round {round} was lost, and came out otherwise when it was computed again under the "
                "same noise; it is not sent, and later rounds go on: let nothing draw from generators of its own"
            )

    def keep_answer(self, run: str, round: int, request: str, reply: bytes) -> None:
        """Keep an answer that is settled; those of much earlier rounds go."""
        write_whole(self._answer(run, round, request), reply, mode=PRIVATE, durable=False)
        for path in self._folder(run).iterdir():
            if (answer := ANSWER.fullmatch(path.name)) and int(answer[1]) <= round - ROUNDS_KEPT:
                path.unlink(missing_ok=True)

    def _answers(self, run: str) -> dict[str, Any]:
        """By the digest of its request, of each answer that may be asked for again: its round, and its own digest."""
        answers: dict[str, Any] = self._runs[run].get("answers", {})
        return answers

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
        for path in folder.iterdir():
            if (kept := KEPT.fullmatch(path.name)) and int(kept[1]) < since:
                remove(path)

    def _kept(self, run: str, round: int) -> Path:
        return self._folder(run) / f"kept-{round:06d}.npz"

    def _folder(self, run: str) -> Path:
        return self.folder / "runs" / run[:32]

    def _note(self, run: str, changed: dict[str, Any], ledger: Ledger | None = None) -> None:
        runs = {**self._runs, run: {**self._runs.get(run, {}), **changed}}
        with self._alone():
            self._write(runs, ledger)

    def _write(
        self, runs: dict[str, dict[str, Any]] | None = None, ledger: Ledger | None = None, check: str | None = None
    ) -> None:
        """Nothing is remembered here that is not on disk: whatever could not be written was not begun."""
        if self._seen != self._on_disk():
            raise PrivflError(
                f"{self._account} was written by another process; end all processes of this client but one"
            )
        runs = self._runs if runs is None else runs
        ledger, check = self.ledger if ledger is None else ledger, check or self._check
        told = {"ledger": ledger.state(), "runs": runs, "noise_key": check, "sums": self._sums()}
        write_json(self._account, told, folders=False, indent=None)
        self._runs, self.ledger, self._check, self._seen = runs, ledger, check, self._on_disk()

    def _on_disk(self) -> bytes:
        """What tells one content of the account from another."""
        return hashlib.sha256(self._account.read_bytes() if self._account.exists() else b"").digest()


def _empty() -> Ledger:
    return Ledger(1, ("update", SIZE, SIZE_RESPONSE))
