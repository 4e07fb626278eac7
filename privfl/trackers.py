"""Trackers that follow a run from outside, each a callback of ``simulate``: TensorBoard and MLflow.

    with pf.TensorBoard("boards/first") as board:
        pf.simulate(task, pf.FedAvg(), rounds=50, callbacks=[board])

A tracker gets the figures of each round's line of ``metrics.jsonl`` and nothing else of the run: no settings, no
models, no data. Metrics are computed on data without noise and covered by no ε: whoever reads the tracker reads them.
Both need ``pip install 'privfl[trackers]'``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from privfl.errors import ConfigError
from privfl.files import read_json, write_json

if TYPE_CHECKING:
    from privfl.simulation.callbacks import Simulation

LOG = logging.getLogger("privfl")
MEND = "install it, pip install 'privfl[trackers]', or leave the tracker out"
RUN = "mlflow.json"
"""In the run directory: which run of MLflow a resumed run goes on with."""


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


class TensorBoard:
    """Writes a run's figures where ``tensorboard --logdir`` finds them.

    Args:
        folder: of the event files, one for each run; a resumed run takes the place of what it repeats.

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

    def __call__(self, simulation: Simulation, line: Mapping[str, Any]) -> None:
        """Write the figures of a round."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=line["round"])
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
    """Sends a run's figures to MLflow, as a run of its own.

    A server that refuses a round is warned of and does not end the run; ``metrics.jsonl`` has every round.

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
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise ConfigError(f"MLflow is not installed; {MEND}") from error
        self.name, self._refusal, self._run = name, MlflowException, ""
        try:
            self.client = MlflowClient(uri or None)
            found = self.client.get_experiment_by_name(experiment)
            self.experiment = found.experiment_id if found else self.client.create_experiment(experiment)
        except Exception as error:  # the client raises what its store does: files, HTTP, SQL
            reason = " ".join(str(error).split())
            raise ConfigError(f"MLflow at {uri or 'its own address'} cannot be used ({reason}); mend uri") from error

    def __call__(self, simulation: Simulation, line: Mapping[str, Any]) -> None:
        """Send the figures of a round."""
        try:
            if not self._run:
                self._run = self._begin(simulation.path)
            for name, value in figures(line):
                self.client.log_metric(self._run, re.sub(r"[^\w\-. /]", "_", name), value, step=line["round"])
        except (self._refusal, OSError) as error:
            reason = " ".join(str(error).split())
            LOG.warning("MLflow did not take round %d (%s); metrics.jsonl has it", line["round"] + 1, reason)

    def _begin(self, path: Path | None) -> str:
        """The run of MLflow that belongs to the run directory ``path``, or a new one."""
        if path is not None and (path / RUN).exists():
            there: str = read_json(path / RUN, "remove it, and a new run of MLflow is begun")["run"]
            self.client.update_run(there, status="RUNNING")
            return there
        run: str = self.client.create_run(self.experiment, run_name=self.name or None).info.run_id
        if path is not None:
            write_json(path / RUN, {"run": run})
        return run

    def close(self, status: str = "FINISHED") -> None:
        """Tell MLflow that the run has ended."""
        if self._run:
            self.client.set_terminated(self._run, status)
            self._run = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED")
