"""Progress of a run: a bar on a terminal, a line every tenth of the rounds elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from privfl.privacy.accounting.printed import round_up

if TYPE_CHECKING:
    from privfl.simulation.callbacks import Simulation
    from privfl.simulation.result import Run

_CELLS = ("sample/server", "sample/public", "client/server", "client/public")


class Progress:
    """Shows round, loss, accuracy and ε so far; :meth:`update` is a callback of ``simulate``.

    While a run goes on, its ε is an upper bound, and said to be; what is shown last is the statement's.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.last: dict[str, Any] = {}
        self.evaluated = 0
        console = Console(file=sys.stderr)
        self.live = console.is_terminal
        self.bar = Bar(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
        )
        self.task = self.bar.add_task("starting", total=rounds)

    def __enter__(self) -> Progress:
        if self.live:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:  # rich before 14.3 ends a disabled bar with an empty line
            self.bar.stop()

    def update(self, simulation: Simulation, line: dict[str, Any]) -> None:
        """Show a finished round."""
        shown = ("test_loss", simulation.task.headline.test)
        done = line["round"] + 1
        if found := {name: line[name] for name in shown if name in line}:
            self.last, self.evaluated = found, done
        text = self._text(done, line["epsilon"], final=done == self.rounds)
        self.bar.update(self.task, completed=done, description=text)
        tenth = max(1, self.rounds // 10)
        if not self.live and (done % tenth == 0 or done == self.rounds):
            print(f"round {done}/{self.rounds}  {text}", file=sys.stderr, flush=True)

    def conclude(self, run: Run) -> None:
        """Show the statement's ε where budget or callback stopped the run: after its last round nobody knew it yet."""
        if run.metrics and len(run.metrics) < self.rounds:
            done = len(run.metrics)
            text = self._text(done, run.metrics[-1]["epsilon"], final=True)
            self.bar.update(self.task, description=text)
            if not self.live:
                by = "a callback" if run.summary["stopped"] == "callback" else "the budget"
                print(f"stopped by {by} at round {done}/{self.rounds}  {text}", file=sys.stderr, flush=True)

    def _text(self, done: int, epsilon: dict[str, float], *, final: bool) -> str:
        """What is shown when ``done`` rounds have ended."""
        return describe(self.last, epsilon, final=final, of=None if self.evaluated == done else self.evaluated)


def describe(last: dict[str, Any], epsilon: dict[str, float], *, final: bool, of: int | None = None) -> str:
    """``loss 0.410  accuracy 0.893  ε = 2.1 (sample/public)``: the last evaluation and the first finite cell.

    ``of`` says after which round that evaluation was, where it is not the round that is shown.
    """
    said = {name: "not finite" if value is None else f"{value:.3f}" for name, value in last.items()}
    parts = [f"{name.removeprefix('test_').replace('_', ' ')} {value}" for name, value in said.items()]
    if parts and of is not None:
        parts[-1] += f" (round {of})"
    finite = next((cell for cell in _CELLS if cell in epsilon), None)
    if finite is None:
        return "  ".join([*parts, "ε = ∞"])
    shown = round_up(epsilon[finite])
    parts.append(f"ε = {shown} ({finite})" if final else f"ε so far at most {shown} ({finite}, upper bound)")
    return "  ".join(parts)
