"""The names that stand for normalised data are those of the catalog that have constants."""

from privfl.data.catalog import datasets
from privfl.data.normalised import NORMALISED


def test_they_are_the_datasets_with_a_mean_for_each_channel():
    assert {entry.name for entry in datasets() if entry.mean} == NORMALISED
    assert {"digits", "mnist", "cifar10"} <= NORMALISED
    assert "heart-disease" not in NORMALISED
