"""What is learned: clients as index sets into one tensor (or memory map) per array, held-out data, model, loss.

task = pf.load("fashion-mnist", partition=pf.Dirichlet(clients=100, alpha=0.3))
task = pf.Task.from_arrays(x, y, partition=pf.IID(clients=20))          # your own arrays
task = pf.Task.from_arrays(x, y, clients=hospital)                      # with a client id for every row
task = pf.Task.from_arrays(np.load("x.npy", mmap_mode="r"), y, clients=hospital, scale=1 / 255)  # larger than memory
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from privfl.data.catalog import load_dataset
from privfl.data.dataset import Dataset
from privfl.data.label_noise import LabelNoise
from privfl.data.local_tests import LocalTests
from privfl.data.mapped import Rows
from privfl.data.partitions import Natural, Partition, PartitionReport, describe
from privfl.errors import ConfigError, DataError
from privfl.federation.context import Setting
from privfl.models import InputKind, NamedModel, default_model
from privfl.privacy.loss import Loss
from privfl.randomness import numpy_stream, stream_seed

ModelFactory = Callable[[int], nn.Module]
"""Builds the model from a seed; the same seed gives the same initial parameters."""


def cross_entropy(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample [B], from the logits of ``network``."""
    return F.cross_entropy(network(inputs), targets, reduction="none")


