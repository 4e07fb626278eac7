"""The report on a partition: its numbers against scipy and arithmetic by hand, its log and its picture."""

import json
import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import entropy
from sklearn.datasets import load_digits

from privfl.data.partitions import IID, Dirichlet, LongTail, describe
from privfl.errors import ConfigError, DataError

DIGITS = load_digits().target.astype(np.int64)


def digits_report(clients):
    return describe(Dirichlet(clients, alpha=0.3).split(DIGITS, 10, np.random.default_rng(0)), DIGITS, 10)


def test_counts_entropies_and_distances_are_those_of_a_split_worked_by_hand():
    targets = np.array([0, 0, 0, 1, 1, 2])
    profiles = np.array([[1.0, 0, 0], [0, 0.5, 0.5]])
    report = describe([np.array([0, 1, 3, 4]), np.array([4, 5])], targets, 3, profiles)
    assert report.counts.tolist() == [[2, 2, 0], [0, 1, 1]]
    assert report.sizes.tolist() == [4, 2]
    assert report.label_entropy == pytest.approx([math.log(2), math.log(2)])
    assert report.distance_to_pool == pytest.approx([1 / 6, 1 / 3])  # pool (1/3, 1/2, 1/6)
    assert report.distance_to_profile == pytest.approx([0.5, 0.0])
    assert (report.available, report.distinct, report.shared) == (6, 5, 1)


def test_entropies_agree_with_scipy_on_digits():
    report = digits_report(20)
    assert report.label_entropy == pytest.approx([entropy(row) for row in report.counts])
    assert report.label_entropy.max() <= math.log(10)


def test_distances_are_those_of_whole_tables():
    partition = LongTail(20, min_size=1)
    parts = partition.split(DIGITS, 10, np.random.default_rng(0))
    profiles = partition.profiles(10, np.random.default_rng(0))
    report = describe(parts, DIGITS, 10, profiles)
    shares = report.counts / report.sizes[:, None]
    pool = report.counts.sum(axis=0) / report.counts.sum()
    assert report.distance_to_pool == pytest.approx(np.abs(shares - pool).sum(axis=1) / 2, abs=1e-12)
    assert report.distance_to_profile == pytest.approx(np.abs(shares - profiles).sum(axis=1) / 2, abs=1e-12)


def test_many_clients_and_classes_take_the_memory_of_their_samples():
    """A table of all pairs would have 3.2 GB, and a shop's customers and its articles are as many as that."""
    targets, parts = np.arange(40_000) % 20_000, np.split(np.arange(40_000), 20_000)
    tracemalloc.start()
    try:
        report = describe(parts, targets, 20_000)
        json.dumps(report.summary())
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert report.label_entropy == pytest.approx(np.full(20_000, math.log(2)))
    assert report.distance_to_pool == pytest.approx(np.full(20_000, 1 - 2 / 20_000))


def test_the_summary_is_json_and_lists_every_client_up_to_a_thousand():
    summary = digits_report(200).summary()
    assert json.loads(json.dumps(summary)) == summary
    assert len(summary["sizes"]["values"]) == 200
    assert summary["samples_used"] == summary["samples_available"] == 1797
    assert summary["size_ratio"] == summary["sizes"]["max"] / summary["sizes"]["min"]
    assert "distance_to_profile" not in summary


def test_the_summary_of_many_clients_keeps_quantiles_only():
    targets = np.arange(20_000) % 10
    partition = LongTail(1001, min_size=1)
    parts = partition.split(targets, 10, np.random.default_rng(0))
    report = describe(parts, targets, 10, partition.profiles(10, np.random.default_rng(0)))
    summary = report.summary()
    assert "values" not in summary["sizes"]
    assert len(json.dumps(summary)) < 2000
    assert summary["sizes"]["median"] == np.median(report.sizes)
    assert summary["distance_to_profile"]["q95"] == pytest.approx(np.quantile(report.distance_to_profile, 0.95))


@pytest.mark.parametrize("clients", [5, 20, 200])
def test_the_figure_shows_every_clients_shares_and_sizes(clients, tmp_path):
    report = digits_report(clients)
    figure = report.figure(title="digits")
    heat, bars = figure.axes[:2]
    assert np.allclose(heat.images[0].get_array(), report.counts / report.sizes[:, None])
    assert [bar.get_width() for bar in bars.patches] == report.sizes.tolist()
    assert heat.get_ylim() == bars.get_ylim() == (clients - 0.5, -0.5)
    assert len([tick for tick in heat.get_yticklabels() if tick.get_text()]) <= 12
    figure.savefig(tmp_path / "clients.png")
    assert (tmp_path / "clients.png").stat().st_size > 5_000


def test_the_figure_of_many_clients_shows_every_nth_and_says_so():
    targets = np.arange(5_000) % 3
    report = describe(IID(2500).split(targets, 3, np.random.default_rng(0)), targets, 3)
    figure = report.figure(class_names=["cat", "dog", "elephant"])
    assert figure.axes[0].images[0].get_array().shape == (834, 3)
    assert figure.get_suptitle() == "(one in 3 of 2500 clients)"
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["cat", "dog", "elephant"]


def test_malformed_input_is_refused_in_one_sentence():
    targets = np.array([0, 1, 1])
    with pytest.raises(DataError, match="1 of 2 clients have no sample"):
        describe([np.array([0]), np.array([], dtype=np.int64)], targets, 2)
    with pytest.raises(DataError, match="parts index samples 0 to 3: the dataset has 0 to 2"):
        describe([np.array([0, 3])], targets, 2)
    with pytest.raises(DataError, match="targets range from 0 to 1"):
        describe([np.array([0])], targets, 1)
    with pytest.raises(DataError, match="give one row for each client"):
        describe([np.array([0])], targets, 2, np.ones((2, 2)) / 2)
    with pytest.raises(ConfigError, match="class_names has 1 entries for 2 classes"):
        describe([np.array([0])], targets, 2).figure(class_names=["cat"])
