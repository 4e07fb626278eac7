"""What an attack reads: the recorded run, or the run repeated with the attacker in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from attacks.attack import Attack
from attacks.auxiliary import Auxiliary
from attacks.metrics.distinguishing import auc_ceiling
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.task import Task
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.run_directory import RunDirectory
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class Stage:
    """A run's directory with its task, experiment and statement (``None`` if the run has not ended).

    ``noise`` is the multiplier that the run's DP-SGD was calibrated to; a repeat of fewer rounds takes the same.
    """

    folder: Path
    task: Task
    experiment: Experiment
    statement: Statement | None
    noise: float | tuple[float, ...] | None

    @classmethod
    def of(cls, folder: Path, task: Task, name: str | None = None) -> Stage:
        """The stage of the run in ``folder``, whose task is there already, for data from Python under the ``name``.

        Raises:
            ConfigError: there is no run.
        """
        experiment = Experiment.of_run(folder, [] if name is None else [f"task={name}"])
        directory = RunDirectory(folder)
        if not directory.finished:
            return cls(folder, task, experiment, None, None)
        summary, statement, _ = directory.ending()
        had = summary.get("noise_multiplier")
        return cls(folder, task, experiment, statement, tuple(had) if isinstance(had, list) else had)

    def seen(self, attack: Attack, auxiliary: Auxiliary) -> Transcript:
        """What ``attack`` reads; ``auxiliary`` without its answers decides what the attacker does to a repeat.

        Raises:
            ConfigError: the observer's view was not recorded, or the run cannot be repeated with the attacker in it.
        """
        if attack.power == "passive":
            return Transcript.load(self.folder, attack.observer, self.task.model)
        if self.statement is None:
            raise ConfigError(
                "the run has not ended, and the attack repeats it; let it end first (privfl run --resume)"
            )
        task, algorithm = attack.staged(self.task, self.experiment.algorithm, auxiliary.for_attacker())
        schedule = self.experiment.schedule
        rounds = schedule.rounds if attack.staged_rounds is None else min(attack.staged_rounds, schedule.rounds)
        privacy = self.experiment.privacy
        if privacy.training is not None and privacy.training.target_epsilon is not None:
            calibrated = replace(privacy.training, target_epsilon=None, noise_multiplier=self.noise)
            privacy = replace(privacy, training=calibrated)
        repeat = replace(
            self.experiment,
            algorithm=algorithm,
            privacy=privacy,
            schedule=replace(schedule, rounds=rounds, evaluate_every=rounds),
        )
        transcript = repeat.run_on(task, record=(attack.observer,)).transcript
        if transcript is None:
            raise ConfigError("the repeated run recorded nothing")
        return transcript

    def ceiling(self, kind: type[Attack], result: AttackResult) -> float | None:
        """The largest advantage in AUC over ½ that the claim for one example before this observer allows.

        ``None`` without a statement, and for what is no AUC of single examples.
        """
        if self.statement is None or result.unit != "membership score" or "members" not in kind.needs.truth:
            return None
        cell = self.statement.cell("sample", kind.observer)
        return auc_ceiling(cell.epsilon, self.statement.delta) - 0.5
