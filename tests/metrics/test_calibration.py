"""ECE and MCE: check 11 of SuPerFed's specification, and the definition written out sample by sample."""

import math

import numpy as np
import pytest
import torch

from privfl.errors import ConfigError
from privfl.metrics.calibration import (
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)


def sure_of(confidences, classes=4, predicted=0):
    """Probabilities whose largest entry is class ``predicted`` with these confidences."""
    values = torch.tensor(confidences, dtype=torch.float64)
    rest = ((1 - values) / (classes - 1))[:, None].expand(-1, classes).clone()
    rest[:, predicted] = values
    return rest


def random_case(samples, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(classes, (samples,), generator=generator)


def by_definition(probabilities, targets, bins):
    """Equations (13) and (14), one sample and one bin at a time."""
    gaps, share = [], []
    for m in range(1, bins + 1):
        inside = [
            (float(row.max()), int(row.argmax()) == int(target))
            for row, target in zip(probabilities, targets, strict=True)
            if (m - 1) / bins < float(row.max()) <= m / bins
        ]
        if inside:
            confidence, right = zip(*inside, strict=True)
            gaps.append(abs(np.mean(right) - np.mean(confidence)))
            share.append(len(inside) / len(targets))
    return float(np.dot(gaps, share)), max(gaps)


@pytest.mark.parametrize(("samples", "classes", "bins"), [(200, 10, 15), (37, 3, 15), (50, 2, 4), (1, 5, 15)])
def test_both_errors_follow_their_definition(samples, classes, bins):
    probabilities, targets = random_case(samples, classes, seed=samples)
    expected, largest = by_definition(probabilities, targets, bins)
    assert expected_calibration_error(probabilities, targets, bins) == pytest.approx(expected, abs=1e-12)
    assert maximum_calibration_error(probabilities, targets, bins) == pytest.approx(largest, abs=1e-12)


def test_certain_and_right_has_no_error_and_certain_and_wrong_has_all_of_it():
    certain = sure_of([1.0] * 7)
    right, wrong = torch.zeros(7, dtype=torch.long), torch.ones(7, dtype=torch.long)
    for metric in (expected_calibration_error, maximum_calibration_error):
        assert metric(certain, right) == 0
        assert metric(certain, wrong) == 1


def test_empty_bins_count_for_nothing():
    probabilities = sure_of([0.9, 0.9, 0.9, 0.9])
    targets = torch.tensor([0, 0, 0, 1])
    assert expected_calibration_error(probabilities, targets) == pytest.approx(0.15)
    assert maximum_calibration_error(probabilities, targets) == pytest.approx(0.15)
    found = reliability(probabilities, targets)
    assert found.counts.count_nonzero() == 1
    assert found.gaps.count_nonzero() == 1


def test_a_confidence_on_an_edge_belongs_to_the_bin_below_it():
    found = reliability(sure_of([0.75, 0.7500001]), torch.tensor([0, 0]), bins=4)
    assert found.counts.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_ece_is_at_most_mce_and_at_most_the_mean_over_batches(seed):
    probabilities, targets = random_case(83, 6, seed)
    expected = expected_calibration_error(probabilities, targets)
    assert expected <= maximum_calibration_error(probabilities, targets) + 1e-12 <= 1 + 1e-12


def test_a_perfectly_calibrated_model_has_a_small_error():
    """Targets drawn from the probabilities themselves: per bin the gap has mean 0 and deviation below 1/(2√n_m), and
    Σ n_m/n·|gap| has mean at most √(bins/n)/2 = 0.0137. It moves by at most 1/n with a sample, so it exceeds its mean
    by 0.04 with a probability below exp(−2·20000·0.04²) = 2e-28."""
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.randn(20_000, 3, generator=generator, dtype=torch.float64).softmax(1)
    targets = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    assert expected_calibration_error(probabilities, targets) < math.sqrt(15 / 20_000) / 2 + 0.04


@pytest.mark.parametrize(
    ("probabilities", "targets", "sentence"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "N ≥ 1"),
        (torch.full((2, 2), 0.5), torch.zeros(3, dtype=torch.long), "targets \\(3,\\)"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "soft-max"),
        (torch.tensor([[math.nan, 0.5]]), torch.tensor([0]), "soft-max"),
    ],
)
def test_what_is_no_probability_is_refused(probabilities, targets, sentence):
    with pytest.raises(ConfigError, match=sentence):
        expected_calibration_error(probabilities, targets)


def test_fewer_than_one_bin_is_refused():
    with pytest.raises(ConfigError, match="bins is 0"):
        expected_calibration_error(torch.tensor([[1.0]]), torch.tensor([0]), bins=0)
