"""Tables: features follow from public constants alone, and two independent sources of the Berka loans agree."""

import csv
import dataclasses
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from privfl.data import catalog, heart, info, load_dataset
from privfl.data.berka import LOAN_FEATURES, TRANSACTION_FEATURES
from privfl.data.berka_tables import join_tables
from privfl.data.heart import read_uci
from privfl.data.tabular import Category, Numeric, encode, feature_names
from privfl.errors import ConfigError, DataError

ROOM = os.environ.get("PRIVFL_DATA", "")
needs_room = pytest.mark.skipif(not ROOM, reason="PRIVFL_DATA does not name a folder with the real datasets")
NAN = float("nan")


def test_encoding_uses_nothing_but_its_constants():
    """A row's features are the same whatever the other rows are, so they release nothing about them."""
    specs = (Numeric("a", 10, 2, missing=True), Category("c", (3, 6, 7), missing=True), Numeric("b", 0, 1))
    columns = {"a": np.array([14.0, NAN, 6.0]), "c": np.array([6.0, 3.0, NAN]), "b": np.array([0.5, -1.0, 2.0])}
    assert feature_names(specs) == ("a", "a missing", "c=3", "c=6", "c=7", "c missing", "b")
    assert encode("t", columns, specs).tolist() == [
        [2, 0, 0, 1, 0, 0, 0.5],
        [0, 1, 1, 0, 0, 0, -1.0],
        [-2, 0, 0, 0, 0, 1, 2.0],
    ]
    for row in range(3):
        alone = encode("t", {name: values[row : row + 1] for name, values in columns.items()}, specs)
        assert torch.equal(alone[0], encode("t", columns, specs)[row])


def test_a_missing_value_or_an_unknown_code_is_refused_where_none_may_be():
    with pytest.raises(DataError, match="t: a of row 2 is nan where a number is expected"):
        encode("t", {"a": np.array([1.0, NAN])}, (Numeric("a", 0, 1),))
    with pytest.raises(DataError, match="c of row 1 is 4 where one of 3, 6, 7 is expected"):
        encode("t", {"c": np.array([4.0])}, (Category("c", (3, 6, 7), missing=True),))


@needs_room
def test_the_four_hospitals_have_the_published_rows_and_diseased():
    data = load_dataset("heart-disease")
    clients = torch.cat([data.clients, data.test_clients])
    targets = torch.cat([data.targets, data.test_targets])
    assert torch.bincount(clients).tolist() == [303, 294, 123, 200]
    assert [int(targets[clients == c].sum()) for c in range(4)] == [139, 106, 115, 149]
    assert data.client_names[2] == "University Hospitals Zurich and Basel"
    severity = load_dataset("heart-disease", target="severity")
    assert severity.classes == 5
    assert torch.equal((severity.targets > 0).long().bincount(), data.targets.bincount())


@needs_room
def test_missing_clinical_values_are_indicated_as_often_as_published():
    """Missing '?' per file as the data's own description counts them; cholesterol 0 counts as missing too."""
    data = load_dataset("heart-disease")
    names = feature_names(heart.FEATURES)
    assert data.inputs.shape[1] == len(names) == 32
    rows = torch.cat([data.inputs, data.test_inputs])
    clients = torch.cat([data.clients, data.test_clients])
    published = {
        "slope": [0, 190, 17, 102], "ca": [4, 291, 118, 198], "thal": [2, 266, 52, 166], "fbs": [0, 8, 75, 7],
        "thalach": [0, 1, 1, 53], "exang": [0, 1, 1, 53],
    }  # fmt: skip
    for column, counts in published.items():
        missing = rows[:, names.index(f"{column} missing")]
        assert [int(missing[clients == c].sum()) for c in range(4)] == counts, column
    cholesterol = rows[:, names.index("chol missing")]
    assert int(cholesterol[clients == 2].sum()) == 123
    assert int(cholesterol[clients == 3].sum()) == 49 + 7  # seven more are '?'
    assert (rows[cholesterol == 1, names.index("chol")] == 0).all()


