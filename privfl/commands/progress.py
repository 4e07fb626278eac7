"""Progress of a run: a bar on a terminal, a line every tenth of the rounds elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from privfl.simulation.callbacks import Simulation

_CELLS = ("sample/server", "sample/public", "client/server", "client/public")


class Progress:
    """Shows round, loss, accuracy and ε so far; :meth:`update` is a callback of ``simulate``."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.last: dict[str, Any] = {}
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
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def update(self, simulation: Simulation, line: dict[str, Any]) -> None:
        """Show a finished round."""
        self.last |= {name: line[name] for name in ("test_loss", "test_accuracy") if name in line}
        text = describe(self.last, line["epsilon"])
        done = line["round"] + 1
        self.bar.update(self.task, completed=done, description=text)
        tenth = max(1, self.rounds // 10)
        if not self.live and (done % tenth == 0 or done == self.rounds):
            print(f"round {done}/{self.rounds}  {text}", file=sys.stderr, flush=True)


def describe(last: dict[str, Any], epsilon: dict[str, float]) -> str:
    """``loss 0.41  accuracy 0.893  ε ≤ 2.1 (sample/public)``: the last evaluation and the first finite cell."""
    loss = "not finite" if last.get("test_loss") is None else f"{last['test_loss']:.3f}"
    parts = [f"loss {loss}  accuracy {last['test_accuracy']:.3f}"] if last else []
    finite = next((cell for cell in _CELLS if cell in epsilon), None)
    parts.append("ε = ∞" if finite is None else f"ε ≤ {epsilon[finite]:.3g} ({finite})")
    return "  ".join(parts)
