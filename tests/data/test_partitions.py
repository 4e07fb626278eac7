"""Partitions: nobody is empty, nothing is dealt twice, and the laws of the papers hold.

Statistical tests fix their seeds; bands are 5 standard errors or wider (false-alarm rate at most 6e-7 per comparison).
"""

import time

import numpy as np
import pytest

from privfl.data.partitions import (
    IID,
    PARTITIONS,
    Clustered,
    Dirichlet,
    LabelSorted,
    LogNormal,
    LongTail,
    Natural,
    Partition,
    Pathological,
    describe,
)
from privfl.data.partitions.base import proportional_sizes
from privfl.errors import ConfigError, DataError, PrivflError

CLASSES = 10
TARGETS = np.random.default_rng(7).permutation(np.repeat(np.arange(CLASSES), 300))
OWNERS = np.random.default_rng(8).integers(100, 140, len(TARGETS))

EVERY: list[Partition] = [
    IID(clients=30),
    Dirichlet(clients=30, alpha=0.3),
    Dirichlet(clients=30, alpha=0.01, min_size=5),
    Dirichlet(clients=30, alpha=0.3, skew="label-balanced"),
    Dirichlet(clients=30, alpha=0.3, skew="size"),
    Dirichlet(clients=30, alpha=0.3, skew="both", size_alpha=2.0),
    Pathological(clients=30),
    Pathological(clients=30, reuse="forbid", iid_fraction=0.2),
    Clustered(),
    LabelSorted(clients=30),
    LabelSorted(block_size=70),
    LabelSorted(clients=30, blocks_per_client=2),
    LogNormal(sigma=2.5, mean_size=2),
    LogNormal(sigma=2.5, clients=30),
    LongTail(clients=30),
    LongTail(clients=30, size_mode="geometric"),
    LongTail(clients=30, size_mode="longtail", class_mode="zipf"),
    Natural(),
]


def split(partition: Partition, seed: int = 0, targets: np.ndarray = TARGETS) -> list[np.ndarray]:
    return partition.split(targets, CLASSES, np.random.default_rng(seed), OWNERS)


