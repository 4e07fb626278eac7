"""Trackers that follow a run from outside, each a callback of ``simulate``: TensorBoard and MLflow.

    with pf.TensorBoard("boards/first") as board:
        pf.simulate(task, pf.FedAvg(), rounds=50, callbacks=[board])

A tracker gets the figures of each round's line of ``metrics.jsonl`` and nothing else of the run: no settings, no
models, no data. Metrics are computed on data without noise and covered by no ε: whoever reads the tracker reads them.
Both need ``pip install 'privfl[trackers]'``.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from privfl.errors import ConfigError, PrivflError
from privfl.files import read_json, write_json

if TYPE_CHECKING:
    from privfl.simulation.callbacks import Simulation

LOG = logging.getLogger("privfl")
MEND = "install it, pip install 'privfl[trackers]', or leave the tracker out"
RUN = "mlflow.json"
"""In the run directory: which run of MLflow a resumed run goes on with."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""While a round waits for MLflow; its own settings let a server that is gone stop every round for minutes."""
PAUSE, LONGEST_PAUSE = 60.0, 1920.0
"""Seconds after which a server that refused is tried again; they double from the one to the other."""


def figures(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line of metrics by name; those in tables as ``epsilon/sample/server``, none that is not finite.

    >>> dict(figures({"round": 3, "test_accuracy": 0.5, "test_loss": None, "epsilon": {"sample/public": 1.0}}))
    {'test_accuracy': 0.5, 'epsilon/sample/public': 1.0}
    """
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from figures(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and f"{prefix}{name}" != "round":
            yield f"{prefix}{name}", float(value)


class _Which:
    """Tells runs apart: which one a tracker follows, and whether a round is another's."""

    def __init__(self) -> None:
        self._schedule: Any = None
        self._path: Path | None = None
        self._round = -1

    def is_new(self, simulation: Simulation, number: int) -> bool:
        """Whether round ``number`` begins to follow a run, one that is taken up again included."""
        same = simulation.schedule is self._schedule and simulation.path == self._path and number > self._round
        self._schedule, self._path, self._round = simulation.schedule, simulation.path, number
        return not same


@contextmanager
def _impatiently() -> Iterator[None]:
    """MLflow's requests as :data:`PATIENCE` says, where the user has not set the variable; afterwards as before."""
    ours = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class TensorBoard:
    """Writes a run's figures where ``tensorboard --logdir`` finds them.

    Args:
        folder: of the event files, one for each run; a resumed run takes the place of what it repeats. The second run
            that one tracker follows has the folder ``2`` in it, the next one ``3``.

    Raises:
        ConfigError: TensorBoard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            import tensorboard  # noqa: F401  # what torch needs of it; its own message names no mend
        except ImportError as error:
            raise ConfigError(f"TensorBoard is not installed; {MEND}") from error
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.folder} cannot be written ({error.strerror}); choose another folder") from error
        self._writer: Any = None
        self._which = _Which()
        self._runs: list[Path | None] = []

    def __call__(self, simulation: Simulation, line: Mapping[str, Any]) -> None:
        """Write the figures of a round."""
        if self._which.is_new(simulation, line["round"]):
            self.close()
            if simulation.path is None or simulation.path not in self._runs:
                self._runs.append(simulation.path)
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            place = len(self._runs) if simulation.path is None else self._runs.index(simulation.path) + 1
            folder = self.folder if place == 1 else self.folder / str(place)
            self._writer = SummaryWriter(str(folder), purge_step=line["round"])
        for name, value in figures(line):
            self._writer.add_scalar(name, value, line["round"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file; the next round opens another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MLflow:
    """Sends a run's figures to MLflow, as a run of its own; the next run that is followed is another one.

    A server that refuses is warned of once and ends no run. It is tried again after a minute, then after two, and so
    on, and at the end; it gets the rounds that it has missed then. ``metrics.jsonl`` has every round.

    Args:
        experiment: of MLflow; made if it is not there.
        name: of the run in it; MLflow finds one if it is empty.
        uri: of the server or the folder, such as ``http://localhost:5000`` or ``file:///tmp/mlruns``; MLflow's own
            setting if it is empty.

    Raises:
        ConfigError: MLflow is not installed, or the server does not answer.
    """

    def __init__(self, experiment: str = "privfl", name: str = "", uri: str = "") -> None:
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ConfigError(f"MLflow is not installed; {MEND}") from error
        self.name = name
        try:
            with _impatiently():
                self.client = MlflowClient(uri or None)
                found = self.client.get_experiment_by_name(experiment)
                self.experiment = found.experiment_id if found else self.client.create_experiment(experiment)
        except Exception as error:  # the client raises what its store does: files, HTTP, SQL
            mend = "mend uri"
            if isinstance(error, ImportError) or isinstance(error.__cause__ or error.__context__, ImportError):
                mend = "a database needs the whole of MLflow: pip install mlflow"
            where = uri or "its own address"
            raise ConfigError(f"MLflow at {where} cannot be used ({_said(error)}); {mend}") from error
        self._which = _Which()
        self._forget()

    def _forget(self) -> None:
        self._run = ""
        self._path: Path | None = None
        self._waiting: list[tuple[int, int, dict[str, float]]] = []  # round, time in milliseconds, figures
        self._taken: dict[str, int] | None = None  # the latest round by metric; None: MLflow is to be asked
        self._again = self._pause = 0.0

    def __call__(self, simulation: Simulation, line: Mapping[str, Any]) -> None:
        """Send the figures of a round."""
        if self._which.is_new(simulation, line["round"]):
            self.close()
        self._path = simulation.path
        named = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in figures(line)}
        self._waiting.append((line["round"], int(time.time() * 1000), named))
        if time.monotonic() < self._again:
            return
        refused, first = self._send(), not self._pause
        if not refused:
            self._again = self._pause = 0.0
            return
        self._pause = PAUSE if first else min(2 * self._pause, LONGEST_PAUSE)
        self._again = time.monotonic() + self._pause
        if first:
            LOG.warning("MLflow did not take round %d (%s); %s", line["round"] + 1, refused, self._consolation())

    def _consolation(self) -> str:
        kept = "" if self._path is None else ", and metrics.jsonl has it"
        return f"it is tried again later, with the rounds until then{kept}"

    def _send(self) -> str:
        """Send the rounds that wait; why MLflow refused, empty if it has them all."""
        kept, made = None if self._path is None else self._path / RUN, False
        there = ""
        if not self._run and kept is not None and kept.exists():
            there = read_json(kept, "remove it, and a new run of MLflow is begun")["run"]
        refused = ""
        try:
            with _impatiently():
                if there:
                    self.client.update_run(there, status="RUNNING")
                    self._run = there
                elif not self._run:
                    self._run = self.client.create_run(self.experiment, run_name=self.name or None).info.run_id
                    self._taken, made = {}, True
                self._log()
        except Exception as error:  # the client raises what its store does, and none of it may end the run
            refused, self._taken = _said(error), None  # some of it may have arrived
        if made and kept is not None:
            write_json(kept, {"run": self._run})
        return refused

    def _log(self) -> None:
        """One request with all that waits, save what MLflow has: of a run that is resumed, or a lost answer."""
        from mlflow.entities import Metric

        if self._taken is None:
            names = self.client.get_run(self._run).data.metrics
            histories = {name: self.client.get_metric_history(self._run, name) for name in names}
            self._taken = {name: max(one.step for one in history) for name, history in histories.items() if history}
        metrics = [
            Metric(name, value, moment, number)
            for number, moment, named in self._waiting
            for name, value in named.items()
            if number > self._taken.get(name, -1)
        ]
        self.client.log_batch(self._run, metrics)
        self._taken |= {metric.key: metric.step for metric in metrics}
        self._waiting.clear()

    def close(self, status: str = "FINISHED") -> None:
        """Send what MLflow has missed and tell it that the run has ended; the next round begins another run."""
        refused = ""
        if self._waiting:
            try:
                refused = self._send()
            except PrivflError as error:  # of mlflow.json; the run is over, and may have ended with another error
                refused = str(error)
        run, path, missed = self._run, self._path, len(self._waiting)
        self._forget()
        if run:
            try:
                with _impatiently():
                    self.client.set_terminated(run, status)
            except Exception as error:  # as above; a run that is only in memory would be lost
                refused = _said(error)
        if refused:
            what = f" and lacks {missed} of its rounds" if missed else ""
            kept = "" if path is None else "; metrics.jsonl is complete"
            LOG.warning("MLflow was not told that the run has ended%s (%s)%s", what, refused, kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED")
