"""One's own data from a file: arrays of NumPy, or a CSV or Parquet table with a column for each feature.

arrays = "data.npz"        # inputs [N, …], targets [N]; clients [N], test_inputs, test_targets where there are any

[arrays]
file = "patients.csv"      # or .parquet, which needs pip install 'privfl[parquet]'
target = "died"
client = "hospital"        # left out where a [partition] deals the rows out
leave_out = ["record"]
kind = "regression"        # what is predicted, if it is no class: "multi-label" and "next-token" are the others
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfl.data.class_names import Classes, check_names, listed, numbered
from privfl.data.dataset import Dataset
from privfl.data.normalised import NORMALISED
from privfl.data.targets import TaskKind
from privfl.errors import ConfigError, DataError
from privfl.files import UNREADABLE
from privfl.validation import Settings, check_bound, check_number

KINDS = (".npz", ".csv", ".parquet")
Columns = Mapping[str, Sequence[Any]]
_LARGEST = 2**53
"""A table's cells are read as 64-bit floats, which hold every whole number up to this one."""


@dataclass(frozen=True)
class Arrays(Settings):
    """A file with one's own data.

    Args:
        file: ``.npz``, ``.csv`` (with names in its first line) or ``.parquet``.
        target: column of the labels, or several for multi-label and regression; classes that are texts are numbered in
            the order of ``classes``, or else of the alphabet. A table for next-token has none.
        client: column that says whose each row is; without it a partition deals the rows out.
        leave_out: columns that are no features.
        test_fraction: share of the rows that is held out, in (0, 1), where the file brings no test rows.
        scale: public factor of all inputs, for instance 1/255 for 8-bit images.
        classes: number of classes, or the list of all their names, by which labels that are texts are numbered; by
            default read off the labels, which is itself a release.
        vocabulary: for inputs that are token ids, how many there are.
        kind: what is predicted, see :data:`privfl.data.targets.TaskKind`. For next-token every row is a sequence of
            token ids, and an archive may leave targets out: then each token is predicted from those before it.
        padding: token id behind the end of a sequence, which is never to be predicted.
    """

    file: str
    target: str | tuple[str, ...] = "target"
    client: str | None = None
    leave_out: tuple[str, ...] = ()
    test_fraction: float = 0.2
    scale: float = 1.0
    classes: Classes = None
    vocabulary: int | None = None
    kind: TaskKind = "classification"
    padding: int | None = None

    def __post_init__(self) -> None:
        if Path(self.file).suffix not in KINDS:
            raise ConfigError(f"arrays.file is '{self.file}'; give a file that ends in {', '.join(KINDS)}")
        check_number("arrays.test_fraction", self.test_fraction, 0, 1, above=True, below=True)
        check_number("arrays.scale", self.scale, 0, above=True)
        check_bound("arrays.scale", self.scale)
        if isinstance(self.classes, tuple):
            check_names("arrays.classes", self.classes)
        if self.kind in ("classification", "next-token") and not isinstance(self.target, str):
            raise ConfigError(
                f"arrays.target is {list(self.target)}, and {self.kind} has one target; name one column, or set "
                'arrays.kind to "multi-label" or "regression"'
            )
        if not self.target:
            raise ConfigError("arrays.target is empty; name the column that is predicted")
        if self.kind == "next-token" and self.vocabulary is None:
            raise ConfigError("arrays.kind is next-token; add vocabulary, how many token ids there are")

    def dataset(self, seed: int) -> Dataset:
        """The data, with a test set drawn by ``seed`` where the file brings none.

        Raises:
            DataError: the file is missing, damaged, or lacks a column; or its values cannot be used.
        """
        path = Path(self.file)
        if not path.is_file():
            raise DataError(f"arrays.file is '{self.file}', and there is no such file; give its path from {Path.cwd()}")
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("classes", "vocabulary", "scale", "kind", "padding")
        }
        given = self._archive(path) if path.suffix == ".npz" else self._table(path)
        texts = isinstance(given["targets"], _Ranked)
        given["targets"] = given["targets"].numbers if texts else given["targets"]
        name = path.name if path.stem in NORMALISED else path.stem  # a file mnist.npz is not the catalog's mnist
        made = Dataset.from_arrays(**given, **options, test_fraction=self.test_fraction, seed=seed, name=name)
        return replace(made, read_off=(*made.read_off, "class names")) if texts else made

    def _archive(self, path: Path) -> dict[str, Any]:
        try:
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
        except UNREADABLE as error:
            raise DataError(f"{path} is no .npz archive of plain arrays ({error}); write it by numpy.savez") from error
        known = ("inputs", "targets", "clients", "test_inputs", "test_targets")
        for name in known[:1] if self.kind == "next-token" else known[:2]:
            if name not in found:
                raise DataError(f"{path} holds no array '{name}' (it holds {_listed(found)}); save it under that name")
        if self.client is not None and self.client not in found:
            raise DataError(f"{path} holds no array '{self.client}' of clients (it holds {_listed(found)})")
        made = self.kind == "next-token" and "targets" not in found
        if not made and ("test_inputs" in found) != ("test_targets" in found):
            raise DataError(f"{path} holds one of test_inputs and test_targets; save both, or neither")
        test = (found["test_inputs"], found.get("test_targets")) if "test_inputs" in found else None
        clients = found.get(self.client or "clients")
        return {"inputs": found["inputs"], "targets": found.get("targets"), "clients": clients, "test": test}

    def _table(self, path: Path) -> dict[str, Any]:
        columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
        targets = () if self.kind == "next-token" else (self.target,) if isinstance(self.target, str) else self.target
        for key, name in (
            *(("target", n) for n in targets),
            ("client", self.client),
            *(("leave_out", n) for n in self.leave_out),
        ):
            if name is not None and name not in columns:
                raise DataError(f"{path} has no column '{name}', which arrays.{key} names; it has {_listed(columns)}")
        others = [name for name in columns if name not in (*targets, self.client, *self.leave_out)]
        if not others:
            raise DataError(f"{path} has no column left for features; it has {_listed(columns)}")
        read = _numbers if self.vocabulary is None else _whole
        return {
            "inputs": np.stack([read(path, name, columns[name]) for name in others], axis=1),
            "targets": self._targets(path, columns, targets),
            "clients": None if self.client is None else _clients(path, self.client, columns[self.client]),
        }

    def _targets(self, path: Path, columns: Columns, names: Sequence[str]) -> NDArray[Any] | _Ranked | None:
        """What the rows of a table are to be predicted as; nothing for next-token, which predicts its inputs."""
        if self.kind == "next-token":
            return None
        if self.kind == "classification":
            return _labels(path, names[0], columns[names[0]], self.classes)
        return np.stack([_numbers(path, name, columns[name]) for name in names], axis=1)


