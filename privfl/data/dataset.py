"""A dataset: training and held-out arrays, labels, and the clients that the data came from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.arrays import SEVERAL, are_several, are_tokens, as_numbers, check_values
from privfl.data.class_names import Classes, check_names
from privfl.data.client_ids import client_name, number_clients
from privfl.data.eight_bit import eight_bit_rows, stay_eight_bit
from privfl.data.holdout import stratified_holdout
from privfl.data.mapped import MappedRows, Rows, is_mapped, read
from privfl.data.normalised import NORMALISED
from privfl.data.targets import TaskKind, as_targets, check_targets, counted, following, strata, width
from privfl.errors import ConfigError, DataError
from privfl.validation import Settings, check_bound, check_number, checked

MOST_CLASSES = 10**7
"""Counts of labels are arrays of this length."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Settings):
    """Arrays of one task, checked on construction.

    Attributes:
        name: what messages and reports call it.
        inputs: training inputs [N, ...]: float32 images [N, C, H, W], features [N, F] or signals [N, C, T], or int64
            token ids [N, L]; or the rows of a memory map, whose values are checked when they are read; or rows of
            bytes, which become float32 when they are read.
        targets: int64 [N] labels in 0..classes-1, or what the ``kind`` of task has
            (:data:`privfl.data.targets.TaskKind`).
        test_inputs: held-out inputs [M, ...], same dtype and row shape as ``inputs``.
        test_targets: those of the held-out inputs, likewise.
        classes: number of classes; of values, labels or token ids for the other kinds, each of which is one output.
        clients: int64 [N] natural client of each training row, or None. Clients with training rows are numbered
            0..U-1 without gaps; clients that occur in the test rows only come after them.
        test_clients: int64 [M] natural client of each test row, or None.
        client_names: one name per client number, or None.
        class_names: one name per class, or None.
        vocabulary: for token inputs, the number of token ids; ids lie in 0..vocabulary-1.
        read_off: what nobody said and the rows had to tell, by the names that :mod:`privfl.federation.read_off` puts in
            words, ``"classes"`` and ``"test rows"`` say: no claim covers that.
        kind: what is predicted; nothing is inferred from the targets.
        unscaled: whether inputs were unsigned 8-bit numbers, as pixels are, and entered without a factor.
        published: whether everybody may know the rows, as those of the catalog's datasets: then who gets which of them
            is known too, and is not read off anything.

    Raises:
        DataError: an array is empty, of the wrong type or length, not finite, or out of range.
    """

    name: str
    inputs: Rows
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    clients: Tensor | None = None
    test_clients: Tensor | None = None
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    vocabulary: int | None = None
    read_off: tuple[str, ...] = ()
    kind: TaskKind = "classification"
    unscaled: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        least = 1 if self.kind == "regression" else 2
        if not least <= self.classes <= MOST_CLASSES:
            raise DataError(f"{self.name}: classes is {self.classes}; give a number from {least} to {MOST_CLASSES:,}.")
        self._check_part("", self.inputs, self.targets, self.clients)
        self._check_part("test_", self.test_inputs, self.test_targets, self.test_clients)
        if self.test_inputs.dtype != self.inputs.dtype or self.test_inputs.shape[1:] != self.inputs.shape[1:]:
            raise DataError(
                f"{self.name}: test_inputs are {_kind(self.test_inputs)} but inputs are {_kind(self.inputs)}; "
                "both need the same dtype and row shape."
            )
        self._check_clients()
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise DataError(
                f"{self.name}: {len(self.class_names)} class_names for {self.classes} classes; give one per class."
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        clients = f"{self.num_clients} natural clients" if self.num_clients else "no natural clients"
        return (
            f"Dataset({self.name}: {len(self.targets)} training and {len(self.test_targets)} test rows of "
            f"{_kind(self.inputs)}, {counted(self.kind, self.classes)}, {clients})"
        )

    @property
    def num_clients(self) -> int:
        """Number of natural clients with training rows; 0 where the data has no natural clients."""
        return 0 if self.clients is None else int(self.clients.max()) + 1

    def _check_part(self, part: str, inputs: Rows, targets: Tensor, clients: Tensor | None) -> None:
        if inputs.dtype not in (torch.float32, torch.int64):
            raise DataError(
                f"{self.name}: {part}inputs have dtype {inputs.dtype}; use float32 for images, signals and features, "
                "int64 for token ids."
            )
        if inputs.ndim < 2:
            raise DataError(
                f"{self.name}: {part}inputs have shape {tuple(inputs.shape)}; a row needs at least one dimension, "
                "for instance inputs.reshape(-1, 1)."
            )
        if 0 in inputs.shape:
            raise DataError(f"{self.name}: {part}inputs are empty {tuple(inputs.shape)}; give at least one row.")
        check_targets(self.name, f"{part}targets", targets, self.kind, self.classes, inputs.shape)
        if clients is not None and (clients.dtype != torch.int64 or clients.ndim != 1):
            found = f"{_kind(clients)} {tuple(clients.shape)}"
            raise DataError(f"{self.name}: {part}clients are {found}; they must be int64 [N].")
        for label, array in ((f"{part}targets", targets), (f"{part}clients", clients)):
            if array is not None and len(array) != len(inputs):
                raise DataError(
                    f"{self.name}: {len(inputs)} {part}inputs but {len(array)} {label}; each row needs exactly one."
                )
        if inputs.dtype == torch.int64 and self.vocabulary is None:
            raise DataError(f"{self.name}: {part}inputs are token ids, so vocabulary (how many ids) must be given.")
        if inputs.dtype != torch.int64 and self.vocabulary is not None:
            raise DataError(f"{self.name}: {part}inputs are no token ids, so vocabulary must be left out.")
        if isinstance(inputs, Tensor):
            check_values(f"{self.name}: {part}inputs", inputs, self.vocabulary)

    def _check_clients(self) -> None:
        if self.clients is None:
            if self.test_clients is not None or self.client_names is not None:
                raise DataError(
                    f"{self.name}: test_clients or client_names are given without clients; give clients too."
                )
            return
        total = self.num_clients
        counts = torch.bincount(self.clients) if int(self.clients.min()) >= 0 else torch.zeros(1)
        if not counts.all():
            missing = int(self.clients.min()) if int(self.clients.min()) < 0 else int((counts == 0).nonzero()[0])
            raise DataError(
                f"{self.name}: clients must be numbered 0..{total - 1} without gaps, but number {missing} is "
                f"{'negative' if missing < 0 else 'missing'}; Dataset.from_arrays numbers any ids."
            )
        if self.test_clients is not None:
            if int(self.test_clients.min()) < 0:
                raise DataError(f"{self.name}: test_clients hold {int(self.test_clients.min())}; numbers start at 0.")
            total = max(total, int(self.test_clients.max()) + 1)
        if self.client_names is not None and len(self.client_names) != total:
            raise DataError(
                f"{self.name}: {len(self.client_names)} client_names for {total} clients; give one per client."
            )

    @classmethod
    @checked
    def from_arrays(
        cls,
        inputs: Any,
        targets: Any,
        *,
        clients: Sequence[Hashable] | Any | None = None,
        test: tuple[Any, ...] | None = None,
        test_fraction: float = 0.2,
        kind: TaskKind = "classification",
        classes: Classes = None,
        vocabulary: int | None = None,
        padding: int | None = None,
        scale: float = 1.0,
        seed: int = 0,
        name: str = "arrays",
    ) -> Dataset:
        """A dataset from a user's own arrays (NumPy, torch, pandas columns, lists). The arrays are copied.

        Unsigned 8-bit inputs whose float32 copy would take more than 256 MiB are not: batches are converted as they
        are taken, to the same bits, so the array must not change while the dataset is in use.

        Inputs in a memory map (``np.memmap``, ``np.load(…, mmap_mode="r")``, views of them) are not: rows are read from
        the file and decoded when a batch is taken, so the file must not change while the dataset is in use. Only the
        held-out rows are copied; keep ``test_fraction`` small, or give ``test``. Training is the same, bit by bit.

        With ``vocabulary`` integer inputs [N, L] are token ids. Without it floating, boolean and 8-bit inputs become
        float32 with their values unchanged, and so do integer arrays of three or more dimensions (images, signals);
        other integer inputs [N, L] are refused, because they may be tokens or features. Give features as floats.

        Args:
            inputs: [N, ...].
            targets: integer labels [N], 0..classes-1, or texts [N] of the names that ``classes`` lists; for other kinds
                numbers [N] or [N, values], columns of 0 and 1 [N, labels], or token ids [N, L]. For next-token ``None``
                makes both from the inputs, token ids [N, L + 1]: at each of L positions the token that follows is
                predicted.
            clients: N client ids of any hashable kind (strings, tuples, integers), numbered in the order of the sorted
                set of them; so no row decides another client's number.
            test: held-out ``(inputs, targets)`` or ``(inputs, targets, clients)``. If None, ``test_fraction`` of the
                rows are held out, stratified by class (and inside each client where ``clients`` are given).
            kind: what is predicted. Nothing is inferred: floating targets of a classification are refused.
            classes: number of classes, or the list of their names, by which texts are numbered; by default the largest
                label + 1, if every class up to it has a row. A number read off the data is itself a release.
            vocabulary: number of token ids, for inputs that are tokens.
            padding: token id behind the end of a sequence, which is never to be predicted; for targets that are None.
            scale: public factor of all inputs but token ids, for instance 1/255 for 8-bit images.
            seed: root seed of the hold-out.

        Raises:
            DataError: arrays that cannot be used, each with the mend; a bad value is named by its index in the arrays
                as they were given.
            ConfigError: ``test_fraction`` outside (0, 1), ``scale`` not positive or too far from 1 for float32,
                ``classes`` that name one twice, or ``name`` one of the catalog's datasets of images, by whose constants
                attacks would read these inputs.

        >>> data = Dataset.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], clients=["a", "b", "a", "b"])
        >>> data
        Dataset(arrays: 2 training and 2 test rows of float32 (1,), 2 classes, 2 natural clients)
        """
        check_number("scale", scale, 0, above=True)
        check_bound("scale", scale)
        names = classes if isinstance(classes, tuple) else None
        count = len(classes) if isinstance(classes, tuple) else classes
        if names is not None:
            check_names("classes", names)
        if name in NORMALISED:
            raise ConfigError(
                f"name is '{name}', a dataset of the catalog by whose constants attacks would read these inputs; give "
                "data of your own another name"
            )
        raw, y = _arrays(name, "", inputs, targets, kind, count, names, padding)
        numbers: dict[Hashable, int] = {}
        owner = None if clients is None else number_clients(name, clients, numbers)
        for label, length in (("targets", len(y)), ("clients", len(raw) if owner is None else len(owner))):
            if length != len(raw):
                mend = SEVERAL if are_several(inputs, length) else "each row needs exactly one."
                raise DataError(f"{name}: {len(raw)} inputs but {length} {label}; {mend}")
        if len(raw) == 0:
            raise DataError(f"{name}: inputs are empty {tuple(raw.shape)}; give at least one row.")
        tokens = are_tokens(name, "inputs", raw, vocabulary)
        kept = torch.arange(len(raw))
        if test is None:
            rows = stratified_holdout(strata(y, kind), fraction=test_fraction, clients=owner, seed=seed)
            held = torch.from_numpy(rows)
            if not held.any():
                raise DataError(
                    f"{name}: no client has two rows, so nothing can be held out; pass test=(inputs, targets)."
                )
            kept, held = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
            test_x, y, test_y = read(raw, held.numpy(), tokens, scale, f"{name}: inputs"), y[kept], y[held]
            owner, test_owner = (None, None) if owner is None else (owner[kept], owner[held])
        else:
            if len(test) not in (2, 3):
                raise DataError(
                    f"{name}: test has {len(test)} parts; give (inputs, targets) or (inputs, targets, clients)."
                )
            raw_test, test_y = _arrays(name, "test ", test[0], test[1], kind, count, names, padding)
            held = torch.arange(len(raw_test))
            test_tokens = are_tokens(name, "test inputs", raw_test, vocabulary)
            test_x = read(raw_test, held.numpy(), test_tokens, scale, f"{name}: test inputs")
            test_owner = number_clients(name, test[2], numbers) if len(test) == 3 else None
        x: Rows
        if is_mapped(raw):
            x = MappedRows(raw, kept.numpy(), vocabulary, scale)
        elif not tokens and stay_eight_bit(raw, scale):
            x = eight_bit_rows(raw, None if test is not None else kept, scale)
        else:
            x = read(raw, kept.numpy(), tokens, scale, f"{name}: inputs")
        if isinstance(x, Tensor):
            check_values(f"{name}: inputs", x, vocabulary, kept)
        check_values(f"{name}: inputs" if test is None else f"{name}: test inputs", test_x, vocabulary, held)
        return cls(
            name=name,
            inputs=x,
            targets=y,
            test_inputs=test_x,
            test_targets=test_y,
            classes=width(name, torch.cat([y, test_y]) if kind == "classification" else y, kind, count, vocabulary),
            clients=owner,
            test_clients=test_owner,
            client_names=tuple(map(client_name, numbers)) if numbers else None,
            class_names=names,
            vocabulary=vocabulary,
            read_off=(
                *(["classes"] if classes is None and kind == "classification" else []),
                *(["test rows"] if test is None else []),
            ),
            kind=kind,
            unscaled=not tokens and raw.dtype == np.uint8 and scale == 1,
        )


def _arrays(
    name: str,
    part: str,
    inputs: Any,
    targets: Any,
    kind: TaskKind,
    classes: int | None,
    names: tuple[str, ...] | None,
    padding: int | None,
) -> tuple[NDArray[Any], Tensor]:
    """The ``inputs`` as an array of numbers, and the ``targets`` of this ``kind`` of task."""
    raw = as_numbers(name, f"{part}inputs", inputs)
    if kind == "next-token" and targets is None:
        raw, targets = following(name, raw, padding)
    elif padding is not None:
        raise DataError(
            f"{name}: padding is {padding}, which says what next-token leaves out of targets that it makes itself; "
            "leave it out."
        )
    return raw, as_targets(name, f"{part}targets", targets, kind, classes, names)


def _kind(array: Rows) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape[1:])}"
