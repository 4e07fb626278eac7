"""Heartbeats of the MIT-BIH arrhythmia database, from the prepared file or from PhysioNet's own records."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from importlib.resources.abc import Traversable

import numpy as np
import torch
from numpy.typing import NDArray

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.holdout import stratified_holdout
from privfl.data.wfdb import BEAT_CODES, read_record
from privfl.errors import DataError
from privfl.validation import check_choice

SYMBOLS = ("N", "L", "R", "A", "a", "J", "S", "V", "F", "e", "j", "E", "/", "f", "Q")
AAMI = {"N": "NLRej", "S": "AaJS", "V": "VE", "F": "F", "Q": "/fQ"}

# P. de Chazal, M. O'Dwyer, R. B. Reilly, IEEE Trans. Biomed. Eng. 51(7), 2004; paced records left out.
DS1 = (101, 106, 108, 109, 112, 114, 115, 116, 118, 119, 122, 124, 201, 203, 205, 207, 208, 209, 215, 220, 223, 230)
DS2 = (100, 103, 105, 111, 113, 117, 121, 123, 200, 202, 210, 212, 213, 214, 219, 221, 222, 228, 231, 232, 233, 234)
RECORDS = tuple(sorted({*DS1, *DS2, 102, 104, 107, 217}))

WIDTH, BEFORE = 140, 50  # samples at 180 Hz: the whole window, and those before the annotated beat
_ADU_PER_MILLIVOLT = 200.0


@dataclass(frozen=True)
class Beats:
    """Windows int16 [N, 140] in ADC units, index into ``SYMBOLS`` int64 [N], record number int64 [N], in time order."""

    windows: NDArray[np.int16]
    symbols: NDArray[np.int64]
    records: NDArray[np.int64]

    @property
    def patients(self) -> NDArray[np.int64]:
        """Records 201 and 202 are of one person."""
        return np.where(self.records == 202, 201, self.records)


def load_mitbih(
    entry: DatasetInfo, located: Located, *, seed: int, classes: str = "aami", split: str = "per-client"
) -> Dataset:
    """Single beats, float32 [N, 1, 140], the patient as natural client.

    Args:
        entry: catalog entry.
        located: its files.
        seed: root seed of the ``per-client`` hold-out.
        classes: ``aami`` (N, S, V, F, Q) or ``symbols`` (the 15 beat symbols that occur).
        split: ``per-client`` holds out a fifth of each patient's beats, stratified (at fast heart rates windows of
            neighbouring beats overlap, so training and test share samples there); ``chronological`` the last fifth
            of each patient's beats; ``de-chazal`` trains on the records DS1 and tests on DS2, other people (but for
            201 and 202, one person on both sides), without the paced records.
    """
    check_choice("classes", classes, ("aami", "symbols"))
    check_choice("split", split, ("per-client", "chronological", "de-chazal"))
    beats = _located_beats(located)
    entry.check_counts(beats=len(beats.symbols), patients=len(np.unique(beats.patients)))
    names = tuple(AAMI) if classes == "aami" else SYMBOLS
    group = np.array([next(i for i, members in enumerate(AAMI.values()) if s in members) for s in SYMBOLS])
    targets = group[beats.symbols] if classes == "aami" else beats.symbols
    patients = beats.patients
    if split == "de-chazal":
        train, test = np.isin(beats.records, DS1), np.isin(beats.records, DS2)
    else:
        test = stratified_holdout(targets, clients=patients, seed=seed) if split == "per-client" else _last(patients)
        train = ~test
    known = np.unique(patients[train])
    numbered = np.concatenate([known, np.setdiff1d(patients[test], known)])
    order = np.argsort(numbered)
    clients = order[np.searchsorted(numbered, patients, sorter=order).clip(max=len(order) - 1)]
    inputs = torch.from_numpy(beats.windows.astype(np.float32)[:, None]).div_(_ADU_PER_MILLIVOLT)
    inputs.sub_(entry.mean[0]).div_(entry.std[0])
    y, owner = torch.from_numpy(targets), torch.from_numpy(clients)
    return Dataset(
        entry.name, inputs[train], y[train], inputs[test], y[test], len(names), owner[train], owner[test],
        client_names=tuple(f"patient {number}" for number in numbered), class_names=names,
    )  # fmt: skip


def beats_of_records(folder: Traversable, records: tuple[int, ...] = RECORDS) -> Beats:
    """Cut beats out of WFDB records: lead MLII, else the first; baseline removed; 360 to 180 Hz by SciPy's polyphase
    filter over the whole record, rounded to ADC units; a window of 140 samples with the annotation at index 50.
    Beats too near a record's ends are left out.

    Raises:
        DataError: files are missing or damaged, or sampled at another rate.
    """
    from scipy.signal import resample_poly

    windows, symbols, numbers = [], [], []
    for record in records:
        header, signals, times, codes = read_record(folder, record)
        if header.frequency != 360:
            raise DataError(f"{record}.hea says {header.frequency:g} Hz; the database is sampled at 360 Hz.")
        lead = header.leads.index("MLII") if "MLII" in header.leads else 0
        centred = signals[:, lead].astype(np.float64) - header.zeros[lead]
        slow = np.rint(resample_poly(centred, 1, 2)).astype(np.int16)
        begins = times // 2 - BEFORE
        beat = np.isin(codes, list(BEAT_CODES)) & (begins >= 0) & (begins + WIDTH <= len(slow))
        windows.append(slow[begins[beat, None] + np.arange(WIDTH)])
        symbols.append(np.array([SYMBOLS.index(BEAT_CODES[code]) for code in codes[beat].tolist()], np.int64))
        numbers.append(np.full(int(beat.sum()), record, np.int64))
    return Beats(np.concatenate(windows), np.concatenate(symbols), np.concatenate(numbers))


def check_hash_list(folder: Traversable) -> None:
    """Compare the files of ``folder`` with the SHA256SUMS.txt that PhysioNet puts beside them.

    Raises:
        DataError: the list is missing, or a file is missing or differs.
    """
    listing = folder.joinpath("SHA256SUMS.txt")
    if not listing.is_file():
        raise DataError(f"{listing} is missing; fetch the database again.")
    pairs = (line.split(maxsplit=1) for line in listing.read_text(encoding="utf-8").splitlines() if line.strip())
    published = {name: sha256 for sha256, name in pairs}
    for record in RECORDS:
        for name in (f"{record}.hea", f"{record}.dat", f"{record}.atr"):
            file = folder.joinpath(name)
            found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "no file"
            if found != published.get(name):
                raise DataError(f"{file}: sha256 {found} where {published.get(name)} is published; fetch it again.")


def _located_beats(located: Located) -> Beats:
    (path,) = located.paths.values()
    if located.format == "beats":
        with np.load(path, allow_pickle=False) as arrays:
            windows = np.cumsum(arrays["dx"], axis=1, dtype=np.int16)
            if tuple(arrays["symbols"].tolist()) != SYMBOLS:
                raise DataError(f"{path} lists other symbols than {' '.join(SYMBOLS)}; fetch it again.")
            return Beats(windows, arrays["symbol"].astype(np.int64), arrays["record"].astype(np.int64))
    if located.format == "wfdb":
        check_hash_list(path)
        return beats_of_records(path)
    try:
        with zipfile.ZipFile(path) as archive:
            folder = zipfile.Path(archive, "mit-bih-arrhythmia-database-1.0.0/")
            check_hash_list(folder)
            return beats_of_records(folder)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is not a complete zip archive ({error}); delete it and fetch it again.") from error


def _last(patients: NDArray[np.int64], fraction: float = 0.2) -> NDArray[np.bool_]:
    held = np.zeros(len(patients), np.bool_)
    for patient in np.unique(patients):
        rows = np.flatnonzero(patients == patient)
        held[rows[len(rows) - max(round(fraction * len(rows)), 1) :]] = True
    return held
