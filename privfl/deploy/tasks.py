"""The task as each party has it: everybody knows its description, a client its own rows, the server held-out ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.targets import TaskKind
from privfl.errors import ConfigError, DataError
from privfl.federation.client_index import ClientIndex
from privfl.federation.fit import model_factory
from privfl.federation.kinds import KINDS
from privfl.federation.losses import loaded_loss, named_loss
from privfl.federation.task import Task
from privfl.files import UNREADABLE
from privfl.models import NamedModel, OwnModel
from privfl.schema import Named
from privfl.validation import Settings, check_count


class UnknownRows(ClientIndex):
    """Rows of which nobody here knows whose they are; whoever does not tell its size counts as one example."""

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """One for everybody [clients]."""
        return np.ones(len(self), dtype=np.int64)

    @cached_property
    def overlap(self) -> bool:
        """Whether clients share rows is not known either; each client's own claims hold all the same."""
        return False


@dataclass(frozen=True)
class TaskDescription(Settings):
    """What all parties know of the task.

    Args:
        name: of the data.
        examples: how many training examples all clients hold together, at most; agreed on, and public.
        input_shape: of one input.
        classes: how many, or how many values, labels or token ids for another kind.
        model: name or ``module:Name``, and options.
        kind: of what is predicted.
        vocabulary: of token ids.
        loss: name or ``module:Name``; ``None`` is that of the kind.
    """

    name: str
    examples: int
    input_shape: tuple[int, ...]
    classes: int
    model: Named
    kind: TaskKind = "classification"
    vocabulary: int | None = None
    loss: Named | None = None

    def __post_init__(self) -> None:
        check_count("task.examples", self.examples)

    @classmethod
    def of(cls, task: Task) -> TaskDescription:
        """The description of a ``task`` that is all in one place.

        Raises:
            ConfigError: its model was handed over in Python, without a name.
        """
        if not isinstance(task.model, NamedModel | OwnModel) or "<" in task.model.named.name:
            raise ConfigError("the model has no name that other machines could load; give model = 'module:Name'")
        return cls(
            task.name,
            len(task.clients.rows),
            tuple(task.inputs.shape[1:]),
            task.classes,
            task.model.named,
            task.kind,
            task.vocabulary,
            None if task.loss is KINDS[task.kind].loss else named_loss(task.loss),
        )

    def of_client(self, number: int, clients: int, file: Path) -> Task:
        """The task as client ``number`` of ``clients`` has it: with the rows in ``file``, and none of anybody else.

        Raises:
            DataError: the file is not what the description says.
        """
        inputs, targets = self._read(file, "inputs", "targets")
        nobody: NDArray[np.int64] = np.empty(0, np.int64)
        parts = [np.arange(len(inputs)) if client == number else nobody for client in range(clients)]
        return self._task(inputs, targets, inputs[:0], targets[:0], ClientIndex.allowing_empty(parts))

    def of_server(self, clients: int, file: Path) -> Task:
        """The task as the server has it: with the held-out rows in ``file``, and no client's.

        Raises:
            DataError: the file is not what the description says.
        """
        inputs, targets = self._read(file, "test_inputs", "test_targets")
        rows = torch.zeros(self.examples, dtype=torch.int64)  # so many there are; whose they are is not known here
        index = UnknownRows(rows, np.zeros(clients + 1, dtype=np.int64))
        return self._task(inputs[:0], targets[:0], inputs, targets, index)

    def _read(self, file: Path, *names: str) -> tuple[Tensor, Tensor]:
        if not file.is_file():
            raise DataError(f"there is no file {file}; save the arrays {names[0]} and {names[1]} there by numpy.savez")
        try:
            with np.load(file, allow_pickle=False) as archive:
                inputs, targets = (torch.from_numpy(archive[name]) for name in names)
        except UNREADABLE as error:
            raise DataError(f"{file} does not hold the arrays {' and '.join(names)} ({error}); save both") from error
        for name, array in zip(names, (inputs, targets), strict=True):
            if not array.ndim:
                raise DataError(f"{file} holds a single value as {name}; give one row per example")
        self._dataset(inputs, targets)
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise DataError(
                f"{file} holds inputs of shape {tuple(inputs.shape[1:])}, and the federation agreed on "
                f"{self.input_shape}; prepare them as the others do"
            )
        return inputs, targets

    def _dataset(self, inputs: Tensor, targets: Tensor) -> Dataset:
        """All rows checked, as any dataset's are."""
        some = inputs[:1], targets[:1]
        return Dataset(self.name, inputs, targets, *some, self.classes, vocabulary=self.vocabulary, kind=self.kind)

    def _task(
        self, inputs: Tensor, targets: Tensor, test_inputs: Tensor, test_targets: Tensor, clients: ClientIndex
    ) -> Task:
        some = (inputs, targets) if len(inputs) else (test_inputs, test_targets)
        own = ":" in self.model.name
        model: Any = self.model.load("task.model") if own else self.model.name
        options = {} if own else dict(self.model.options)
        factory, name = model_factory(self._dataset(*some), model, options)
        return Task(
            name=self.name,
            inputs=inputs,
            targets=targets,
            clients=clients,
            test_inputs=test_inputs,
            test_targets=test_targets,
            classes=self.classes,
            model=factory,
            model_name=name,
            loss=KINDS[self.kind].loss if self.loss is None else loaded_loss(self.loss),
            vocabulary=self.vocabulary,
            kind=self.kind,
        )