def _csv(path: Path) -> Columns:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}); save it as UTF-8 with commas") from error
    if len(set(head)) < len(head):
        raise DataError(f"{path} names two columns alike ({_listed(head)}); give each its own name")
    for number, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise DataError(f"{path}: row {number} has {len(row)} values and the first line {len(head)} names; mend it")
    if not rows:
        raise DataError(f"{path} holds no rows; give at least one below the names of the columns")
    return dict(zip(head, zip(*rows, strict=True), strict=True))


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import ArrowException  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from pyarrow.parquet import read_table  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigError(f"{path} needs pyarrow, which is not installed: pip install 'privfl[parquet]'") from error
    try:
        table: dict[str, list[Any]] = read_table(path).to_pydict()
    except (OSError, ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error}); write it anew") from error
    return table


def _numbers(path: Path, name: str, values: Sequence[Any]) -> NDArray[np.float32]:
    try:
        return np.array([float(value) for value in values], dtype=np.float32)
    except (TypeError, ValueError) as error:
        place, wrong = next((place, one) for place, one in enumerate(values) if not _is_number(one))
        raise DataError(
            f"{path}: the column '{name}' holds {wrong!r} in its row {place + 1}; encode it as a number, or name the "
            "column in arrays.leave_out"
        ) from error


def _clients(path: Path, name: str, values: Sequence[Any]) -> list[Any]:
    """Whose each row is; rows without an owner would become one client of their own, of whomever they are."""
    if (place := _gap(values)) is not None:
        raise DataError(
            f"{path}: the column '{name}' is empty in its row {place + 1}{_line(path, place)}, and it says whose each "
            "row is; fill it in, or take the row out"
        )
    return list(values)


def _gap(values: Sequence[Any]) -> int | None:
    """The place of the first value that is missing: nothing, NaN or blanks; ``None`` if there is none."""
    missing = (one is None or one != one or (isinstance(one, str) and not one.strip()) for one in values)
    return next((place for place, gap in enumerate(missing) if gap), None)


def _line(path: Path, place: int) -> str:
    """Where an editor finds the row at ``place`` of a CSV file: blank lines and line breaks in quotes count there."""
    if path.suffix != ".csv":
        return ""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        ends = [reader.line_num for row in reader if row]
    return f" (line {ends[place + 1]})"


@dataclass(frozen=True)
class _Ranked:
    """Labels numbered by the rank of their texts among those that occur, so that one row more may renumber the rest."""

    numbers: NDArray[np.int64]


def _labels(path: Path, name: str, values: Sequence[Any], classes: Classes) -> NDArray[np.int64] | _Ranked:
    """Class numbers: by the names of ``classes``, as they stand if they are whole numbers, else texts' ranks."""
    if (place := _gap(values)) is not None:
        raise DataError(f"{path}: the column '{name}' is empty in its row {place + 1}; every row needs a label")
    if isinstance(classes, tuple):
        found, strange = numbered(values, classes)
        if strange is not None:
            raise DataError(
                f"{path}: the column '{name}' holds {values[strange]!r} in its row {strange + 1}, and arrays.classes "
                f"are {listed(classes)}; mend the value, or name it there"
            )
        return found
    numbers = [_is_number(value) for value in values]
    if all(numbers):
        return _whole(path, name, values, "class numbers")
    if any(numbers):
        texts, number = values[numbers.index(False)], values[numbers.index(True)]
        raise DataError(
            f"{path}: the column '{name}' holds numbers and texts, {number!r} in its row {numbers.index(True) + 1} and "
            f"{texts!r} in its row {numbers.index(False) + 1}; mend them, or list all classes in arrays.classes"
        )
    ranks = {label: place for place, label in enumerate(sorted({str(value) for value in values}))}
    return _Ranked(np.array([ranks[str(value)] for value in values], dtype=np.int64))


def _whole(path: Path, name: str, values: Sequence[Any], what: str = "token ids") -> NDArray[np.int64]:
    """``values`` as whole numbers; one that is none is named as it stands."""
    for place, value in enumerate(values):
        number = float(value) if _is_number(value) else math.nan
        if not abs(number) <= _LARGEST or number % 1:
            mend = 'set arrays.kind = "regression" if they are numbers to predict'
            mend = "name the column in arrays.leave_out" if what == "token ids" else mend
            raise DataError(
                f"{path}: the column '{name}' holds {value} in its row {place + 1}; give whole {what}, or {mend}"
            )
    return np.array([float(value) for value in values]).astype(np.int64)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"