def sizes_of(parts: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts])


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_every_partition_deals_ascending_indices_without_repeats_to_non_empty_clients(partition):
    parts = split(partition)
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert (np.diff(part) > 0).all()
        assert part[0] >= 0
        assert part[-1] < len(TARGETS)
    if getattr(partition, "reuse", "forbid") == "forbid":
        assert len(np.unique(np.concatenate(parts))) == sizes_of(parts).sum()
    if (clients := getattr(partition, "clients", None)) is not None:
        assert len(parts) == clients


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_a_split_depends_on_the_generator_and_on_nothing_else(partition):
    first, again, other = split(partition, 3), split(partition, 3), split(partition, 4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    if not isinstance(partition, Natural):
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=False))


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_registered_name_makes_a_partition_that_splits(name):
    settings = {"iid": {"clients": 5}, "dirichlet": {"clients": 5, "alpha": 1.0}, "log-normal": {"clients": 5}}
    settings |= {"pathological": {"clients": 10}, "label-sorted": {"clients": 5}, "long-tail": {"clients": 5}}
    settings |= {"given-sizes": {"sizes": (5, 6, 7)}}
    assert split(PARTITIONS[name](**settings.get(name, {})))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: IID(clients=0), "clients is 0; give a whole number of at least 1"),
        (lambda: IID(clients=True), "clients is True; give a whole number"),
        (lambda: IID(clients=2.5), "clients is 2.5; give a whole number"),
        (lambda: Dirichlet(clients=3, alpha=0), "alpha is 0; give a finite number above 0"),
        (lambda: Dirichlet(clients=3, alpha=-1.0), "alpha is -1.0; give a finite number above 0"),
        (lambda: Dirichlet(clients=3, alpha=float("nan")), "alpha is nan; give a number"),
        (lambda: Dirichlet(clients=3, alpha=1, skew="lable"), "did you mean 'label'?"),
        (lambda: Dirichlet(clients=3, alpha=1, size_alpha=1), "skew 'label' draws no sizes"),
        (lambda: Pathological(clients=3, iid_fraction=1.5), "give a finite number of at least 0 and at most 1"),
        (lambda: Pathological(clients=3, reuse="never"), "reuse is 'never'; choose 'wrap' or 'forbid'"),
        (lambda: Clustered(classes_per_client=2), "classes_per_client is 2; give a list, such as [2]"),
        (lambda: Clustered(clusters=3), "classes_per_client has 5 entries for 3 clusters"),
        (lambda: LabelSorted(), "give exactly one of the two"),
        (lambda: LabelSorted(clients=3, block_size=3), "give exactly one of the two"),
        (lambda: LogNormal(), "give exactly one of the two"),
        (lambda: LogNormal(mean_size=0.0), "mean_size is 0.0; give a finite number above 0"),
        (lambda: LongTail(clients=3, rho=-0.1), "rho (size_mode 'zipf') is -0.1"),
        (lambda: LongTail(clients=3, rho=1.1, size_mode="longtail"), "of at least 0 and at most 1"),
        (lambda: LongTail(clients=3, tau=1.1), "tau (class_mode 'geometric') is 1.1"),
        (lambda: Natural(min_size=0), "min_size is 0"),
        (lambda: split(IID(clients=3001)), "3001 clients with at least 1 examples each need 3001 examples"),
        (lambda: split(Dirichlet(clients=301, alpha=1, min_size=10)), "need 3010 examples and the dataset has 3000"),
        (lambda: split(LongTail(clients=151)), "151 clients with at least 20 examples each"),
        (lambda: split(LabelSorted(block_size=3001)), "lower clients or min_size"),
        (lambda: split(LogNormal(clients=3001)), "3001 clients"),
        (lambda: split(Pathological(clients=10, classes_per_client=11)), "the dataset has 10 classes; lower it"),
        (lambda: split(Pathological(clients=2000)), "a client has 1 class-bound examples"),
        (lambda: split(Pathological(clients=4)), "asks for 375 samples of class"),
        (lambda: split(Pathological(clients=40, samples_per_client=100, iid_fraction=1)), "need 4000 samples"),
        (lambda: split(Natural(min_size=1000)), "the largest natural client has"),
        (
            lambda: IID(2).split(TARGETS, 9, np.random.default_rng(0)),
            "targets range from 0 to 9; number them from 0 to 8",
        ),
        (lambda: IID(2).split(TARGETS * 1.0, 10, np.random.default_rng(0)), "type float64"),
        (lambda: IID(2).split(TARGETS[:0], 10, np.random.default_rng(0)), "at least one example"),
        (lambda: Natural().split(TARGETS, 10, np.random.default_rng(0)), "needs client ids and this dataset has none"),
        (lambda: Natural().split(TARGETS, 10, np.random.default_rng(0), OWNERS[:5]), "client ids have shape (5,)"),
    ],
)
def test_an_impossible_setting_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(PrivflError) as refusal:
        make()
    assert isinstance(refusal.value, ConfigError | DataError)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_iid_sizes_differ_by_at_most_one_and_use_every_sample():
    sizes = sizes_of(split(IID(clients=7)))
    assert sizes.tolist() == [429] * 4 + [428] * 3


def test_iid_deals_a_hundred_thousand_clients_in_under_five_seconds():
    targets = np.zeros(2_000_000, dtype=np.int64)
    start = time.process_time()
    parts = IID(clients=100_000).split(targets, 1, np.random.default_rng(0))
    assert time.process_time() - start < 5
    assert (sizes_of(parts) == 20).all()