@dataclass(frozen=True)
class ClientIndex:
    """Which rows belong to which client: ``rows`` [N] by client, ``offsets`` [clients + 1]; no copies of data."""

    rows: Tensor
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[NDArray[np.int64]]) -> ClientIndex:
        """From one array of row numbers per client.

        Raises:
            DataError: a client is empty.
        """
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        if len(parts) == 0 or sizes.min() == 0:
            empty = int(sizes.argmin()) if len(parts) else 0
            raise DataError(f"client {empty} holds no sample; give every client at least one, or leave it out")
        return cls.allowing_empty(parts)

    @classmethod
    def allowing_empty(cls, parts: Sequence[NDArray[np.int64]]) -> ClientIndex:
        """From one array of row numbers per client, which may be empty: what clients test on."""
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        rows = torch.from_numpy(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))
        return cls(rows, np.concatenate([[0], sizes.cumsum()]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    def hash(self) -> str:
        """A hash of who holds which rows."""
        return hashlib.sha256(self.rows.cpu().numpy().tobytes() + self.offsets.tobytes()).hexdigest()[:16]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples [clients] of every client (private: only the door may use it for training)."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Task:
    """A federated learning task. Build one with :func:`load` or :meth:`from_arrays`.

    ``inputs[rows]`` are the inputs [B, ...] of the rows ``rows`` [B] and ``targets[rows]`` their classes: all there is
    to reading a batch, also where ``inputs`` lie in a memory map.
    """

    name: str
    inputs: Rows
    targets: Tensor
    clients: ClientIndex
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    model: ModelFactory
    model_name: str
    loss: Loss = cross_entropy
    report: PartitionReport | None = None
    vocabulary: int | None = None
    local_tests: ClientIndex | None = None
    local_validations: ClientIndex | None = None

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        partition: Partition | None = None,
        model: str | Callable[[], nn.Module] | None = None,
        model_options: dict[str, Any] | None = None,
        label_noise: LabelNoise | None = None,
        loss: Loss = cross_entropy,
        seed: int = 0,
    ) -> Task:
        """Divide ``dataset`` into clients. ``partition`` defaults to the dataset's own client ids.

        Raises:
            ConfigError: neither a partition nor client ids, or the model does not fit the data.
        """
        if partition is None:
            if dataset.clients is None:
                raise ConfigError(
                    f"dataset '{dataset.name}' has no client ids; give a partition, for instance IID(clients=20)"
                )
            partition = Natural()
        targets = dataset.targets.numpy()
        owners = None if dataset.clients is None else dataset.clients.numpy()
        parts = partition.split(targets, dataset.classes, numpy_stream(seed, "partition"), owners)
        profiles = partition.profiles(dataset.classes, numpy_stream(seed, "partition"))
        report = describe(parts, targets, dataset.classes, profiles)
        if label_noise is not None:
            targets = label_noise.apply(targets, dataset.classes, numpy_stream(seed, "label-noise"))
        factory, name = _factory(dataset, model, model_options or {})
        return cls(
            name=dataset.name,
            inputs=dataset.inputs,
            targets=torch.from_numpy(np.ascontiguousarray(targets)),
            clients=ClientIndex.of(parts),
            test_inputs=dataset.test_inputs,
            test_targets=dataset.test_targets,
            classes=dataset.classes,
            model=factory,
            model_name=name,
            loss=loss,
            report=report,
            vocabulary=dataset.vocabulary,
        )

    @classmethod
    def from_arrays(
        cls,
        inputs: Any,
        targets: Any,
        *,
        clients: Any = None,
        test: tuple[Any, Any] | None = None,
        test_fraction: float = 0.2,
        scale: float = 1.0,
        vocabulary: int | None = None,
        partition: Partition | None = None,
        model: str | Callable[[], nn.Module] | None = None,
        loss: Loss = cross_entropy,
        seed: int = 0,
    ) -> Task:
        """A task from a user's own NumPy or torch arrays.

        ``inputs`` [N, ...] and ``targets`` [N] of class numbers; ``clients`` [N] names the owner of every row, or
        ``partition`` divides the rows. Without ``test``, ``test_fraction`` of the rows are held out. ``scale`` is a
        public factor of all inputs, for instance 1/255 for 8-bit images; ``vocabulary`` is the number of token ids.

        Inputs in a memory map (``np.memmap``, ``np.load(…, mmap_mode="r")``) may be larger than memory: nothing is
        copied but the held-out rows, and training is the same bit by bit. See :meth:`Dataset.from_arrays`, which says
        also what is refused.
        """
        dataset = Dataset.from_arrays(
            inputs,
            targets,
            clients=clients,
            test=test,
            test_fraction=test_fraction,
            scale=scale,
            vocabulary=vocabulary,
            seed=seed,
        )
        return cls.from_dataset(dataset, partition=partition, model=model, loss=loss, seed=seed)

    def with_local_tests(self, tests: LocalTests | None = None, seed: int = 0) -> Task:
        """This task with rows of every client held back from training, for testing its personal models.

        Where clients share rows, each holds back its own copies, and another may train on them.

        Raises:
            ConfigError: rows are held back already.
        """
        if self.local_tests is not None:
            raise ConfigError("clients hold rows back already; give fraction and validation in one call")
        tests = tests or LocalTests()
        parts = [self.clients[client].cpu().numpy() for client in range(len(self.clients))]
        train, test, validation = tests.split(parts, self.targets.cpu().numpy(), seed)
        held = ClientIndex.allowing_empty(test)
        validations = ClientIndex.allowing_empty(validation) if tests.validation else None
        task = replace(self, clients=ClientIndex.of(train), local_tests=held, local_validations=validations)
        if tests.global_test == "official":
            return task
        rows = torch.sort(held.rows).values
        return replace(task, test_inputs=self.inputs[rows], test_targets=self.targets[rows])

    def pooled(self) -> Task:
        """The same data held by one client: what centralised training sees."""
        rows = torch.sort(self.clients.rows).values
        return replace(self, clients=ClientIndex(rows, np.array([0, len(rows)], dtype=np.int64)), report=None)

    def describe(self) -> dict[str, Any]:
        """What tells this task apart from another one: names, and a hash of who holds which rows."""
        found = {"name": self.name, "model": self.model_name, "clients": len(self.clients), "rows": self.clients.hash()}
        for name in ("local_tests", "local_validations"):
            index = getattr(self, name)
            if index is not None:
                found |= {name: index.hash(), "tested": len(self.test_targets)}
        return found

    def setting(self, rounds: int, seed: int) -> Setting:
        """What an algorithm may know of a run of ``rounds`` rounds on this task."""
        shape, device = tuple(self.inputs.shape[1:]), self.targets.device
        return Setting(self.model, self.classes, len(self.clients), rounds, seed, shape, device)

    def probe(self, rows: int) -> tuple[Tensor, Tensor]:
        """Random *public* inputs [rows, ...] and targets [rows] of the right shapes, for checks of model and loss."""
        generator = torch.Generator().manual_seed(0)
        shape = (rows, *self.inputs.shape[1:])
        if self.vocabulary is not None:
            inputs = torch.randint(self.vocabulary, shape, generator=generator)
        else:
            inputs = torch.randn(shape, generator=generator, dtype=self.inputs.dtype)
        targets = torch.randint(self.classes, (rows,), generator=generator)
        return inputs.to(self.inputs.device), targets.to(self.inputs.device)

    def to(self, device: torch.device) -> Task:
        """The task with its arrays on ``device``; those that are there already are not copied.

        A memory map stays where it is, and its batches go to ``device`` one by one.
        """
        moved = {name: getattr(self, name).to(device) for name in ("inputs", "targets", "test_inputs", "test_targets")}
        for name in ("clients", "local_tests", "local_validations"):
            index = getattr(self, name)
            moved[name] = None if index is None else replace(index, rows=index.rows.to(device))
        return replace(self, **moved)


def _factory(
    dataset: Dataset, model: str | Callable[[], nn.Module] | None, options: dict[str, Any]
) -> tuple[ModelFactory, str]:
    shape = tuple(dataset.inputs.shape[1:])
    vocabulary = dataset.vocabulary
    if model is None:
        kinds: dict[int, InputKind] = {1: "vector", 2: "signal", 3: "image"}
        model = default_model(shape, "tokens" if vocabulary is not None else kinds.get(len(shape), "vector"))
    if isinstance(model, str):
        return NamedModel(model, shape, dataset.classes, vocabulary, options), model
    own = model

    def custom(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "init") % 2**63)
            return own()

    return custom, getattr(model, "__name__", type(model).__name__)


def load(
    name: str = "digits",
    *,
    partition: Partition | None = None,
    model: str | Callable[[], nn.Module] | None = None,
    model_options: dict[str, Any] | None = None,
    label_noise: LabelNoise | None = None,
    local_tests: LocalTests | None = None,
    seed: int = 0,
    **options: Any,
) -> Task:
    """The task of a dataset in the catalog; ``options`` go to its loader. See ``privfl list datasets``."""
    dataset = load_dataset(name, seed=seed, **options)
    task = Task.from_dataset(
        dataset, partition=partition, model=model, model_options=model_options, label_noise=label_noise, seed=seed
    )
    return task if local_tests is None else task.with_local_tests(local_tests, seed)
