"""LLG finds all labels where its paper says so, and fails where the specification says that it must."""

import numpy as np
import pytest
import torch
from torch import nn

from attacks.labels.llg import Calibration, calibrate, llg, own_impact, row_sums
from attacks.observations.label_counts import on_simplex
from privfl.errors import ConfigError
from privfl.models.base import Network
from tests.attacks.labelled_batches import CLASSES, batch, counts, drawn_labels, halves, head_gradient, untrained

DATA = halves()


def sums_of(network, inputs, targets, log_prior=None):
    return row_sums(head_gradient(network, inputs, targets, log_prior)[0])


def auxiliary(size):
    """Auxiliary examples of one class, for LLG+."""

    def inputs(label, repeat):
        return batch([label] * size, DATA.public, 1000 * repeat + label)[0]

    return inputs


def overlap(found, targets):
    return sum(min(a, b) for a, b in zip(found.tolist(), counts(targets), strict=True)) / len(targets)


def test_one_label_is_found_on_every_untrained_network():
    for seed in range(15):
        network = untrained(seed)
        inputs, targets = batch([seed % CLASSES], DATA.private, seed)
        assert llg(sums_of(network, inputs, targets), 1).tolist() == counts(targets)


@pytest.mark.parametrize("size", [2, 5])
def test_distinct_labels_are_found_by_their_signs(size):
    """As long as 1/B is above every mean prediction: present classes are negative, absent ones are not."""
    for seed in range(10):
        labels = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(seed))[:size].tolist()
        inputs, targets = batch(labels, DATA.private, seed)
        assert llg(sums_of(untrained(seed), inputs, targets), size).tolist() == counts(targets)


def test_one_of_every_class_is_more_than_the_signs_can_tell():
    """At B = C the share 1/B of a class is what an untrained network predicts for it, and the signs are chance."""
    wrong = 0
    for seed in range(10):
        inputs, targets = batch(list(range(CLASSES)), DATA.private, seed)
        wrong += llg(sums_of(untrained(seed), inputs, targets), CLASSES).tolist() != counts(targets)
    assert wrong == 10


@pytest.mark.parametrize("size", [1, 4, 8])
def test_with_auxiliary_data_repeated_labels_are_found_too(size):
    """LLG+ on 10 untrained networks with labels from a Dirichlet draw: every count, every time."""
    for seed in range(10):
        network = untrained(seed)
        inputs, targets = batch(drawn_labels(size, seed, 0.5), DATA.private, seed)
        calibration = calibrate(network, auxiliary(size), CLASSES)
        assert llg(sums_of(network, inputs, targets), size, calibration).tolist() == counts(targets)


def test_dummy_inputs_calibrate_better_than_nothing():
    """LLG* with batches of ones against LLG, labels at random, 32 a batch."""
    plain, dummies = 0.0, 0.0
    for seed in range(10):
        network = untrained(seed)
        inputs, targets = batch(drawn_labels(32, seed), DATA.private, seed)
        sums = sums_of(network, inputs, targets)
        ones = calibrate(network, lambda label, repeat: torch.ones(32, *DATA.public[0].shape[1:]), CLASSES, repeats=1)
        plain += overlap(llg(sums, 32), targets) / 10
        dummies += overlap(llg(sums, 32, ones), targets) / 10
    assert dummies > plain + 0.2


def test_a_class_is_negative_only_if_it_is_present():
    """Behind a ReLU, for any weights: absent classes have p ≥ 0 times features ≥ 0."""
    for seed in range(20):
        inputs, targets = batch(drawn_labels(16, seed, 0.3), DATA.private, seed)
        sums = sums_of(untrained(seed), inputs, targets)
        assert all(count > 0 for value, count in zip(sums.tolist(), counts(targets), strict=True) if value < 0)


def test_features_without_activation_break_the_sign():
    """ReBaFL's network for CIFAR-10 has features of either sign; then half of all single labels are lost."""
    found = []
    for seed in range(20):
        network = untrained(seed, "rebafl-cifar", (3, 32, 32))
        inputs = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        target = torch.tensor([seed % CLASSES])
        found.append(llg(sums_of(network, inputs, target), 1).tolist() == counts(target))
    assert 0 < sum(found) < 20


