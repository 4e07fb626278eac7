"""Perplexity and accuracy of next tokens, against counting token by token."""

import math

import pytest
import torch

from privfl.metrics.next_token import next_token, perplexity, token_accuracy, token_sums

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 4, 7, generator=GENERATOR)
TARGETS = torch.randint(7, (5, 4), generator=GENERATOR)
TARGETS[0, 2:], TARGETS[3] = -100, -100


def test_every_token_that_counts_counts_alike():
    found = next_token(token_sums(LOGITS, TARGETS), TARGETS)
    nats, hits = [], []
    for row in range(5):
        for position in range(4):
            if TARGETS[row, position] >= 0:
                probabilities = LOGITS[row, position].double().softmax(0)
                nats.append(-math.log(float(probabilities[TARGETS[row, position]])))
                hits.append(int(probabilities.argmax()) == int(TARGETS[row, position]))
    assert len(nats) == 14
    assert found["test_loss"] == pytest.approx(sum(nats) / 14, rel=1e-6)
    assert found["test_perplexity"] == pytest.approx(math.exp(sum(nats) / 14), rel=1e-6)
    assert found["test_accuracy"] == sum(hits) / 14


def test_pieces_of_the_rows_give_the_same_as_all_at_once():
    whole = token_sums(LOGITS, TARGETS)
    pieces = torch.cat([token_sums(LOGITS[:2], TARGETS[:2]), token_sums(LOGITS[2:], TARGETS[2:])])
    torch.testing.assert_close(pieces, whole)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity():
    sums = token_sums(torch.zeros_like(LOGITS), TARGETS)
    assert perplexity(sums, TARGETS) == pytest.approx(7)
    assert 0 <= token_accuracy(sums, TARGETS) <= 1


def test_no_token_has_no_perplexity_and_a_hopeless_model_an_infinite_one():
    assert math.isnan(perplexity(token_sums(LOGITS[3:4], TARGETS[3:4]), TARGETS[3:4]))
    wrong = torch.zeros(1, 1, 2, dtype=torch.float64)
    wrong[0, 0, 0] = 1e4
    assert perplexity(token_sums(wrong, torch.ones(1, 1, dtype=torch.int64)), TARGETS) == math.inf