def test_the_first_patient_of_cleveland_is_encoded_by_hand(tmp_path):
    path = tmp_path / "processed.cleveland.data"
    path.write_text("63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n")
    table = read_uci(path)
    row = encode("h", {name: table[:, i] for i, name in enumerate(heart.COLUMNS)}, heart.FEATURES)[0]
    assert row.tolist() == pytest.approx(
        [
            1.3,
            1,
            1,
            0,
            0,
            0,
            0.75,
            0,
            13 / 60,
            0,
            1,
            0,
            0,
            0,
            1,
            0,
            0.4,
            0,
            -1,
            0,
            1.3,
            0,
            0,
            0,
            1,
            0,
            -1,
            0,
            0,
            1,
            0,
            0,
        ]
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("63,1,1\n", "line 1, has 3 fields where 14 are expected"),
        ("63,1,1,145,x,1,2,150,0,2.3,3,0,6,0\n", "line 1: could not convert string to float: 'x'"),
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6,9\n", r"num is 9 where 0\.\.4 is expected"),
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6,?\n", r"num is \? where 0\.\.4 is expected"),
        ("", "is empty"),
    ],
)
def test_a_damaged_heart_file_is_refused_with_its_line(tmp_path, text, sentence):
    (tmp_path / "x.data").write_text(text)
    with pytest.raises(DataError, match=sentence):
        read_uci(tmp_path / "x.data")


@needs_room
def test_the_regions_have_the_published_loans_and_defaults():
    data = load_dataset("berka")
    clients = torch.cat([data.clients, data.test_clients])
    targets = torch.cat([data.targets, data.test_targets])
    counts = {
        name: (int((clients == c).sum()), int(targets[clients == c].sum())) for c, name in enumerate(data.client_names)
    }
    assert counts == {
        "Prague": (84, 7), "central Bohemia": (90, 10), "south Bohemia": (60, 9), "west Bohemia": (57, 9),
        "north Bohemia": (61, 1), "east Bohemia": (84, 9), "south Moravia": (129, 13), "north Moravia": (117, 18),
    }  # fmt: skip


@needs_room
def test_the_time_split_trains_on_the_328_loans_before_1997():
    data = load_dataset("berka", split="time", clients="district")
    assert (len(data.targets), len(data.test_targets)) == (328, 354)
    assert data.num_clients == len(set(data.clients.tolist()))
    assert len(data.client_names) == 77


