"""Sizes taken from a list or from another dataset's clients: exact, drawn without replacement, refused if too many."""

import gzip
from collections import Counter

import numpy as np
import pytest

from privfl.data.partitions import GivenSizes
from privfl.errors import ConfigError

TARGETS = np.random.default_rng(0).integers(0, 10, 1000)


def sizes_of(partition, seed=0, targets=TARGETS):
    return [len(part) for part in partition.split(targets, 10, np.random.default_rng(seed))]


def test_clients_get_exactly_the_given_sizes_and_no_sample_twice():
    sizes = (5, 1, 300, 44)
    parts = GivenSizes(sizes=sizes).split(TARGETS, 10, np.random.default_rng(1))
    assert tuple(len(part) for part in parts) == sizes
    assert len(np.unique(np.concatenate(parts))) == sum(sizes)


def test_drawn_clients_have_sizes_of_the_list_without_replacement():
    drawn = sizes_of(GivenSizes(sizes=tuple(range(1, 31)), clients=20))
    assert len(drawn) == len(set(drawn)) == 20
    assert set(drawn) <= set(range(1, 31))
    assert drawn != sizes_of(GivenSizes(sizes=tuple(range(1, 31)), clients=20), seed=1)


def test_a_list_from_a_configuration_file_is_taken():
    assert GivenSizes(sizes=[3, 4]) == GivenSizes(sizes=(3, 4))


def test_amazon_users_lend_their_counts(data_folder):
    """Twin: the file itself, one line ``user item item ...``; the first item is context and the last is held out."""
    with gzip.open(data_folder / "amazon2014" / "Toys_and_Games.txt.gz", "rt") as lines:
        rows = Counter(len(line.split()) - 3 for line in lines)
    targets = np.zeros(sum(size * users for size, users in rows.items()), dtype=np.int64)
    assert Counter(sizes_of(GivenSizes(dataset="amazon-toys"), targets=targets)) == rows
    assert rows.total() == 19_412


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GivenSizes(), "given-sizes has 0 sizes and dataset=None; give exactly one of the two"),
        (lambda: GivenSizes(sizes=(1,), dataset="digits"), "give exactly one of the two"),
        (lambda: GivenSizes(sizes=(3, 0)), "a client's size is 0; give a whole number of at least 1"),
        (lambda: GivenSizes(sizes=(2.5,)), "GivenSizes's sizes holds 2.5; give a whole number"),
        (lambda: GivenSizes(sizes=3), "GivenSizes's sizes is 3; give a list, such as [3]"),
        (lambda: GivenSizes(sizes=(1,), clients=0), "clients is 0"),
        (lambda: GivenSizes(dataset="amazon-toy"), "did you mean 'amazon-toys'?"),
        (lambda: sizes_of(GivenSizes(sizes=(1, 2), clients=3)), "there are 2 sizes to draw from; lower it"),
        (lambda: sizes_of(GivenSizes(sizes=(600, 401))), "need 1001 samples and the dataset has 1000"),
        (lambda: sizes_of(GivenSizes(dataset="digits")), "dataset 'digits' has no clients of its own"),
    ],
)
def test_impossible_sizes_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
