"""Top-k accuracy and AUROC, against scikit-learn and against counting pairs."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score, top_k_accuracy_score

from privfl.errors import ConfigError
from privfl.metrics.ranking import auroc, top_k_accuracy


def random_case(samples, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return scores, torch.randint(classes, (samples,), generator=generator)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_accuracy_is_scikit_learns(k):
    scores, targets = random_case(60, 8)
    expected = top_k_accuracy_score(targets.numpy(), scores.numpy(), k=k, labels=range(8))
    assert top_k_accuracy(scores, targets, k) == pytest.approx(expected)


def test_top_1_is_accuracy_and_all_classes_are_always_enough():
    scores, targets = random_case(60, 8)
    assert top_k_accuracy(scores, targets, 1) == pytest.approx(float((scores.argmax(1) == targets).double().mean()))
    assert top_k_accuracy(scores, targets, 8) == top_k_accuracy(scores, targets, 100) == 1


def test_equal_scores_give_a_constant_model_no_more_than_its_k_classes():
    assert top_k_accuracy(torch.zeros(10, 5), torch.arange(5).repeat(2), 2) == pytest.approx(0.4)


def area_by_pairs(scores, positive):
    """P(a positive scores above a negative), ties count half: what the area is."""
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, p in zip(scores.tolist(), positive.tolist(), strict=True)
        for b, q in zip(scores.tolist(), positive.tolist(), strict=True)
        if p and not q
    ]
    return sum(pairs) / len(pairs)


def test_the_area_counts_ordered_pairs_with_ties_as_half():
    scores = torch.tensor([0.1, 0.4, 0.4, 0.8, 0.2, 0.4])
    targets = torch.tensor([0, 0, 1, 1, 1, 0])
    assert auroc(scores, targets) == pytest.approx(area_by_pairs(scores, targets == 1))


def test_several_classes_are_averaged_one_against_the_rest():
    scores, targets = random_case(80, 4)
    probabilities = scores.softmax(1)
    expected = roc_auc_score(targets.numpy(), probabilities.numpy(), multi_class="ovr", average="macro")
    assert auroc(probabilities, targets) == pytest.approx(expected)


def test_classes_that_a_client_does_not_have_are_left_out():
    scores, _ = random_case(30, 10)
    targets = torch.tensor([3, 7] * 15)
    expected = (area_by_pairs(scores[:, 3], targets == 3) + area_by_pairs(scores[:, 7], targets == 7)) / 2
    assert auroc(scores, targets) == pytest.approx(expected)


def test_a_single_class_has_no_curve():
    assert math.isnan(auroc(torch.rand(5, 3, generator=torch.Generator().manual_seed(0)), torch.ones(5)))
    assert math.isnan(auroc(torch.arange(4.0), torch.ones(4)))


@pytest.mark.parametrize("metric", [top_k_accuracy, auroc])
@pytest.mark.parametrize(
    ("scores", "targets"),
    [
        (torch.zeros(0, 3), torch.zeros(0)),
        (torch.zeros(4, 3), torch.zeros(5)),
        (torch.full((2, 3), math.nan), torch.zeros(2)),
    ],
)
def test_what_cannot_be_ranked_is_refused(metric, scores, targets):
    with pytest.raises(ConfigError, match="give finite scores"):
        metric(scores, targets)


def test_a_top_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="k is 0"):
        top_k_accuracy(torch.zeros(1, 3), torch.zeros(1), 0)
