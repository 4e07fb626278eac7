"""Pathological and clustered partitions: few classes per client, shared samples only where that is asked for."""

import numpy as np
import pytest

from privfl.data.partitions import Clustered, Partition, Pathological, describe
from privfl.errors import ConfigError

CLASSES = 10
TARGETS = np.random.default_rng(7).permutation(np.repeat(np.arange(CLASSES), 300))


def split(partition: Partition) -> list[np.ndarray]:
    return partition.split(TARGETS, CLASSES, np.random.default_rng(0))


@pytest.mark.parametrize("reuse", ["wrap", "forbid"])
def test_pathological_clients_hold_the_asked_number_of_classes_in_equal_parts(reuse):
    counts = describe(split(Pathological(clients=20, samples_per_client=40, reuse=reuse)), TARGETS, CLASSES).counts
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert set(np.unique(counts)) == {0, 20}


def test_a_size_that_is_no_multiple_of_the_classes_is_kept_and_split_as_evenly_as_possible():
    counts = describe(split(Pathological(20, classes_per_client=3, samples_per_client=41)), TARGETS, CLASSES).counts
    assert np.sort(counts, axis=1)[:, -4:].tolist() == [[0, 13, 14, 14]] * 20


def test_pathological_classes_are_drawn_uniformly():
    """400 clients × 2 of 10 classes: class counts are a sum of 400 coins of 0.2, so 5 s.e. are 40."""
    counts = describe(split(Pathological(clients=400, samples_per_client=4)), TARGETS, CLASSES).counts
    assert (np.abs((counts > 0).sum(axis=0) - 80) < 40).all()


def test_wrapping_shares_samples_only_when_a_class_is_asked_for_more_than_there_is():
    whole = describe(split(Pathological(clients=50)), TARGETS, CLASSES)
    asked = whole.counts.sum(axis=0)
    assert whole.sizes.tolist() == [60] * 50
    assert whole.distinct == np.minimum(asked, 300).sum()
    assert whole.shared == np.maximum(asked - 300, 0).sum()
    modest = [split(Pathological(clients=20, samples_per_client=20, reuse=reuse)) for reuse in ("wrap", "forbid")]
    assert all(np.array_equal(a, b) for a, b in zip(*modest, strict=True))


def test_forbidding_reuse_shares_a_short_class_evenly_among_those_that_drew_it():
    report = describe(split(Pathological(clients=50, reuse="forbid")), TARGETS, CLASSES)
    assert report.shared == 0
    takers = (report.counts > 0).sum(axis=0)
    for label in range(CLASSES):
        held = report.counts[report.counts[:, label] > 0, label]
        assert held.max() - held.min() <= 1
        assert held.sum() == min(300, 30 * takers[label])


def test_the_iid_fraction_comes_from_all_classes_and_belongs_to_one_client_only():
    pure = split(Pathological(clients=20, samples_per_client=100, iid_fraction=1.0))
    assert len(np.unique(np.concatenate(pure))) == 2000
    mixed = describe(split(Pathological(clients=20, samples_per_client=100, iid_fraction=0.2)), TARGETS, CLASSES)
    assert (mixed.sizes == 100).all()
    assert (np.sort(mixed.counts, axis=1)[:, :-2].sum(axis=1) <= 20).all()
    assert (np.sort(mixed.counts, axis=1)[:, -2] >= 40).all()


def test_clustered_clients_hold_as_many_classes_as_their_cluster_says():
    counts = describe(split(Clustered(samples_per_client=60)), TARGETS, CLASSES).counts
    assert (counts > 0).sum(axis=1).tolist() == [2, 2, 3, 3, 5] * 4
    assert (counts.sum(axis=1) == 60).all()


def test_a_class_with_fewer_samples_than_takers_is_refused_rather_than_leaving_a_client_empty():
    rare = np.repeat([0, 1], [1, 99])
    with pytest.raises(ConfigError, match="without an example"):
        Pathological(clients=30, classes_per_client=1, reuse="forbid").split(rare, 2, np.random.default_rng(0))
