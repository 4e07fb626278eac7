"""The metrics of several labels against scikit-learn and by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss, roc_auc_score

from privfl.metrics.multi_label import micro_f1, multi_label

GENERATOR = torch.Generator().manual_seed(0)
TARGETS = torch.randint(2, (60, 4), generator=GENERATOR).float()
LOGITS = TARGETS + torch.randn(60, 4, generator=GENERATOR)


def test_they_are_those_of_scikit_learn():
    found, truth, scores = multi_label(LOGITS, TARGETS), TARGETS.int().numpy(), LOGITS.double().numpy()
    probabilities = 1 / (1 + np.exp(-scores))
    areas = [roc_auc_score(truth[:, label], scores[:, label]) for label in range(4)]
    assert found["test_loss"] == pytest.approx(np.mean([log_loss(truth[:, k], probabilities[:, k]) for k in range(4)]))
    assert found["test_micro_f1"] == micro_f1(LOGITS, TARGETS) == f1_score(truth, scores > 0, average="micro")
    assert found["test_macro_f1"] == f1_score(truth, scores > 0, average="macro")
    assert found["test_subset_accuracy"] == pytest.approx(((scores > 0) == truth).all(1).mean())
    assert [found[f"test_auroc[{label}]"] for label in range(4)] == pytest.approx(areas)
    assert found["test_auroc"] == pytest.approx(np.mean(areas))


def test_a_label_that_all_rows_have_has_no_curve_and_the_mean_leaves_it_out():
    targets = TARGETS.clone()
    targets[:, 1] = 1
    found = multi_label(LOGITS, targets)
    assert math.isnan(found["test_auroc[1]"])
    assert found["test_auroc"] == pytest.approx(np.mean([found[f"test_auroc[{label}]"] for label in (0, 2, 3)]))
    assert math.isnan(multi_label(LOGITS[:, :2], torch.ones(60, 2))["test_auroc"])


def test_many_labels_have_no_curves_of_their_own():
    found = multi_label(LOGITS.repeat(1, 6), TARGETS.repeat(1, 6))
    assert "test_auroc" in found
    assert not any(name.startswith("test_auroc[") for name in found)


def test_a_model_that_has_diverged_finds_nothing():
    found = multi_label(LOGITS * torch.nan, TARGETS)
    assert found["test_micro_f1"] == 0
    assert math.isnan(found["test_loss"])
    assert math.isnan(found["test_auroc"])
