"""Prototypes and feature augmentation: checks 5 to 7 of ReBaFL's specification, and a loop over single rows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privfl.algorithms.label_skew.prototypes import (
    aggregated,
    augment,
    augmented_prior,
    class_features,
    cyclic_targets,
    expected_augmented_terms,
    means,
    overridden,
    split_total,
    translated,
    withhold,
)
from privfl.models import Network

CLASSES, WIDTH = 5, 4
ALL = torch.ones(CLASSES, dtype=torch.bool)
POLICIES = ("keep", "drop", "cycle_available")


def tensor(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def identity():
    """A network whose features are its inputs."""
    return Network(nn.Identity(), nn.Linear(WIDTH, CLASSES, dtype=torch.float64))


def federation(clients=3, samples=20):
    """Inputs and labels of some clients; class 4 occurs nowhere."""
    rng = np.random.default_rng(5)
    return [
        (torch.from_numpy(rng.normal(size=(samples, WIDTH))), torch.from_numpy(rng.integers(0, 4, samples)))
        for _ in range(clients)
    ]


def totals(inputs, targets, **options):
    rows = class_features(identity(), inputs, targets, classes=CLASSES, **options)
    return split_total(rows.sum(0), options.get("feature_norm", math.inf))


def from_clients(parts, n_min=1, memory="none", before=None):
    sums, counts = map(sum, zip(*(withhold(*totals(*part), n_min) for part in parts), strict=True))
    prototypes, known = before or (torch.zeros(CLASSES, WIDTH).double(), ~ALL)
    return aggregated(prototypes, known, sums, counts, n_min=n_min, memory=memory)


def test_a_prototype_is_the_mean_feature_of_its_class():
    ((inputs, targets),) = federation(1)
    sums, counts = totals(inputs, targets)
    for label in range(4):
        torch.testing.assert_close(means(sums, counts)[label], inputs[targets == label].mean(0), rtol=0, atol=1e-14)
    assert counts.tolist() == np.bincount(targets.numpy(), minlength=CLASSES).tolist()


def test_with_a_feature_norm_a_sample_weighs_at_most_root_2_and_means_are_those_of_clipped_features():
    ((inputs, targets),) = federation(1)
    rows = class_features(identity(), 3 * inputs, targets, classes=CLASSES, feature_norm=2.0)
    norms = rows.flatten(1).norm(dim=1)
    assert float(norms.max()) == pytest.approx(math.sqrt(2), rel=1e-12)
    assert float(norms.min()) > 1
    sums, counts = split_total(rows.sum(0), 2.0)
    for label in range(4):
        mine = 3 * inputs[targets == label]
        clipped = torch.stack([h * min(1.0, 2.0 / float(h.norm())) for h in mine])
        torch.testing.assert_close(means(sums, counts)[label], clipped.mean(0), rtol=0, atol=1e-14)


def test_the_servers_prototypes_are_those_of_the_pooled_data_in_any_order():
    parts = federation()
    pooled = tuple(map(torch.cat, zip(*parts, strict=True)))
    expected, known = from_clients([pooled])
    for order in ((0, 1, 2), (2, 0, 1)):
        found, also = from_clients([parts[i] for i in order])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        assert torch.equal(known, also)
    two = [tuple(map(torch.cat, zip(*parts[:2], strict=True))), parts[2]]
    torch.testing.assert_close(from_clients(two)[0], expected, rtol=0, atol=1e-14)
    weighted = sum(len(t[t == 1]) * x[t == 1].mean(0) for x, t in parts) / sum(len(t[t == 1]) for _, t in parts)
    torch.testing.assert_close(expected[1], weighted, rtol=0, atol=1e-14)
    assert known.tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("memory", ["none", "last"])
def test_a_class_that_nobody_sent_vanishes_or_stays_what_it_was(memory):
    before = (tensor(CLASSES, WIDTH), torch.tensor([False, True, True, True, True]))
    found, known = from_clients(federation(), memory=memory, before=before)
    assert bool(known[4]) is (memory == "last")
    assert torch.equal(found[4], before[0][4] if memory == "last" else torch.zeros(WIDTH).double())
    torch.testing.assert_close(found[:4], from_clients(federation())[0][:4], rtol=0, atol=0)


def test_below_the_minimum_count_neither_sum_nor_count_is_sent():
    inputs, targets = tensor(9, WIDTH), torch.tensor([0] * 5 + [1] * 4)
    sums, counts = withhold(*totals(inputs, targets), 5)
    assert counts.tolist() == [5, 0, 0, 0, 0]
    assert torch.equal(sums[1:], torch.zeros(4, WIDTH).double())
    torch.testing.assert_close(sums[0], inputs[:5].sum(0))
    assert from_clients([(inputs, targets)], n_min=5)[1].tolist() == [True, False, False, False, False]


def test_noise_where_no_class_is_makes_no_prototype():
    sums, counts = 3 * tensor(CLASSES, WIDTH), torch.tensor([-2.0, 0.3, 4.9, 5.1, 60.0]).double()
    prototypes, known = aggregated(sums, ALL, *withhold(sums, counts, 5), n_min=5, memory="none")
    assert known.tolist() == [False, False, False, True, True]
    torch.testing.assert_close(prototypes[4], sums[4] / 60)
    assert torch.equal(prototypes[:3], torch.zeros(3, WIDTH).double())


def test_a_client_overrides_the_prototypes_of_its_own_classes_only():
    ((inputs, targets),) = federation(1)
    received, known = tensor(CLASSES, WIDTH, seed=8), torch.tensor([True, False, True, True, False])
    keep = (targets == 0) | (targets == 1)
    found, also = overridden(received, known, *totals(inputs[keep], targets[keep]))
    assert also.tolist() == [True, True, True, True, False]
    torch.testing.assert_close(found[1], inputs[targets == 1].mean(0), rtol=0, atol=1e-14)
    assert torch.equal(found[2:], received[2:])


def test_translating_to_the_own_class_or_without_residual():
    h, prototypes = tensor(WIDTH), tensor(2, WIDTH, seed=1)
    own = translated(h, prototypes[0], prototypes[0], 0.3)
    torch.testing.assert_close(own, prototypes[0] + 0.3 * (h - prototypes[0]), rtol=0, atol=0)
    torch.testing.assert_close(translated(h, prototypes[0], prototypes[0], 1.0), h, rtol=0, atol=1e-15)
    assert torch.equal(translated(h, prototypes[0], prototypes[1], 0.0), prototypes[1])


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_translated_class_has_the_target_mean_and_the_scaled_covariance(scale):
    h, target = tensor(30, WIDTH), tensor(WIDTH, seed=1)
    moved = translated(h, h.mean(0), target, scale)
    torch.testing.assert_close(moved.mean(0), target, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.cov(moved.T), scale**2 * torch.cov(h.T), rtol=0, atol=1e-14)


def test_targets_go_round_all_classes_or_round_the_known_ones():
    known, places = torch.tensor([False, True, False, True, True]), torch.arange(7)
    assert cyclic_targets(places, known, "keep").tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert cyclic_targets(places, known, "drop").tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert cyclic_targets(places, known, "cycle_available").tolist() == [1, 3, 4, 1, 3, 4, 1]


def one_by_one(features, targets, prototypes, known, scale, missing):
    """Rows of (feature, label) by the specification's sentences, one at a time."""
    rows = []
    available = [label for label in range(CLASSES) if known[label]]
    for place, (h, label) in enumerate(zip(features, targets.tolist(), strict=True)):
        target = available[place % len(available)] if missing == "cycle_available" else place % CLASSES
        if known[target] and known[label]:
            rows.append((prototypes[target] + scale * (h - prototypes[label]), target))
        elif missing != "drop":
            rows.append((h, label))
    return rows


