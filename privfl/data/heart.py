"""UCI heart disease: four hospitals, thirteen clinical attributes, many of them missing outside Cleveland."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.holdout import stratified_holdout
from privfl.data.tabular import Category, Numeric, encode
from privfl.errors import DataError
from privfl.validation import check_choice

HOSPITALS = {
    "cleveland": "Cleveland Clinic Foundation",
    "hungarian": "Hungarian Institute of Cardiology, Budapest",
    "switzerland": "University Hospitals Zurich and Basel",
    "va": "V.A. Medical Center, Long Beach",
}
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip

# Public constants: round clinical figures for adults, fixed before any row is read.
FEATURES = (
    Numeric("age", 50, 10),  # years
    Numeric("sex", 0.5, 0.5),
    Category("cp", (1, 2, 3, 4)),
    Numeric("trestbps", 130, 20, missing=True),  # mm Hg
    Numeric("chol", 220, 60, missing=True),  # mg/dl
    Numeric("fbs", 0.5, 0.5, missing=True),
    Category("restecg", (0, 1, 2), missing=True),
    Numeric("thalach", 140, 25, missing=True),  # beats per minute
    Numeric("exang", 0.5, 0.5, missing=True),
    Numeric("oldpeak", 1, 1, missing=True),  # mm of ST depression
    Category("slope", (1, 2, 3), missing=True),
    Numeric("ca", 1, 1, missing=True),
    Category("thal", (3, 6, 7), missing=True),
)


def load_heart_disease(entry: DatasetInfo, located: Located, *, seed: int, target: str = "disease") -> Dataset:
    """Patients of four hospitals, float32 [N, 32]; a fifth of each hospital's rows held out, stratified.

    Args:
        entry: catalog entry.
        located: its files.
        seed: root seed of the hold-out.
        target: ``disease`` (num > 0, the usual task) or ``severity`` (num itself, 0..4).
    """
    check_choice("target", target, ("disease", "severity"))
    parts = [read_uci(located.paths[f"processed.{hospital}.data"]) for hospital in HOSPITALS]
    table = np.concatenate(parts)
    hospital = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    inputs = encode(entry.name, {name: table[:, i] for i, name in enumerate(COLUMNS)}, FEATURES)
    labels = table[:, -1].astype(np.int64)
    if target == "disease":
        labels = np.minimum(labels, 1)
    test = stratified_holdout(labels, clients=hospital, seed=seed)
    y, owner = torch.from_numpy(labels), torch.from_numpy(hospital)
    names = ("no disease", "disease") if target == "disease" else tuple(f"num {grade}" for grade in range(5))
    return Dataset(
        entry.name, inputs[~test], y[~test], inputs[test], y[test], len(names), owner[~test], owner[test],
        client_names=tuple(HOSPITALS.values()), class_names=names,
    )  # fmt: skip


def read_uci(path: Path) -> NDArray[np.float64]:
    """One hospital's file as float64 [N, 14], NaN for ``?`` and for a cholesterol or blood pressure of 0.

    Raises:
        DataError: a line has not 14 fields, a field is no number, or ``num`` is not 0..4.
    """
    rows: list[list[float]] = []
    with open(path, encoding="ascii", errors="replace", newline="") as file:
        for number, fields in enumerate(csv.reader(file), start=1):
            if not fields:
                continue
            if len(fields) != len(COLUMNS):
                raise DataError(
                    f"{path}, line {number}, has {len(fields)} fields where 14 are expected; fetch it again."
                )
            try:
                row = [float("nan") if field.strip() == "?" else float(field) for field in fields]
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}; fetch it again.") from error
            if row[-1] not in range(5):
                raise DataError(f"{path}, line {number}: num is {fields[-1]} where 0..4 is expected; fetch it again.")
            rows.append(row)
    if not rows:
        raise DataError(f"{path} is empty; fetch it again.")
    table = np.array(rows)
    for column in (COLUMNS.index("trestbps"), COLUMNS.index("chol")):
        table[table[:, column] == 0, column] = np.nan
    return table
