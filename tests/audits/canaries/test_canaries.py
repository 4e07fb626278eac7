"""Canaries are apart where no other row can meet their weights, which is looked at and not taken for granted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import privfl as pf
from audits.canaries.canaries import (
    TokenWeights,
    check_apart,
    interference,
    mixed_coins,
    noise_canaries,
    rare_token_canaries,
    rare_token_task,
)
from privfl.errors import ConfigError


def task_of(rows, vocabulary=9, model=None):
    rows = np.asarray(rows)
    return pf.Task.from_arrays(
        rows, np.arange(len(rows)) % 2, clients=np.zeros(len(rows), dtype=int), test=(rows, np.arange(len(rows)) % 2),
        vocabulary=vocabulary, model=model or TokenWeights.of(vocabulary),
    )  # fmt: skip


class Wider(TokenWeights):
    """A bias for all tokens."""

    def __init__(self):
        super().__init__(9)
        self.bias = torch.nn.Parameter(torch.zeros(2))

    def forward(self, tokens):
        return super().forward(tokens) + self.bias


def test_rare_tokens_of_their_own_task_are_apart():
    for clients in (1, 3):
        task = rare_token_task(8, clients=clients, rows=2)
        canaries = rare_token_canaries(task, 8)
        assert canaries.apart
        assert interference(task, canaries) == ""
        assert rare_token_canaries(task_of([[0], [7], [8]]), 6).apart


def test_tokens_that_clients_hold_are_not_apart():
    task = task_of([[0], [5], [8]])
    canaries = rare_token_canaries(task, 6)
    assert not canaries.apart
    assert interference(task, canaries) == "the token 5 of one of them is in other rows, too"
    assert rare_token_canaries(task, 4).apart


def test_canaries_of_one_token_are_not_apart():
    task = task_of([[0, 0]])
    canaries = noise_canaries(task, 4)
    tokens = torch.tensor([[1, 1], [2, 3], [4, 5], [6, 7]])
    assert interference(task, replace(canaries, inputs=tokens)) == ""
    assert interference(task, replace(canaries, inputs=tokens.clamp(max=5))) == "the token 5 is in several of them"


@pytest.mark.parametrize("model", [Wider, lambda: torch.nn.Sequential(torch.nn.Embedding(9, 2), Mean())])
def test_any_other_network_may_share_weights(model):
    """Also one that shares none where training begins, such as one of zeros behind zeros."""
    task = task_of([[0]], model=model)
    canaries = rare_token_canaries(task, 6)
    assert not canaries.apart
    assert "may share weights between tokens" in interference(task, canaries)


class Mean(torch.nn.Module):
    def forward(self, rows):
        return rows.mean(1)


def test_what_is_said_of_canaries_is_looked_at_on_the_task_that_they_are_planted_in():
    canaries = rare_token_canaries(rare_token_task(6), 6)
    with pytest.raises(ConfigError, match=r"are said to be apart, and the token 3 .*; plant rare_token_canaries in a"):
        check_apart(task_of([[3]]), canaries)
    check_apart(task_of([[3]]), replace(canaries, apart=False))


def test_no_other_coins_are_advised_where_all_fell_on_one_side():
    """Of two coins that are tossed until they differ, one is known by the other."""
    task = rare_token_task(2)
    seeds = [seed for seed in range(20) if len(set(rare_token_canaries(task, 2).coins(seed).tolist())) == 1]
    with pytest.raises(ConfigError, match=r"all 2 canaries are in one group; plant more canaries$"):
        mixed_coins(rare_token_canaries(task, 2), seeds[0])


def test_no_canaries_are_refused():
    for make in (noise_canaries, rare_token_canaries):
        with pytest.raises(ConfigError, match="0 canaries audit nothing"):
            make(rare_token_task(2), 0)
