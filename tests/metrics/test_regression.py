"""The metrics of a regression against their definitions."""

import math

import numpy as np
import pytest
import torch

from privfl.metrics.regression import mae, regression, rmse


def test_they_are_those_of_the_definitions_averaged_over_the_values():
    generator = torch.Generator().manual_seed(0)
    predictions, targets = (torch.randn(50, 3, generator=generator) for _ in range(2))
    found = regression(predictions, targets)
    errors = (predictions - targets).double().numpy()
    truth = targets.double().numpy()
    squares = (errors**2).mean(0)
    assert found["test_loss"] == pytest.approx(squares.mean())
    assert found["test_rmse"] == rmse(predictions, targets) == pytest.approx(np.sqrt(squares).mean())
    assert found["test_mae"] == mae(predictions, targets) == pytest.approx(np.abs(errors).mean())
    assert found["test_r2"] == pytest.approx((1 - squares / truth.var(0)).mean())


def test_the_mean_of_the_targets_explains_nothing_and_the_targets_all():
    targets = torch.arange(10.0)[:, None]
    assert regression(targets.mean().expand(10, 1), targets)["test_r2"] == pytest.approx(0)
    assert regression(targets, targets) == {"test_loss": 0, "test_rmse": 0, "test_mae": 0, "test_r2": 1}


def test_what_cannot_be_said_is_nan():
    targets = torch.ones(1, 1)
    assert math.isnan(regression(targets, targets)["test_r2"])
    assert all(math.isnan(value) for value in regression(targets * torch.inf, targets).values())
