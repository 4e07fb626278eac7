"""Berka / PKDD'99: loans of a Czech bank, from the prepared table or from the bank's own tables."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from privfl.data.berka_tables import Record, join_tables
from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.data.holdout import stratified_holdout
from privfl.data.tabular import Category, Numeric, encode
from privfl.errors import ConfigError, DataError
from privfl.validation import check_choice

# Public constants: round figures for Czech loans, districts and accounts of the 1990s (CZK, days, years, per cent).
LOAN_FEATURES = (
    Numeric("amount", 150_000, 100_000),
    Numeric("duration", 36, 18),
    Numeric("payments", 4_000, 2_000),
    Numeric("days_account_to_loan", 400, 150),
    Category("statement", (0, 1, 2)),
    Numeric("inhabitants", 200_000, 300_000),
    Numeric("n_municip_lt499", 40, 30),
    Numeric("n_municip_500_1999", 20, 15),
    Numeric("n_municip_2000_9999", 5, 5),
    Numeric("n_municip_gt10000", 2, 1),
    Numeric("n_cities", 5, 3),
    Numeric("urban_ratio", 65, 20),
    Numeric("average_salary", 9_500, 1_500),
    Numeric("unemployment_95", 3, 2, missing=True),
    Numeric("unemployment_96", 3.5, 2),
    Numeric("entrepreneurs_per_1000", 120, 25),
    Numeric("crimes_95", 15_000, 25_000, missing=True),
    Numeric("crimes_96", 15_000, 25_000),
    Numeric("n_orders_nonloan", 1, 1),
    Numeric("order_amount_mean_nonloan", 5_000, 3_000, missing=True),
    Numeric("owner_is_male", 0.5, 0.5),
    Numeric("owner_age_at_loan", 40, 12),
    Numeric("n_clients", 1.5, 0.5),
)
TRANSACTION_FEATURES = (
    Numeric("n_trans", 80, 40),
    Numeric("n_credit", 30, 15),
    Numeric("n_withdrawal", 50, 30),
    Numeric("n_credit_in_cash", 15, 10),
    Numeric("n_collection_from_bank", 4, 6),
    Numeric("n_withdrawal_in_cash", 40, 20),
    Numeric("n_remittance_to_bank", 10, 15),
    Numeric("n_card_withdrawal", 0, 1),
    Numeric("n_other", 15, 8),
    Numeric("signed_amount_mean", 1_000, 1_000),
    Numeric("signed_amount_min", -30_000, 20_000),
    Numeric("signed_amount_max", 40_000, 15_000),
    Numeric("signed_amount_std", 15_000, 6_000),
    Numeric("balance_mean", 45_000, 15_000),
    Numeric("balance_min", 500, 3_000),
    Numeric("balance_max", 90_000, 35_000),
    Numeric("balance_std", 18_000, 8_000),
    Numeric("balance_last", 45_000, 25_000),
)
_STATEMENTS = {"monthly": 0.0, "weekly": 1.0, "after_transaction": 2.0}


@dataclass(frozen=True)
class Loans:
    """Columns float64 [N] (NaN where missing), label, region, district and year of each loan."""

    columns: dict[str, NDArray[np.float64]]
    defaults: NDArray[np.int64]
    regions: tuple[str, ...]
    districts: tuple[str, ...]
    years: NDArray[np.int64]


def load_berka(
    entry: DatasetInfo,
    located: Located,
    *,
    seed: int,
    clients: str = "region",
    split: str = "per-client",
    transactions: bool = True,
) -> Dataset:
    """Loans as float32 [N, 46] (28 without transactions), label 1 = in default (status B or D).

    Args:
        entry: catalog entry.
        located: its files.
        seed: root seed of the ``per-client`` hold-out.
        clients: ``region`` (8) or ``district`` (77) of the account's branch.
        split: ``per-client`` holds out a fifth of each client's loans, stratified; ``time`` trains on the loans up to
            1996 and tests on those of 1997 and 1998.
        transactions: use the account's transactions before the loan; False where trans.asc cannot be had.
    """
    check_choice("clients", clients, ("region", "district"))
    check_choice("split", split, ("per-client", "time"))
    if not isinstance(transactions, bool):
        raise ConfigError(f"transactions is {transactions!r}; it must be true or false.")
    records = sorted(_records(located, transactions), key=lambda record: (record["loan_date"], record["loan_id"]))
    loans = _columns(entry.name, records)
    entry.check_counts(loans=len(loans.defaults))
    inputs = encode(entry.name, loans.columns, LOAN_FEATURES + (TRANSACTION_FEATURES if transactions else ()))
    ids = np.array(loans.regions if clients == "region" else loans.districts)
    if split == "time":
        test = loans.years >= 1997
    else:
        test = stratified_holdout(loans.defaults, clients=np.unique(ids, return_inverse=True)[1], seed=seed)
    known = np.unique(ids[~test])
    names = [*known.tolist(), *np.setdiff1d(ids[test], known).tolist()]
    number = {name: index for index, name in enumerate(names)}
    owner, y = torch.tensor([number[name] for name in ids.tolist()]), torch.from_numpy(loans.defaults)
    return Dataset(
        entry.name, inputs[~test], y[~test], inputs[test], y[test], 2, owner[~test], owner[test],
        client_names=tuple(names), class_names=("paid", "default"),
    )  # fmt: skip


def _records(located: Located, transactions: bool) -> list[Record]:
    if located.format == "loans":
        (path,) = located.paths.values()
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    if located.format == "tables":
        return join_tables(next(iter(located.paths.values())).parent, transactions)
    (path,) = located.paths.values()
    try:
        with zipfile.ZipFile(path) as archive:
            return join_tables(_folder_of(archive, path), transactions)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is not a complete zip archive ({error}); delete it and fetch it again.") from error


def _folder_of(archive: zipfile.ZipFile, path: Path) -> zipfile.Path:
    inside = next((name for name in archive.namelist() if name.rsplit("/", 1)[-1] == "loan.asc"), None)
    if inside is None:
        raise DataError(f"{path} holds no loan.asc; delete it and fetch it again.")
    return zipfile.Path(archive, inside.removesuffix("loan.asc"))


def _columns(name: str, records: list[Record]) -> Loans:
    """Numbers from records of text; the derived columns that the features need."""
    for number, record in enumerate(records, start=1):
        if record["frequency"] not in _STATEMENTS or record["status"] not in {"A", "B", "C", "D"}:
            raise DataError(
                f"{name}: loan {number} has frequency {record['frequency']!r} and status {record['status']!r}; "
                "expected monthly, weekly or after_transaction, and A, B, C or D; fetch the files again."
            )
    derived = {"statement", "owner_is_male"}
    wanted = [spec.column for spec in LOAN_FEATURES + TRANSACTION_FEATURES if spec.column not in derived]
    try:
        columns = {
            column: np.array([float(record[column] or "nan") for record in records])
            for column in wanted
            if all(column in record for record in records)
        }
    except ValueError as error:
        raise DataError(f"{name}: a field is not a number ({error}); fetch the files again.") from error
    columns["statement"] = np.array([_STATEMENTS[record["frequency"]] for record in records])
    columns["owner_is_male"] = np.array([float(record["owner_gender"] == "M") for record in records])
    # The source has no figures of 1995 for district 69 (Jesenik); copies of the table fill in an impossible 3.08.
    unknown = np.array([record["district_id"] == "69" for record in records])
    for column in ("unemployment_95", "crimes_95"):
        columns[column][unknown] = np.nan
    return Loans(
        columns,
        np.array([int(record["status"] in "BD") for record in records], np.int64),
        tuple(record["region"] for record in records),
        tuple(f"district {record['district_id']}" for record in records),
        np.array([int(record["loan_date"][:4]) for record in records], np.int64),
    )
