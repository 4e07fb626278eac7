"""The bank's own tables (``*.asc``) joined to one record per loan, with what was known before the loan."""

from __future__ import annotations

import csv
import datetime
import io
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources.abc import Traversable

import numpy as np

from privfl.errors import DataError

Record = dict[str, str]

_FREQUENCIES = {"POPLATEK MESICNE": "monthly", "POPLATEK TYDNE": "weekly", "POPLATEK PO OBRATU": "after_transaction"}
_OPERATIONS = {
    "VKLAD": "n_credit_in_cash",
    "PREVOD Z UCTU": "n_collection_from_bank",
    "VYBER": "n_withdrawal_in_cash",
    "PREVOD NA UCET": "n_remittance_to_bank",
    "VYBER KARTOU": "n_card_withdrawal",
    "": "n_other",
}
_DISTRICT = {
    "A4": "inhabitants",
    "A5": "n_municip_lt499",
    "A6": "n_municip_500_1999",
    "A7": "n_municip_2000_9999",
    "A8": "n_municip_gt10000",
    "A9": "n_cities",
    "A10": "urban_ratio",
    "A11": "average_salary",
    "A12": "unemployment_95",
    "A13": "unemployment_96",
    "A14": "entrepreneurs_per_1000",
    "A15": "crimes_95",
    "A16": "crimes_96",
}


def join_tables(folder: Traversable, transactions: bool) -> list[Record]:
    """One record of text fields per loan, an empty field where a value is missing.

    Permanent orders are undated; the loan's own payment order (symbol UVER) is left out of them. Transactions count
    only if they are dated strictly before the loan; the last balance is that of the last such row of the table.

    Raises:
        DataError: a table is missing or lacks a column or a row that another table refers to.
    """
    try:
        return _join(folder, transactions)
    except (KeyError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the tables in {folder} do not fit together ({error!r}); fetch them again.") from error


def _join(folder: Traversable, transactions: bool) -> list[Record]:
    accounts = {row["account_id"]: row for row in _rows(folder, "account")}
    districts = {row["A1"]: row for row in _rows(folder, "district")}
    clients = {row["client_id"]: row for row in _rows(folder, "client")}
    owners: dict[str, str] = {}
    holders: dict[str, int] = defaultdict(int)
    for row in _rows(folder, "disp"):
        holders[row["account_id"]] += 1
        if row["type"] == "OWNER":
            owners[row["account_id"]] = row["client_id"]
    orders: dict[str, list[float]] = defaultdict(list)
    for row in _rows(folder, "order"):
        if row["k_symbol"] != "UVER":
            orders[row["account_id"]].append(float(row["amount"]))

    loans = list(_rows(folder, "loan"))
    aggregates = _aggregates(folder, {row["account_id"]: row["date"] for row in loans}) if transactions else {}
    records: list[Record] = []
    for loan in loans:
        key = loan["account_id"]
        account, district = accounts[key], districts[accounts[key]["district_id"]]
        birth, male = _birth(clients[owners[key]]["birth_number"])
        granted, opened = _date(loan["date"]), _date(account["date"])
        amounts = orders[key]
        records.append(
            {
                **{name: loan[name] for name in ("loan_id", "account_id", "status", "amount", "duration", "payments")},
                "region": district["A3"],
                "district_id": district["A1"],
                "loan_date": granted.isoformat(),
                "frequency": _FREQUENCIES.get(account["frequency"], account["frequency"]),
                "days_account_to_loan": str((granted - opened).days),
                **{name: district[code].replace("?", "") for code, name in _DISTRICT.items()},
                "n_orders_nonloan": str(len(amounts)),
                "order_amount_mean_nonloan": str(sum(amounts) / len(amounts)) if amounts else "",
                "owner_gender": "M" if male else "F",
                "owner_age_at_loan": str((granted - birth).days / 365.25),
                "n_clients": str(holders[key]),
                **(aggregates[key] if transactions else {}),
            }
        )
    return records


def _aggregates(folder: Traversable, loan_dates: dict[str, str]) -> dict[str, Record]:
    """What each account's transactions before its loan say."""
    if not folder.joinpath("trans.asc").is_file():
        raise DataError(f"{folder} holds no trans.asc; put it there, or load the dataset with transactions=False.")
    history: dict[str, list[Record]] = defaultdict(list)
    for row in _rows(folder, "trans"):
        if row["account_id"] in loan_dates and row["date"] < loan_dates[row["account_id"]]:
            history[row["account_id"]].append(row)
    result: dict[str, Record] = {}
    for account in loan_dates:
        rows = sorted(history[account], key=lambda row: row["date"])  # stable: table order inside a day
        if not rows:
            raise DataError(f"trans.asc holds no transaction of account {account} before its loan; fetch it again.")
        credit = np.array([row["type"] == "PRIJEM" for row in rows])
        signed = np.array([float(row["amount"]) for row in rows]) * np.where(credit, 1.0, -1.0)
        balance = np.array([float(row["balance"]) for row in rows])
        counts = dict.fromkeys(_OPERATIONS.values(), 0)
        for row in rows:
            counts[_OPERATIONS[row["operation"]]] += 1
        result[account] = {
            "n_trans": str(len(rows)),
            "n_credit": str(int(credit.sum())),
            "n_withdrawal": str(int((~credit).sum())),
            **{name: str(count) for name, count in counts.items()},
            **{f"signed_amount_{name}": value for name, value in _summary(signed).items()},
            **{f"balance_{name}": value for name, value in _summary(balance).items()},
            "balance_last": str(balance[-1]),
        }
    return result


def _summary(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Record:
    spread = str(values.std(ddof=1)) if len(values) > 1 else ""
    return {"mean": str(values.mean()), "min": str(values.min()), "max": str(values.max()), "std": spread}


def _rows(folder: Traversable, table: str) -> Iterator[Record]:
    file = folder.joinpath(f"{table}.asc")
    if not file.is_file():
        raise DataError(f"{folder} holds no {table}.asc; put it there.")
    text = io.TextIOWrapper(file.open("rb"), encoding="latin-1", newline="")
    with text:
        for row in csv.DictReader(text, delimiter=";"):
            yield {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}


def _date(text: str) -> datetime.date:
    return datetime.date(1900 + int(text[:2]), int(text[2:4]), int(text[4:6]))


def _birth(number: str) -> tuple[datetime.date, bool]:
    """Date of birth and whether male: in a Czech birth number women have 50 added to the month."""
    month = int(number[2:4])
    return _date(f"{number[:2]}{month % 50:02d}{number[4:6]}"), month <= 12