@pytest.mark.parametrize("missing", POLICIES)
@pytest.mark.parametrize("absent", [(), (1,), (0, 3)], ids=["all known", "one absent", "two absent"])
def test_a_batch_is_augmented_as_row_by_row(missing, absent):
    features, prototypes = tensor(12, WIDTH), tensor(CLASSES, WIDTH, seed=1)
    targets = torch.from_numpy(np.random.default_rng(2).integers(0, CLASSES, 12))
    known = torch.tensor([label not in absent for label in range(CLASSES)])
    present = torch.arange(12) < 10
    found = augment(features, targets, prototypes, known, present, scale=0.7, missing=missing)
    expected = one_by_one(features[:10], targets[:10], prototypes, known, 0.7, missing)
    assert found.labels[found.used].tolist() == [label for _, label in expected]
    torch.testing.assert_close(found.features[found.used], torch.stack([h for h, _ in expected]), rtol=0, atol=1e-15)
    prior = augmented_prior(found, CLASSES, 0.1)
    counts = np.bincount([label for _, label in expected], minlength=CLASSES)
    np.testing.assert_allclose(prior.numpy(), 0.9 * counts / len(expected) + 0.1 / CLASSES, rtol=0, atol=1e-15)


def test_with_all_prototypes_and_a_multiple_of_the_classes_the_recalculated_prior_is_uniform():
    targets = torch.from_numpy(np.random.default_rng(2).integers(0, 2, 50))
    for missing in POLICIES:
        found = augment(
            tensor(50, WIDTH), targets, tensor(CLASSES, WIDTH), ALL, targets >= 0, scale=1.0, missing=missing
        )
        torch.testing.assert_close(
            augmented_prior(found, CLASSES, 0.01), torch.full((CLASSES,), 0.2, dtype=torch.float64), rtol=0, atol=1e-15
        )


