"""What a store never forgets: every run that a study of some name ever had, and what is gone of the runs that began.

    STORE/history/studies/NAME.json   STORE/history/runs/RUN.json   STORE/history/picks/PICK.json

A study that is edited asks for other runs, and its earlier ones have been released all the same. Their directories tell
what they spent. Where one is gone that is no longer known; a run of that name that begins anew does not make up for it.
The files survive the index, which may be removed at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from privfl.files import cannot_write, make_folder, read_json, write_json

FOLDER = "history"
MEND = "restore it: without it nobody can tell what was released before, so begin anew with another --out otherwise"
Standing = Literal["never", "ended", "open", "gone"]
"""Of a run that a study had: it never began, came to an end, did not, or began and its directory is gone."""


@dataclass(frozen=True)
class History:
    """The history of the store in the folder ``store``; it may be used by any number of processes at once."""

    store: Path

    def runs_of(self, study: str) -> list[str]:
        """All runs that ``study`` ever had, in the order in which it first did.

        Raises:
            DataError: the file of the study is damaged.
        """
        return list(_read(self._study(study)).get("runs", []))

    def enrol(self, study: str, runs: Sequence[str]) -> None:
        """Note that ``study`` has ``runs``, beside all that it ever had."""
        if not set(runs) - {""} <= set(self.runs_of(study)):
            with _held(self._study(study)) as told:
                told["runs"] = list(dict.fromkeys([*told.get("runs", []), *filter(None, runs)]))

    def begin(self, run: str, *, known: bool) -> None:
        """Note that ``run`` begins or goes on, and whether what it had released before is gone with its directory.

        Args:
            known: whether the index says that it had come to its end.
        """
        folder = self._folder(run)
        with _held(self._run(run)) as told:
            removed = told.get("began", False) and not folder.exists()
            if not _has_begun(folder) and (told.get("sent", False) or known or removed):
                told |= {"lost": True, "sent": False}
            told["began"] = True
            make_folder(folder)

    def sent(self, run: str) -> None:
        """Note that ``run`` has released something."""
        if not _read(self._run(run)).get("sent", False):
            with _held(self._run(run)) as told:
                told |= {"began": True, "sent": True}

    def is_lost(self, run: str) -> bool:
        """Whether ``run`` released something that no directory tells of any more."""
        told = _read(self._run(run))
        return told.get("lost", False) or (told.get("sent", False) and not _has_begun(self._folder(run)))

    def standing(self, run: str) -> Standing:
        """How far ``run`` ever came."""
        if self.is_lost(run):
            return "gone"
        if (self._folder(run) / "summary.json").exists():
            return "ended"
        return "open" if _has_begun(self._folder(run)) else "never"

    def follow(self, runs: Sequence[str], pick: Mapping[str, Any]) -> None:
        """Note that ``runs`` have the value of a ``pick``: what it cost is theirs, whichever study asks for them."""
        pick = json.loads(json.dumps(pick))
        for run in runs:
            if pick not in self.followed(run):
                with _held(self._run(run)) as told:
                    told["followed"] = [*told.get("followed", []), dict(pick)]

    def followed(self, run: str) -> list[dict[str, Any]]:
        """The picks that the settings of ``run`` came from."""
        return list(_read(self._run(run)).get("followed", []))

    def _folder(self, run: str) -> Path:
        return self.store / "runs" / run

    def _study(self, study: str) -> Path:
        return self.store / FOLDER / "studies" / f"{study}.json"

    def _run(self, run: str) -> Path:
        return self.store / FOLDER / "runs" / f"{run}.json"


def spent_in(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a tuning spent, and the ones that its runs had followed from, in what a store keeps of it."""
    return [told["spent"], *told.get("earlier", [])] if "spent" in told else []


@dataclass(frozen=True)
class Former:
    """What earlier forms of a study had and its present form has not, as far as it ever began.

    Args:
        runs, trials: names of their directories.
    """

    runs: tuple[str, ...] = ()
    trials: tuple[str, ...] = ()

    @classmethod
    def of(cls, history: History, study: str, runs: Sequence[str], tuned: Sequence[Mapping[str, Any]]) -> Former:
        """Of ``study``, which has ``runs`` now and was ``tuned`` so."""
        trials = {name for one in tuned for spent in spent_in(one) for group in spent["trials"] for name in group}

        def began(name: str, now: set[str]) -> tuple[str, ...]:
            return tuple(run for run in history.runs_of(name) if run not in now and history.standing(run) != "never")

        return cls(began(study, set(runs)), began(f"{study}/tuning", trials))


def _has_begun(folder: Path) -> bool:
    return (folder / "environment.json").exists()


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, MEND) if path.exists() else {}


@contextmanager
def _held(path: Path) -> Iterator[dict[str, Any]]:
    """What the file at ``path`` holds, written back when changed; no other process changes it meanwhile."""
    try:
        make_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    with FileLock(path.with_suffix(".lock")):
        told = _read(path)
        yield told
        write_json(path, told)