def test_natural_clients_come_in_the_order_of_their_ids_and_small_ones_are_left_out():
    owners = np.array([7, 3, 7, 3, 9, 7])
    targets = np.zeros(6, dtype=np.int64)
    rng = np.random.default_rng(0)
    assert [p.tolist() for p in Natural().split(targets, 1, rng, owners)] == [[1, 3], [0, 2, 5], [4]]
    assert [p.tolist() for p in Natural(min_size=2).split(targets, 1, rng, owners)] == [[1, 3], [0, 2, 5]]


def test_label_sorted_blocks_are_consecutive_in_class_order_and_drop_the_remainder():
    parts = split(LabelSorted(block_size=70))
    assert sizes_of(parts).tolist() == [70] * 42
    assert np.concatenate([np.sort(TARGETS[part]) for part in parts]).tolist() == np.sort(TARGETS)[: 42 * 70].tolist()


def test_two_blocks_per_client_are_the_shards_of_mcmahan():
    parts = split(LabelSorted(clients=50, blocks_per_client=2))
    counts = describe(parts, TARGETS, CLASSES).counts
    assert (counts.sum(axis=1) == 60).all()
    assert set(np.unique(counts)) == {0, 30, 60}
    assert (counts > 0).sum(axis=1).max() == 2


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_label_shares_have_the_moments_of_the_dirichlet_law(alpha):
    """Var of one client's share of one class is (1/M)(1−1/M)/(Mα+1).

    400 draws of 10 independent classes; the band is 6 standard errors, estimated from the draws, and rounding's share.
    """
    clients, per_class, draws = 5, 2000, 400
    targets = np.repeat(np.arange(CLASSES), per_class)
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(draws):
        parts = Dirichlet(clients=clients, alpha=alpha).split(targets, CLASSES, rng)
        shares.append(describe(parts, targets, CLASSES).counts[0] / per_class)
    squares = (np.concatenate(shares) - 1 / clients) ** 2
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    error = squares.std() / np.sqrt(squares.size)
    assert abs(squares.mean() - expected) < 6 * error + 1e-4


def test_dirichlet_uses_every_sample_and_tops_up_to_the_minimum_for_tiny_alpha():
    for alpha in (1e-6, 0.01):
        for skew in ("label", "label-balanced", "size", "both"):
            sizes = sizes_of(split(Dirichlet(clients=100, alpha=alpha, skew=skew, min_size=10)))
            assert sizes.min() >= 10
            assert sizes.sum() == len(TARGETS)


def test_topping_up_takes_no_more_than_a_client_can_spare():
    """All clients must end at exactly the minimum when clients × minimum is all there is."""
    assert (sizes_of(split(Dirichlet(clients=100, alpha=0.05, min_size=30))) == 30).all()


def test_dirichlet_size_skew_leaves_labels_iid_and_label_balanced_leaves_sizes_equal():
    size = describe(split(Dirichlet(clients=10, alpha=0.5, skew="size")), TARGETS, CLASSES)
    label = describe(split(Dirichlet(clients=10, alpha=0.5, skew="label-balanced")), TARGETS, CLASSES)
    assert size.sizes.max() > 3 * size.sizes.min()
    assert size.distance_to_pool[size.sizes > 200].max() < 0.15
    assert (label.sizes == 300).all()
    assert label.distance_to_pool.mean() > 0.3


def test_balanced_dirichlet_follows_its_profiles_where_they_add_up_to_the_supply():
    """α = 50: demand per class has sd 52 of 3000, so bending costs a client about a hundredth of its samples."""
    targets = np.repeat(np.arange(CLASSES), 3000)
    partition = Dirichlet(clients=60, alpha=50.0, skew="label-balanced")
    parts = partition.split(targets, CLASSES, np.random.default_rng(5))
    profiles = partition.profiles(CLASSES, np.random.default_rng(5))
    assert describe(parts, targets, CLASSES, profiles).distance_to_profile.max() < 0.03


