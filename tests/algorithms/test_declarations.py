"""The compatibility table is read off what algorithms declare."""

import pytest

import privfl as pf
from privfl.algorithms import ALGORITHMS
from privfl.algorithms.declarations import declared


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_has_a_row(name):
    row = declared(ALGORITHMS[name]())
    assert set(row) == {"sends", "secure sums", "dp-sgd"}
    assert all(row.values())
    assert all(row[name] == "yes" or row[name].startswith("no: ") for name in ("secure sums", "dp-sgd"))


@pytest.mark.parametrize(
    ("algorithm", "sends", "secure"),
    [
        (pf.Local(), "nothing", "yes"),
        (pf.FedAvg("uniform"), "update (sum)", "yes"),
        (pf.FedAvg(), "size (once), update (sum)", "yes"),
        (pf.AAggFFS(), "loss (each), update (sum)", "no: loss"),
    ],
)
def test_surveys_and_sizes_are_sent_too(algorithm, sends, secure):
    row = declared(algorithm)
    assert (row["sends"], row["secure sums"]) == (sends, secure)


def test_a_form_with_sums_needs_sums_only():
    assert declared(pf.AAggFFDSums())["secure sums"] == "yes"
    assert declared(pf.GRPFed(form="sums", loss_report="pre_eval"))["secure sums"] == "yes"
    assert declared(pf.GRPFed())["secure sums"] == "no: update, loss"