@needs_room
def test_no_label_reaches_the_features_and_no_column_dominates():
    data = load_dataset("berka")
    names = feature_names(LOAN_FEATURES + TRANSACTION_FEATURES)
    assert data.inputs.shape[1] == len(names) == 46
    assert not {"status", "default", "loan_id", "account_id"} & set(names)
    assert data.inputs.abs().max() < 10
    jesenik = torch.cat([data.inputs, data.test_inputs])[:, names.index("crimes_95 missing")]
    with open(Path(ROOM) / "berka/berka_loans.csv", encoding="utf-8", newline="") as file:
        assert int(jesenik.sum()) == sum(row["district_id"] == "69" for row in csv.DictReader(file))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A data folder with the bank's own tables only."""
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path))
    (tmp_path / "berka").mkdir()
    for file in (Path(ROOM) / "berka").glob("*.asc"):
        (tmp_path / "berka" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "berka"


@needs_room
def test_the_banks_own_tables_give_the_same_features_as_the_prepared_table(tables, monkeypatch):
    """The prepared table was made by others: 28 features of all 682 loans agree with our joins."""
    own = load_dataset("berka", transactions=False)
    monkeypatch.setenv("PRIVFL_DATA", ROOM)
    prepared = load_dataset("berka", transactions=False)
    assert own.inputs.shape == (546, 28)
    for field in ("targets", "test_targets", "clients", "test_clients"):
        assert torch.equal(getattr(own, field), getattr(prepared, field))
    for field in ("inputs", "test_inputs"):
        assert torch.allclose(getattr(own, field), getattr(prepared, field), atol=1e-3)


@needs_room
def test_without_transactions_the_mend_is_named(tables):
    with pytest.raises(DataError, match=r"holds no trans\.asc; .*transactions=False"):
        load_dataset("berka")
    (tables / "district.asc").unlink()
    with pytest.raises(DataError, match=r"holds some of its files but not berka/district\.asc"):
        load_dataset("berka", transactions=False)


@needs_room
def test_transactions_are_counted_strictly_before_the_loan_and_the_official_zip_is_read(tables, monkeypatch):
    """Every loan gets random transactions before its date and traps on and after it; a plain twin adds them up."""
    rng = np.random.default_rng(11)
    kinds = [("PRIJEM", "VKLAD"), ("PRIJEM", "PREVOD Z UCTU"), ("VYDAJ", "VYBER"), ("VYBER", "VYBER"),
             ("VYDAJ", "PREVOD NA UCET"), ("VYDAJ", "VYBER KARTOU"), ("PRIJEM", "")]  # fmt: skip
    with open(tables / "loan.asc", encoding="utf-8", newline="") as file:
        loans = list(csv.DictReader(file, delimiter=";"))
    lines, expected = [], {}
    for loan in loans:
        date = loan["date"]
        before = [f"{year}{month:02d}15" for year in (93, 94, 95) for month in range(1, 13)]
        days = sorted(rng.choice([day for day in [*before, "930101", "930102"] if day < date], 5).tolist())
        rows = [
            (day, *kinds[rng.integers(7)], round(rng.uniform(1, 9e4), 2), round(rng.normal(0, 5e4), 2)) for day in days
        ]
        signed = np.array([amount if kind == "PRIJEM" else -amount for _, kind, _, amount, _ in rows])
        balance = np.array([row[-1] for row in rows])
        expected[loan["account_id"]] = {
            "n_trans": 5, "n_credit": sum(row[1] == "PRIJEM" for row in rows),
            "n_card_withdrawal": sum(row[2] == "VYBER KARTOU" for row in rows),
            "n_other": sum(row[2] == "" for row in rows), "signed_amount_mean": signed.mean(),
            "signed_amount_min": signed.min(), "signed_amount_std": signed.std(ddof=1),
            "balance_mean": balance.mean(), "balance_max": balance.max(), "balance_last": rows[-1][-1],
        }  # fmt: skip
        for day in (date, "981231"):
            rows.append((day, "PRIJEM", "VKLAD", 1e9, 1e9))
        lines += [f'1;{loan["account_id"]};{d};"{t}";"{o}";{a:.2f};{b:.2f};" ";;' for d, t, o, a, b in rows]
    lines.append('1;999999;930101;"PRIJEM";"VKLAD";1e9;1e9;"";;')
    head = '"trans_id";"account_id";"date";"type";"operation";"amount";"balance";"k_symbol";"bank";"account"'
    (tables / "trans.asc").write_text("\r\n".join([head, *lines]) + "\r\n", newline="")

    records = {record["account_id"]: record for record in join_tables(tables, True)}
    assert records.keys() == expected.keys()
    for account, values in expected.items():
        for name, value in values.items():
            assert float(records[account][name]) == pytest.approx(value, abs=1e-6), (account, name)
    folder = load_dataset("berka")
    with zipfile.ZipFile(tables / "data_berka.zip", "w") as archive:
        for file in tables.glob("*.asc"):
            archive.write(file, file.name)
            file.unlink()
    assert torch.equal(load_dataset("berka").inputs, folder.inputs)
    (tables / "data_berka.zip").write_bytes((tables / "data_berka.zip").read_bytes()[:500])
    with pytest.raises(DataError, match="not a complete zip archive"):
        load_dataset("berka")


@needs_room
@pytest.mark.parametrize(
    ("table", "old", "new", "sentence"),
    [
        ("loan", "5316;1801;", "5316;99999;", "do not fit together"),
        ("account", '"POPLATEK MESICNE"', '"POPLATEK"', "frequency 'POPLATEK'"),
        ("loan", '8033.00;"B"', '8033.00;"X"', "status 'X'"),
        ("loan", "96396;12", "96 396;12", "a field is not a number"),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(tables, table, old, new, sentence):
    path = tables / f"{table}.asc"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=sentence):
        load_dataset("berka", transactions=False)


@needs_room
def test_a_shortened_loan_table_does_not_pass_the_published_count(tables):
    path = tables / "loan.asc"
    path.write_text("\n".join(path.read_text().splitlines()[:600]))
    with pytest.raises(DataError, match="berka: 599 loans were read where 682 are published"):
        load_dataset("berka", transactions=False)


@needs_room
def test_unknown_options_of_the_tables_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="unknown target"):
        load_dataset("heart-disease", target="num")
    with pytest.raises(ConfigError, match="unknown clients 'regions': did you mean 'region'"):
        load_dataset("berka", clients="regions")
    with pytest.raises(ConfigError, match="transactions is 'no'"):
        load_dataset("berka", transactions="no")
    monkeypatch.setattr(catalog, "_ALL", (dataclasses.replace(info("berka"), counts={"loans": 1}),))
    with pytest.raises(DataError, match="682 loans were read where 1 are published"):
        load_dataset("berka")
