"""What a statement prints and keeps: never less than the truth, and whole."""

import json
import math
from decimal import Decimal

import numpy as np
import pytest

from privfl.errors import PrivacyError
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.printed import round_up
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Cost, Release, everywhere, unprotected
from privfl.privacy.accounting.statement import NOTHING, Statement
from tests.privacy.accounting.accounting_oracles import poisson

DELTA = 1e-5
TRAINING = Cost(poisson(0.1, 1.0))
CLEAR = unprotected("the update is sent as it is.")


def statement_of(*records, clients=3, **options):
    """A statement of (release, clients, count) records."""
    ledger = Ledger(clients, {release.name for release, _, _ in records})
    for record in records:
        ledger.record(*record)
    return make_statement(ledger, DELTA, **({"reproducible_noise": False} | options))


def test_a_run_without_releases_claims_zero_and_says_why():
    statement = statement_of()
    assert [cell.epsilon for cell in statement.cells] == [0.0] * 4
    assert NOTHING.split()[0] in str(statement)


def test_reproducible_noise_forbids_the_release():
    statement = statement_of((everywhere("update", TRAINING), None, 1), reproducible_noise=True)
    assert "DO NOT RELEASE" in str(statement)
    assert "DO NOT RELEASE" in statement.to_html()
    assert "DO NOT RELEASE" not in str(statement_of((everywhere("update", TRAINING), None, 1)))


def test_caveats_are_printed():
    assert "The server is honest." in str(statement_of(caveats=["The server is honest."]))


def test_the_text_fits_a_hundred_columns():
    long = unprotected("a very long reason " * 20 + "that ends here.")
    statement = statement_of((everywhere("update", TRAINING), None, 12345), (everywhere("debug", long), [1], 1))
    lines = str(statement).splitlines()
    assert max(map(len, lines)) <= 100
    for unit in UNITS:
        assert any(line.startswith(unit) for line in lines)


def test_html_is_escaped_and_complete():
    html = statement_of((everywhere("<update>", unprotected("a < b & c.")), None, 1))._repr_html_()
    assert "&lt;update&gt;: a &lt; b &amp; c." in html
    assert "<script" not in html
    assert html.count("<td>") == 4


def test_a_statement_goes_through_json():
    statement = statement_of(
        (everywhere("update", TRAINING), [0], 3),
        (Release.of("x", {("client", "server"): CLEAR}), [1], 1),
        caveats=["!"],
    )
    assert Statement.from_json(statement.to_json()) == statement
    assert json.loads(statement.to_json())["cells"][2]["bound"]["epsilon"] == "inf"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [1]}'])
def test_other_json_is_no_statement(text):
    with pytest.raises(PrivacyError, match="not a privacy statement"):
        Statement.from_json(text)


@pytest.mark.parametrize(
    "value", [*np.exp(np.random.default_rng(0).uniform(-20, 20, 200)), 0.1, 1.0, 9.995, 999.5, 1e6]
)
def test_printed_epsilons_are_never_below_the_computed_ones(value):
    printed = Decimal(round_up(float(value)))
    assert Decimal(float(value)) <= printed <= Decimal(float(value)) * Decimal("1.01")


def test_every_unit_and_observer_has_a_cell():
    assert {(cell.unit, cell.observer) for cell in statement_of().cells} == {(u, o) for u in UNITS for o in OBSERVERS}


def test_what_is_not_protected_is_printed_as_infinite():
    assert round_up(math.inf) == round_up(math.nan) == "∞"
    ledger = Ledger(3, ["size"])
    ledger.record(everywhere("size", unprotected("it is sent as it is")), [1])
    statement = make_statement(ledger, 1e-5, reproducible_noise=False)
    assert str(statement).count("ε = ∞") == 4
    assert "ε = 0" not in str(statement)
    assert statement.to_html().count("ε = ∞") == 4