def test_no_gradient_flows_into_the_features():
    features = tensor(10, WIDTH).requires_grad_()
    targets = torch.arange(10) % CLASSES
    found = augment(features, targets, tensor(CLASSES, WIDTH), ALL, targets >= 0, scale=1.0, missing="keep")
    assert not found.features.requires_grad
    head = identity().head
    terms = expected_augmented_terms(head, features, targets, tensor(CLASSES, WIDTH), ALL, scale=1.0, missing="keep")
    by_features, by_head = torch.autograd.grad(terms.sum(), (features, head.weight), allow_unused=True)
    assert by_features is None
    assert float(by_head.abs().max()) > 0


@pytest.mark.parametrize("missing", POLICIES)
@pytest.mark.parametrize("absent", [(), (1,), (0, 3), (0, 1, 2, 3, 4)])
def test_the_per_sample_form_is_the_mean_over_all_places(missing, absent):
    head, prototypes = identity().head, tensor(CLASSES, WIDTH, seed=1)
    features, targets = tensor(12, WIDTH), torch.from_numpy(np.random.default_rng(2).integers(0, CLASSES, 12))
    known = torch.tensor([label not in absent for label in range(CLASSES)])
    found = expected_augmented_terms(head, features, targets, prototypes, known, scale=0.7, missing=missing)
    places = math.lcm(*range(1, CLASSES + 1))
    for row in range(12):
        repeated, labels = features[row].expand(places, -1), targets[row].expand(places)
        rows = augment(repeated, labels, prototypes, known, labels >= 0, scale=0.7, missing=missing)
        terms = F.cross_entropy(head(rows.features), rows.labels, reduction="none")[rows.used]
        expected = float(terms.detach().mean()) if len(terms) else 0.0
        assert float(found[row].detach()) == pytest.approx(expected, abs=1e-13)


def test_a_head_learns_classes_that_it_never_saw_from_prototypes_of_a_gaussian_mixture():
    """With shared covariance and exact prototypes, translated features are samples of the other classes."""
    rng = np.random.default_rng(4)
    centres = 3 * torch.from_numpy(np.linalg.qr(rng.normal(size=(8, 8)))[0][:CLASSES])
    root = torch.from_numpy(rng.normal(size=(8, 8)) / 4)

    def sample(labels):
        return centres[labels] + torch.from_numpy(rng.normal(size=(len(labels), 8))) @ root

    seen = torch.arange(400) % 2
    features = sample(seen)
    unseen = 2 + torch.arange(600) % 3
    test = sample(unseen)
    accuracies = {}
    for on in (False, True):
        head = nn.Linear(8, CLASSES, dtype=torch.float64)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
        for _ in range(300):
            loss = F.cross_entropy(head(features), seen)
            if on:
                rows = augment(features, seen, centres, ALL, seen >= 0, scale=1.0, missing="keep")
                loss = loss + F.cross_entropy(head(rows.features), rows.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracies[on] = float((head(test).argmax(1) == unseen).double().mean())
    assert accuracies[False] < 1 / CLASSES
    assert accuracies[True] > 0.9