def test_large_alpha_is_nearly_iid_and_skew_grows_as_alpha_falls():
    distance = [
        describe(split(Dirichlet(clients=10, alpha=alpha)), TARGETS, CLASSES).distance_to_pool.mean()
        for alpha in (1e4, 10.0, 1.0, 0.1)
    ]
    assert distance[0] < 0.02
    assert distance == sorted(distance)


def test_log_normal_sizes_have_the_published_facts():
    """FedSampling's code for N = 104 000, mean 2, σ 2.5: medians over seeds and 5–95 % bands from the specification.

    Medians of 40 seeds sit well inside the bands of single draws, which hold 90 % of them: a median outside would
    need 20 of 40 draws beyond one band edge that 5 % of draws cross, probability < 1e-15.
    """
    targets = np.zeros(104_000, dtype=np.int64)
    facts = []
    for seed in range(40):
        parts = LogNormal(sigma=2.5, mean_size=2).split(targets, 1, np.random.default_rng(seed))
        sizes = np.sort(sizes_of(parts))[::-1]
        assert sizes.sum() == len(targets)
        top, above = sizes[: len(sizes) // 100].sum(), np.maximum(sizes - 99, 0).sum()
        facts.append([sizes.mean(), (sizes == 1).mean(), sizes[0], top / 104_000, above / 104_000])
    mean, single, largest, top_percent, clipped = np.median(facts, axis=0)
    assert 2.55 < mean < 3.00
    assert 0.83 < single < 0.85
    assert 1_100 < largest < 10_400
    assert 0.36 < top_percent < 0.46
    assert 0.12 < clipped < 0.26


@pytest.mark.parametrize(("sigma", "mean_size"), [(0.5, 2.0), (1.0, 0.3), (2.5, 12.5)])
def test_log_normal_sizes_are_those_of_a_loop_that_fills_one_client_after_the_other(sigma, mean_size):
    weights = np.random.default_rng(6).lognormal(0, sigma, len(TARGETS))
    scale = mean_size / np.mean([np.ceil(weight) for weight in weights])
    expected: list[int] = []
    while sum(expected) < len(TARGETS):
        expected.append(min(int(np.ceil(scale * weights[len(expected)])), len(TARGETS) - sum(expected)))
    assert sizes_of(split(LogNormal(sigma=sigma, mean_size=mean_size), 6)).tolist() == expected


def test_log_normal_with_a_number_of_clients_spreads_log_sizes_with_sigma():
    """1000 log-sizes with sd 0.8: the sample sd is within 5 s.e. = 5·0.8/√2000; sizes are large, rounding is mild."""
    targets = np.zeros(1_000_000, dtype=np.int64)
    sizes = sizes_of(LogNormal(sigma=0.8, clients=1000).split(targets, 1, np.random.default_rng(2)))
    assert len(sizes) == 1000
    assert sizes.sum() == 1_000_000
    assert abs(np.log(sizes).std() - 0.8) < 5 * 0.8 / np.sqrt(2000)
    equal = sizes_of(LogNormal(sigma=0, clients=1000).split(targets, 1, np.random.default_rng(2)))
    assert (equal == 1000).all()


def test_the_most_extreme_log_normal_still_leaves_nobody_empty():
    for settings in ({"clients": 100}, {"mean_size": 5.0}):
        sizes = sizes_of(split(LogNormal(sigma=100, **settings)))
        assert sizes.sum() == len(TARGETS)


@pytest.mark.parametrize("exhaust", [True, False])
def test_proportional_sizes_keep_order_minimum_and_total(exhaust):
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = np.sort(rng.lognormal(0, rng.uniform(0, 8), rng.integers(1, 40)))[::-1]
        minimum = int(rng.integers(1, 5))
        total = int(len(weights) * minimum + rng.integers(0, 1000))
        sizes = proportional_sizes(weights, total, minimum, exhaust=exhaust)
        assert sizes.min() >= minimum
        assert (np.diff(sizes) <= 0).all() or exhaust
        assert (sizes.sum() == total) if exhaust else (total - len(weights) < sizes.sum() <= total)
