"""T_g, T_p, T_r and T_l against scikit-learn, worked examples and the paper's own table."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support

from privfl.metrics.personalisation import harmonic_mean, macro_f1, personal_scores, personalisation

TABLE = json.loads((Path(__file__).parents[1] / "oracles" / "grpfed.json").read_text())["table_1"]
HALF_A_DIGIT = 0.0005


def test_macro_f1_averages_over_the_classes_that_occur_in_targets_or_predictions():
    targets = torch.tensor([0, 0, 1, 1, 7])
    predictions = torch.tensor([0, 1, 1, 1, 3])
    by_class = {0: 2 * 1 * 0.5 / 1.5, 1: 2 * (2 / 3) * 1 / (2 / 3 + 1), 3: 0.0, 7: 0.0}
    assert macro_f1(predictions, targets) == pytest.approx(sum(by_class.values()) / 4, rel=1e-12)


def test_a_patient_with_one_class_scores_one_where_all_is_right():
    assert macro_f1(torch.zeros(9, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)) == 1


def test_logits_are_as_good_as_the_classes_they_point_to():
    draws = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(200, 5, generator=draws), torch.randint(5, (200,), generator=draws)
    assert macro_f1(logits, targets) == macro_f1(logits.argmax(1), targets)
    precision, recall, _, _ = precision_recall_fscore_support(targets, logits.argmax(1), zero_division=0)
    assert macro_f1(logits, targets) == pytest.approx(np.mean(2 * precision * recall / (precision + recall)), rel=1e-12)


def test_the_harmonic_mean_of_two_zeros_is_zero():
    first, second = torch.tensor([0.0, 0.0, 0.5, 1.0]), torch.tensor([0.0, 1.0, 0.5, 0.5])
    torch.testing.assert_close(harmonic_mean(first, second), torch.tensor([0, 0, 0.5, 2 / 3]))


def test_the_mean_of_harmonic_means_never_exceeds_the_harmonic_mean_of_means():
    draws = np.random.default_rng(0)
    for _ in range(500):
        clients = int(draws.integers(1, 12))
        scores = personal_scores(*torch.from_numpy(draws.beta(0.4, 0.6, size=(2, clients))))
        assert scores["T_l"] <= scores["T_l_of_means"] + 1e-12
    equal = personal_scores(torch.full((4,), 0.8), torch.full((4,), 0.2))
    assert equal["T_l"] == pytest.approx(equal["T_l_of_means"], rel=1e-6)


@pytest.mark.parametrize("dataset", ["mitbih", "cifar10"])
def test_all_rows_of_the_papers_table_lie_below_the_harmonic_mean_of_its_means(dataset):
    for harmonic, personal, reach in (row[1:] for row in TABLE[dataset].values()):
        literal = personal_scores(torch.tensor([personal]), torch.tensor([reach]))["T_l_of_means"]
        assert harmonic <= literal + 2 * HALF_A_DIGIT
    gap = {name: row for name, row in TABLE["mitbih"].items()}["FedAvg"]
    literal = personal_scores(torch.tensor([gap[2]]), torch.tensor([gap[3]]))["T_l_of_means"]
    assert literal == pytest.approx(0.449, abs=HALF_A_DIGIT)  # reported: 0.407


def test_a_federation_is_scored_client_by_client():
    targets = torch.tensor([0, 1, 0, 1])
    own = [(torch.tensor([0, 0]), torch.tensor([0, 0])), (torch.tensor([1, 0]), torch.tensor([1, 1]))]
    everywhere = [torch.tensor([0, 0, 0, 0]), torch.tensor([0, 1, 0, 1])]
    scores = personalisation(own, everywhere, targets, torch.tensor([1, 0, 1, 0]))
    second = (2 / 3 + 0) / 2
    assert scores["T_g"] == 0
    assert scores["T_p"] == pytest.approx((1 + second) / 2, rel=1e-12)
    assert scores["T_r"] == pytest.approx((1 / 3 + 1) / 2, rel=1e-12)
    assert scores["T_l"] == pytest.approx((0.5 + 2 * second / (1 + second)) / 2, rel=1e-12)
    assert "T_g" not in personalisation(own, everywhere, targets)


def test_for_a_global_model_reach_and_global_score_are_one_number():
    draws = torch.Generator().manual_seed(1)
    targets, predicted = torch.randint(4, (2, 60), generator=draws)
    own = [(predicted[:30], targets[:30]), (predicted[30:], targets[30:])]
    scores = personalisation(own, [predicted, predicted], targets, predicted)
    assert scores["T_r"] == scores["T_g"]
