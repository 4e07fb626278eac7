"""An audit in one file: are rows with wrong labels protected as the statement claims?"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from audits import Canaries, audit_one_run
from audits.registry import ExperimentAudit, retrain


@dataclass(frozen=True)
class FlippedLabels(ExperimentAudit):
    """Canaries are test rows with the next class's label, dealt to all clients in turn: is one example protected?

    Args:
        canaries: how many rows, at most as many as the test data have.
    """

    name: ClassVar[str] = "flipped-labels"
    canaries: int = 100

    def run(self, experiment, confidence, seed):
        task = experiment.task()
        rows = np.random.default_rng(seed).permutation(len(task.test_targets))[: self.canaries]
        wrong = (task.test_targets[rows] + 1) % task.classes
        planted = Canaries(task.test_inputs[rows], wrong, np.arange(len(rows)) % len(task.clients))
        return audit_one_run(task, lambda task: retrain(experiment, task), planted, confidence=confidence, seed=seed)