def test_a_prior_shift_turns_the_sign_of_a_present_class():
    """The specification's numbers: zero logits, prior (½, ½, 0, …) smoothed by ε = 0.01, 8 and 24 samples."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Softmax(1))
    network = Network(body, nn.Linear(4, CLASSES)).double()
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0] * 8 + [1] * 24)
    log_prior = torch.log(0.99 * torch.tensor([0.5, 0.5] + [0.0] * 8, dtype=torch.float64) + 0.001)
    plain = sums_of(network, inputs, targets)
    shifted = sums_of(network, inputs, targets, log_prior)
    assert plain[:2].tolist() == pytest.approx([-0.150, -0.650], abs=5e-4)
    assert shifted[:2].tolist() == pytest.approx([0.246, -0.254], abs=5e-4)


@pytest.mark.parametrize(("size", "least_loss"), [(8, 0.1), (32, 0.1)])
def test_under_a_client_prior_llg_loses_labels_that_it_has_without(size, least_loss):
    """The specification saw .95 → .70 at B = 8 and .78 → .56 at B = 32 (Dirichlet(.5) priors, R-BSM at ε = .01)."""
    plain, shifted = 0.0, 0.0
    for seed in range(10):
        random = np.random.default_rng(seed)
        shares = random.dirichlet([0.5] * CLASSES)
        labels = random.choice(CLASSES, size, p=shares).tolist()
        inputs, targets = batch(labels, DATA.private, seed)
        log_prior = torch.log(0.99 * torch.from_numpy(shares) + 0.001).float()
        plain += overlap(llg(sums_of(untrained(seed), inputs, targets), size), targets) / 10
        shifted += overlap(llg(sums_of(untrained(seed), inputs, targets, log_prior), size), targets) / 10
    assert shifted < plain - least_loss


def twin(sums, size, impact, offsets):
    """The two stages as the paper words them, one label after the other."""
    left, labels = list(sums), []
    for place, value in enumerate(sums):
        if value < 0:
            labels.append(place)
    left = [value - offset for value, offset in zip(left, offsets, strict=True)]
    for place in labels:
        left[place] -= impact
    while len(labels) < size:
        place = left.index(min(left))
        labels.append(place)
        left[place] -= impact
    return [labels.count(place) for place in range(len(sums))]


def test_both_stages_do_what_the_paper_words():
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        shares = on_simplex(0.3 * torch.randn(6, generator=generator))
        sums = (1 / 6 - shares).double() + 0.01 * torch.randn(6, generator=generator)
        impact = own_impact(sums, 12)
        assert impact == pytest.approx(sum(v for v in sums.tolist() if v < 0) / 12 * (1 + 1 / 6))
        assert llg(sums, 12).tolist() == twin(sums.tolist(), 12, impact, [0.0] * 6)
        offsets = 0.1 + 0.05 * torch.rand(6, generator=generator, dtype=torch.float64)
        assert llg(sums, 12, Calibration(-0.09, offsets)).tolist() == twin(sums.tolist(), 12, -0.09, offsets.tolist())


def test_constant_features_make_impact_and_offsets_what_they_mean():
    """With features that add up to 1 and p = 1/C: m = −(1 − 1/C²)/B and s_c = 1/C, in closed form."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Softmax(1))
    network = Network(body, nn.Linear(4, 5)).double()
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    found = calibrate(network, lambda label, repeat: torch.ones(8, 3, dtype=torch.float64), 5, repeats=2)
    assert found.impact == pytest.approx(-(1 - 1 / 25) / 8)
    assert found.offsets.tolist() == pytest.approx([0.2] * 5)


def test_several_local_iterations_are_one_larger_batch():
    """At a learning rate of 0 the mean gradient of K batches of B is the gradient of one batch of K·B."""
    network = untrained(4)
    inputs, targets = batch(drawn_labels(24, 4, 0.5), DATA.private, 4)
    parts = [sums_of(network, inputs[i : i + 8], targets[i : i + 8]) for i in (0, 8, 16)]
    mean = torch.stack(parts).mean(0)
    assert torch.allclose(mean, sums_of(network, inputs, targets), atol=1e-6)
    calibration = calibrate(network, auxiliary(8), CLASSES)
    found = llg(mean, 8, calibration, iterations=3)
    assert int(found.sum()) == 24
    assert overlap(found, targets) > 0.95
    assert llg(mean, 8, iterations=3).tolist() == llg(mean, 24).tolist()


def test_more_negative_classes_than_labels_are_cut_to_the_smallest():
    assert llg(torch.tensor([-0.1, -0.5, -0.3, 0.2]), 2).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: llg(torch.tensor([0.1, torch.nan]), 2), "finite"),
        (lambda: llg(torch.zeros(2, 2), 2), "row sums"),
        (lambda: llg(torch.zeros(3), 0), "batch_size"),
        (lambda: llg(torch.zeros(3), 1, iterations=0), "iterations"),
        (lambda: calibrate(untrained(0), auxiliary(2), 1), "classes"),
    ],
)
def test_impossible_requests_are_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()
