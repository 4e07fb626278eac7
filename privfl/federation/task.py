"""What is learned: clients as index sets into one tensor (or memory map) per array, held-out data, model, loss.

task = pf.load("fashion-mnist", partition=pf.Dirichlet(clients=100, alpha=0.3))
task = pf.Task.from_arrays(x, y, partition=pf.IID(clients=20))          # your own arrays
task = pf.Task.from_arrays(x, y, clients=hospital, kind="regression")   # with a client id for every row
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privfl.data.catalog import load_dataset
from privfl.data.class_names import Classes
from privfl.data.dataset import Dataset
from privfl.data.label_noise import Flipped, LabelNoise
from privfl.data.local_tests import LocalTests
from privfl.data.mapped import Rows
from privfl.data.partitions import Natural, Partition, PartitionReport, check_parts, describe
from privfl.data.targets import TaskKind, counted, strata
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.context import RunContext
from privfl.federation.fit import ModelFactory, check_fit, check_writes, model_factory, refuse_classes
from privfl.federation.kinds import KINDS, Headline, output_shape, random_targets
from privfl.federation.losses import check_kind, cross_entropy, named_loss
from privfl.federation.own_metrics import Metric, check_metrics, random_rows
from privfl.federation.read_off import dealt_by_rows, held_back
from privfl.federation.recipe import Recipe, content_hash
from privfl.models import NamedModel, OwnModel
from privfl.privacy.loss import Loss
from privfl.randomness import numpy_stream
from privfl.schema import Named, plain
from privfl.validation import Settings, checked, said


@dataclass(frozen=True)
class Task(Settings):
    """A federated learning task. Build one with :func:`load` or :meth:`from_arrays`.

    ``inputs[rows]`` are the inputs [B, ...] of the rows ``rows`` [B] and ``targets[rows]`` what the ``kind`` of task
    has (:data:`privfl.data.targets.TaskKind`): all there is to reading a batch, also where ``inputs`` lie in a memory
    map. ``classes`` is how many outputs a model has for each prediction; ``metrics`` are of one's own;
    ``unscaled`` inputs were 8-bit and got no factor; ``read_off`` is what the rows themselves decided of how they are
    dealt with, nothing if they are ``published``.
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
    read_off: tuple[str, ...] = ()
    kind: TaskKind = "classification"
    metrics: tuple[Metric, ...] = ()
    unscaled: bool = False
    published: bool = False
    flipped: Flipped | None = field(default=None, repr=False, compare=False)
    """What label noise did, which is undone on the rows that clients hold back for testing; ``None``: nothing."""
    recipe: Recipe | None = field(default=None, init=False, repr=False, compare=False)
    """How this very task can be had again, if that is known; a changed copy (``dataclasses.replace``) has none."""

    @classmethod
    @checked
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        partition: Partition | None = None,
        model: str | Callable[[], nn.Module] | None = None,
        model_options: dict[str, Any] | None = None,
        label_noise: LabelNoise | None = None,
        loss: Loss | None = None,
        metrics: tuple[Metric, ...] = (),
        seed: int = 0,
    ) -> Task:
        """Divide ``dataset`` into clients. ``partition`` defaults to the dataset's own client ids.

        Raises:
            ConfigError: neither a partition nor client ids, or model, loss, metrics or partition do not fit the data.
        """
        kind = dataset.kind
        loss = KINDS[kind].loss if loss is None else loss
        check_kind(loss, kind)
        if partition is None:
            if dataset.clients is None:
                mend = "give a partition, for instance IID(clients=20), or client ids (arrays.client in a file)"
                raise ConfigError(f"dataset '{dataset.name}' has no client ids; {mend}")
            partition = Natural()
        if kind != "classification":
            refuse_classes(partition, label_noise, kind)
        labels = strata(dataset.targets, kind)
        classes = dataset.classes if kind == "classification" else 1
        owners = None if dataset.clients is None else dataset.clients.numpy()
        parts = check_parts(partition.split(labels, classes, numpy_stream(seed, "partition"), owners), partition)
        profiles = partition.profiles(classes, numpy_stream(seed, "partition"))
        report = describe(parts, labels, classes, profiles)
        targets = dataset.targets.numpy()
        flipped = None
        if label_noise is not None:
            targets = label_noise.apply(targets, classes, numpy_stream(seed, "label-noise"))
            flipped = Flipped(torch.from_numpy(targets), dataset.targets)
        factory, name = model_factory(dataset, model, model_options or {})
        task = cls(
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
            read_off=(*dataset.read_off, *(() if dataset.published else dealt_by_rows(partition, label_noise))),
            kind=kind,
            metrics=metrics,
            unscaled=dataset.unscaled,
            published=dataset.published,
            flipped=flipped,
        )
        if loss is not cross_entropy or not isinstance(factory, NamedModel):
            task.check_model(task.model(0))  # what others have written fails here, and not when a run begins
        check_metrics(metrics, kind, task.output_shape, task.probe(random_rows(task.output_shape))[1])
        return task

    @classmethod
    @checked
    def from_arrays(
        cls,
        inputs: Any,
        targets: Any,
        *,
        clients: Any = None,
        test: tuple[Any, Any] | None = None,
        test_fraction: float = 0.2,
        scale: float = 1.0,
        kind: TaskKind = "classification",
        classes: Classes = None,
        vocabulary: int | None = None,
        padding: int | None = None,
        partition: Partition | None = None,
        model: str | Callable[[], nn.Module] | None = None,
        model_options: dict[str, Any] | None = None,
        loss: Loss | None = None,
        metrics: tuple[Metric, ...] = (),
        seed: int = 0,
    ) -> Task:
        """A task from a user's own NumPy or torch arrays.

        ``inputs`` [N, ...] and ``targets`` [N] of class numbers, of which there are ``classes``, or of texts that these
        list; or what another ``kind`` has: numbers [N] or [N, values], columns of 0 and 1 [N, labels], token ids. The
        kind, which decides default ``loss`` and metrics, is never inferred. ``clients`` [N] names the owner of every
        row, or ``partition`` divides the rows. Without ``test``, ``test_fraction`` of the rows are held out. ``scale``
        is a public factor of all inputs, say 1/255 for 8-bit images; ``vocabulary`` is the number of token ids.

        Inputs in a memory map (``np.memmap``, ``np.load(…, mmap_mode="r")``) may be larger than memory: nothing is
        copied but the held-out rows, and training is the same bit by bit. See :meth:`Dataset.from_arrays`, which says
        also what is refused.
        """
        if clients is not None and partition is not None and not isinstance(partition, Natural):
            raise ConfigError(
                f"clients= says who owns each row, and partition={said(partition)} would deal the rows out anew; "
                "leave one of them out"
            )
        dataset = Dataset.from_arrays(
            inputs,
            targets,
            clients=clients,
            test=test,
            test_fraction=test_fraction,
            scale=scale,
            kind=kind,
            classes=classes,
            vocabulary=vocabulary,
            padding=padding,
            seed=seed,
        )
        how: dict[str, Any] = {"partition": partition, "model": model, "model_options": model_options}
        return cls.from_dataset(dataset, **how, loss=loss, metrics=metrics, seed=seed)

    def __repr__(self) -> str:
        told = f"{len(self.clients.rows):,} training examples of shape {tuple(self.inputs.shape[1:])}"
        tests = f"{len(self.test_targets):,} test examples"
        kind = counted(self.kind, self.classes)
        return f"Task({self.name}: {len(self.clients)} clients, {told}, {tests}, {kind}, model {self.model_name})"

    @property
    def headline(self) -> Headline:
        """The metric by which models of this task are compared."""
        return KINDS[self.kind].headline

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of what a model gives for one row."""
        return output_shape(self.kind, self.classes, tuple(self.inputs.shape[1:]))

    @checked
    def with_local_tests(self, tests: LocalTests | None = None, seed: int = 0) -> Task:
        """This task with rows of every client held back from training, for testing its personal models.

        Where clients share rows, each holds back its own copies, and another may train on them. Label noise is undone
        on rows that are held back for testing and that nobody trains on or validates with: models are judged by the
        truth, and chosen by what a client would have.

        Raises:
            ConfigError: rows are held back already.
        """
        if self.local_tests is not None:
            raise ConfigError("clients hold examples back already; give fraction and validation in one call")
        tests = tests or LocalTests()
        parts = [self.clients[client].cpu().numpy() for client in range(len(self.clients))]
        train, test, validation = tests.split(parts, strata(self.targets, self.kind), seed)
        held = ClientIndex.allowing_empty(test)
        validations = ClientIndex.allowing_empty(validation) if tests.validation else None
        union = tests.global_test == "union"
        read_off = held_back(self.read_off, published=self.published, union=union)
        index: dict[str, Any] = {
            "clients": ClientIndex.of(train),
            "local_tests": held,
            "local_validations": validations,
        }
        task = replace(self, **index, read_off=read_off)
        if self.flipped is not None:
            used = [index.rows for index in (task.clients, validations) if index is not None]
            task = replace(task, targets=self.flipped.undone(self.targets, held.rows, used), flipped=None)
        if union:
            rows = torch.sort(held.rows).values
            task = replace(task, test_inputs=self.inputs[rows], test_targets=task.targets[rows])
        recipe = self.recipe
        if recipe is None or recipe.dataset is None or recipe.dataset.options.get("seed") != seed:
            return task
        return task.made_by(replace(recipe, local_tests=tests))

    def pooled(self) -> Task:
        """The same examples held by one client, each once: what centralised training sees."""
        rows = torch.unique(self.clients.rows)
        return replace(self, clients=ClientIndex(rows, np.array([0, len(rows)], dtype=np.int64)), report=None)

    def made_by(self, recipe: Recipe | None) -> Task:
        """This task, known to be what ``recipe`` gives."""
        task = replace(self)
        object.__setattr__(task, "recipe", recipe)
        return task

    def describe(self) -> dict[str, Any]:
        """What tells this task apart from another one: names, and hashes of the data and of who holds it.

        A memory map is read once for it.
        """
        model = self.model.named if isinstance(self.model, NamedModel | OwnModel) else Named.of(self.model)
        hashes = {name: digest[:16] for name, digest in self.content().items()}
        return {
            "name": self.name,
            "clients": len(self.clients),
            "rows": hashes.pop("clients"),
            **hashes,
            "model": plain(model),
            **({} if self.kind == "classification" else {"kind": self.kind}),
            **({} if self.loss is KINDS[self.kind].loss else {"loss": plain(named_loss(self.loss))}),
        }

    @property
    def open_to_arrays(self) -> bool:
        """Whether all data are tensors on the CPU, to which NumPy may write unseen, and which are soon read again."""
        arrays = (self.inputs, self.targets, self.test_inputs, self.test_targets)
        return all(isinstance(values, Tensor) and values.device.type == "cpu" for values in arrays)

    def content(self, *, fresh: bool = False) -> dict[str, str]:
        """Hashes of every byte of the data and of which client holds which examples, by the names of the fields.

        They are kept for the next call, unless tensors were written to by torch since. What is written past torch, to
        an array that shares its memory or to a mapped file, is seen if ``fresh`` asks to read everything again.
        """
        arrays = {name: getattr(self, name) for name in ("inputs", "targets", "test_inputs", "test_targets")}
        indices = {name: getattr(self, name) for name in ("clients", "local_tests", "local_validations")}
        indices = {name: index for name, index in indices.items() if index is not None}
        tensors = [*arrays.values(), *(index.rows for index in indices.values())]
        versions = tuple(getattr(tensor, "_version", 0) for tensor in tensors)
        known = self.__dict__.get("_content")
        if fresh or known is None or known[0] != versions:
            hashes = {name: content_hash(values) for name, values in arrays.items()}
            known = versions, {**hashes, **{name: index.hash() for name, index in indices.items()}}
            self.__dict__["_content"] = known
        return dict(known[1])

    def context(self, rounds: int, seed: int) -> RunContext:
        """What an algorithm may know of a run of ``rounds`` rounds on this task."""
        shape, device = tuple(self.inputs.shape[1:]), self.targets.device
        return RunContext(self.model, self.classes, len(self.clients), rounds, seed, shape, device, self.kind)

    def probe(self, rows: int) -> tuple[Tensor, Tensor]:
        """Random *public* inputs and targets [rows, ...] of the right shapes, for checks of model and loss."""
        generator = torch.Generator().manual_seed(0)
        shape = (rows, *self.inputs.shape[1:])
        if self.vocabulary is not None:
            inputs = torch.randint(self.vocabulary, shape, generator=generator)
        else:
            inputs = torch.randn(shape, generator=generator, dtype=self.inputs.dtype)
        targets = random_targets(self.kind, rows, self.classes, shape[1:], generator)
        return inputs.to(self.inputs.device), targets.to(self.inputs.device)

    def check_model(self, network: nn.Module) -> None:
        """Refuse a model or a loss that does not fit the data; ``network`` is the task's model, and stays as it is.

        Raises:
            ConfigError: see :func:`privfl.federation.fit.check_fit`.
        """
        probe = self.probe(3)
        check_fit(network, self.model_name, self.loss, *probe, self.output_shape, self.kind)
        check_writes(network, self.loss, *probe)

    def to(self, device: torch.device) -> Task:
        """The task with its arrays on ``device``; those that are there already are not copied.

        A memory map stays where it is; its batches go to ``device`` one by one. So does the list of who holds which
        rows, of which batches are drawn.
        """
        moved = {name: getattr(self, name).to(device) for name in ("inputs", "targets", "test_inputs", "test_targets")}
        for name in ("local_tests", "local_validations"):
            if (index := getattr(self, name)) is not None:
                moved[name] = replace(index, rows=index.rows.to(device))
        return replace(self, **moved).made_by(self.recipe)


@checked
def load(
    name: str = "digits",
    *,
    partition: Partition | None = None,
    model: str | Callable[[], nn.Module] | None = None,
    model_options: dict[str, Any] | None = None,
    label_noise: LabelNoise | None = None,
    local_tests: LocalTests | None = None,
    loss: Loss | None = None,
    metrics: tuple[Metric, ...] = (),
    seed: int = 0,
    **options: Any,
) -> Task:
    """The task of a dataset in the catalog; ``options`` go to its loader, see ``privfl list datasets``."""
    task = Task.from_dataset(
        load_dataset(name, seed=seed, **options),
        partition=partition,
        model=model,
        model_options=model_options,
        label_noise=label_noise,
        loss=loss,
        metrics=metrics,
        seed=seed,
    )
    asked = isinstance(task.model, OwnModel) or model is not None or model_options
    recipe = Recipe(
        dataset=Named(name, {**options, "seed": seed}),
        partition=partition,
        label_noise=label_noise,
        model=task.model.named if asked and isinstance(task.model, NamedModel | OwnModel) else None,
        loss=None if task.loss is KINDS[task.kind].loss else named_loss(task.loss),
        metrics=tuple(Named.of(metric) for metric in metrics),
    )
    task = task.made_by(recipe)
    return task if local_tests is None else task.with_local_tests(local_tests, seed)


def call_for_task(function: Callable[..., Task], seed: int) -> Task:
    """The task that ``function``, of no arguments or of the seed, returns.

    Raises:
        ConfigError: it returns something else.
    """
    takes_seed = any(one.default is one.empty for one in signature(function).parameters.values())
    task = function(seed) if takes_seed else function()
    if not isinstance(task, Task):
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ConfigError(f"{name} returned {type(task).__name__}; a function that makes the task returns a pf.Task")
    return task
