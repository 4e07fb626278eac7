"""How far a whole study is: one line that is kept up to date on a terminal, a few lines elsewhere, all in a log."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from privfl.errors import PrivflError
from privfl.privacy.accounting.printed import round_up
from privfl.study.store import Member, Store

EVERY = 1.0
"""Seconds between two looks at the runs in flight."""
CELLS = ("sample/server", "sample/public", "client/server", "client/public")


@dataclass
class Display:
    """Done, in flight, failed, time left, and the ε so far of a run in flight.

    Args:
        store: where the study's runs are noted.
        study: its name there.
        processes: how many runs go side by side.
    """

    store: Store
    study: str
    processes: int
    _stop: Event = field(default_factory=Event, init=False)
    _thread: Thread | None = field(default=None, init=False)
    _shown: int = field(default=0, init=False)
    _began: float = field(default_factory=time.time, init=False)

    def __post_init__(self) -> None:
        self.console = Console(stderr=True)
        self.log = self.store.folder / self.study / "study.log"
        self.bar = Progress(
            TextColumn("runs"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        members = self.store.members(self.study)
        self._task = self.bar.add_task("starting", total=len(members))
        self._note(f"started: {count(members)}")
        self.bar.start()
        if self.console.is_terminal:
            self._thread = Thread(target=self._follow, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.bar.stop()
        ending = "ended" if kind is None else "interrupted" if kind is KeyboardInterrupt else f"stopped by {error}"
        self._note(f"{ending}: {count(self.store.members(self.study))}")

    def ended(self, run: str) -> None:
        """Show that ``run`` has ended."""
        members = self.store.members(self.study)
        for one in members:
            if one.run == run:
                because = f": {one.reason}" if one.reason else ""
                self._note(f"{one} is {one.state}{because}")
                if one.state == "failed":
                    self.console.print(f"failed: {one}: {one.reason}", markup=False, soft_wrap=True)
        self._show(members)

    def _follow(self) -> None:
        while not self._stop.wait(EVERY):
            try:
                self._show(self.store.members(self.study))
            except PrivflError:  # another writer keeps the store for long: the next look will do
                continue

    def _show(self, members: Sequence[Member]) -> None:
        ended = sum(one.state in ("done", "failed", "impossible") for one in members)
        text = count(members)
        left = time_left(members, self.processes)
        text += f", about {left} left" if left and ended < len(members) else ""
        flying = max((one for one in members if one.state == "running"), key=lambda one: one.began, default=None)
        if self.console.is_terminal:
            text += f" | {in_flight(self.store, flying)}" if flying is not None else ""
            self.bar.update(self._task, completed=ended, description=text)
        elif ended * 10 // len(members) > self._shown * 10 // len(members):
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._shown = max(ended, self._shown)

    def _note(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def count(members: Sequence[Member]) -> str:
    """``12 of 48 done, 2 in flight, 1 failed``."""
    states = Counter(one.state for one in members)
    parts = [f"{states['done']} of {len(members)} done"]
    words = {"running": "in flight", "failed": "failed", "impossible": "impossible"}
    return ", ".join(parts + [f"{states[state]} {word}" for state, word in words.items() if states[state]])  # type: ignore[index]


def time_left(members: Sequence[Member], processes: int) -> str:
    """How long what is left takes if it takes as long as what is done did; empty if nothing is."""
    took = [one.metrics["seconds"] for one in members if one.state == "done" and "seconds" in one.metrics]
    left = sum(one.state in ("waiting", "running") for one in members)
    if not took:
        return ""
    return str(timedelta(seconds=round(sum(took) / len(took) * left / processes)))


def in_flight(store: Store, member: Member) -> str:
    """Round and ε so far of a run in flight; on the way ε is an upper bound, and said to be."""
    line = last_line(store.path(member.run) / "metrics.jsonl")
    if not line:
        return f"{member}: starting"
    epsilon = line.get("epsilon", {})
    cell = next((name for name in CELLS if name in epsilon), None)
    claim = "ε = ∞" if cell is None else f"ε so far at most {round_up(epsilon[cell])} ({cell})"
    return f"{member}: round {line['round'] + 1} of {member.rounds}, {claim}"


def last_line(path: Path) -> dict[str, Any]:
    """The last complete line of a file of JSON lines, empty if there is none; reads the end of the file alone."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 8192))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) and "round" in found else {}
    return {}
