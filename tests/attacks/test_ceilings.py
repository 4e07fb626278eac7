"""The strongest attack on one noisy step reaches the ceiling of the statement and does not pass it."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from attacks.metrics.distinguishing import advantage_ceiling
from privfl.models.base import Network

PAIRS = 600
DELTA = 0.3


def network():
    """Two classes, two inputs, no bias: examples on different inputs have orthogonal gradients."""
    built = Network(nn.Flatten(), nn.Linear(2, 2, bias=False))
    nn.init.zeros_(built.head.weight)
    return built


@cache
def observed(noise_multiplier):
    """Scores of the examples of 600 clients that hold one, and of as many that lack it, and the run's statement.

    Everybody holds an example on the first input; every second client one on the second input too, which is the
    candidate. The score is the update along the candidate's clipped gradient: the likelihood ratio's only statistic.
    """
    held = np.tile(np.array([[10.0, 0.0], [0.0, 10.0], [10.0, 0.0]], dtype=np.float32), (PAIRS, 1))
    owners = np.repeat(np.arange(2 * PAIRS), np.tile([2, 1], PAIRS))
    task = pf.Task.from_arrays(
        held, np.zeros(3 * PAIRS, dtype=np.int64), clients=owners, test=(held[:2], np.array([0, 1])), model=network
    )
    mechanism = pf.DPSGD(noise_multiplier=noise_multiplier, max_grad_norm=1.0, sample_rate=1.0)
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=1,
        training=pf.LocalTraining(learning_rate=1.0, batch_size=1, steps=1),
        privacy=pf.Privacy(training=mechanism, target_delta=DELTA, noise_key=11),
        record=("server",),
        execution=pf.Execution(workers=1),
    )
    seen = run.transcript[0]
    weight = torch.zeros(2, 2)
    gradient = torch.tensor([[0.0, -0.5], [0.0, 0.5]]) * 10
    direction = (gradient / gradient.norm()).flatten()
    assert torch.equal(seen.broadcast["parameters"], weight.flatten())
    scores = torch.stack([-seen.uploads[client]["update"] @ direction for client in range(2 * PAIRS)])
    return scores[0::2], scores[1::2], run.statement.cell("sample", "server").epsilon


def advantage(members, others):
    """TPR − FPR at the fixed threshold ½, halfway between the two means, and five standard errors of it."""
    tpr, fpr = (float((scores > 0.5).double().mean()) for scores in (members, others))
    return tpr - fpr, 5 * math.sqrt((tpr * (1 - tpr) + fpr * (1 - fpr)) / PAIRS)


def test_the_matched_filter_reaches_the_ceiling_and_does_not_pass_it():
    """At σ = 1 the best attack has TPR − FPR = 2Φ(½) − 1 = 0.383, and at δ = 0.3 the claim allows hardly more."""
    members, others, epsilon = observed(1.0)
    gained, error = advantage(members, others)
    ceiling = advantage_ceiling(epsilon, DELTA)
    assert gained == pytest.approx(math.erf(0.5 / math.sqrt(2)), abs=error)
    assert gained - error <= ceiling
    assert 0.383 <= ceiling < 0.42


def test_half_the_noise_would_be_noticed():
    """The same claim, and updates of a run with half of its noise."""
    epsilon = observed(1.0)[2]
    gained, error = advantage(*observed(0.5)[:2])
    assert gained - error > advantage_ceiling(epsilon, DELTA)
