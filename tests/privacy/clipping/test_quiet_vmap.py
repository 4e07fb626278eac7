"""Operators that are slow under vmap do not make PyTorch warn from privfl's own calls, and do from a user's."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.privacy.clipping.quiet_vmap import vmap

SLOW = "There is a performance drop"
ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


def divergence(network, inputs, targets):
    return F.kl_div(F.log_softmax(network(inputs), 1), F.one_hot(targets, 2).float(), reduction="none").sum(1)


class Attending(nn.Module):
    """Six numbers as a sequence of six tokens that attend to each other."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, rows):
        tokens = rows[..., None].expand(-1, -1, 4)
        return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))


def taken(one):
    return torch.take(one, torch.tensor([0, 1]))


def told(call):
    """What ``call`` made PyTorch say of speed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if SLOW in str(one.message)]


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda: nn.Linear(6, 2), divergence),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 2)), None),
        (Attending, None),
    ],
)
def test_dp_sgd_of_operators_without_batching_rules_says_nothing_of_speed(model, loss, engine):
    def run():
        task = pf.Task.from_arrays(ROWS, np.arange(40) % 2, partition=pf.IID(clients=4), model=model, loss=loss)
        privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))
        execution = pf.Execution(device="cpu", engine=engine, workers=2)
        pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=privacy, execution=execution)

    assert told(run) == []


def test_what_users_call_themselves_warns_before_and_after():
    values = torch.rand(3, 4)
    assert len(told(lambda: torch.func.vmap(taken)(values))) == 1
    assert told(lambda: vmap(taken)(values)) == []
    with pytest.raises(ZeroDivisionError):
        vmap(lambda one: 1 / 0)(values)
    assert len(told(lambda: torch.func.vmap(taken)(values))) == 1
    assert torch.equal(vmap(taken)(values), torch.stack([taken(row) for row in values]))
