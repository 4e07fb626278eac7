"""What a loss says of itself: that it couples the rows of a batch, or that logits are all it asks for."""

from dataclasses import dataclass
from functools import partial, wraps

import pytest
import torch

from privfl.errors import ConfigError
from privfl.federation.losses import Huber, cross_entropy
from privfl.privacy.loss import asks_for_logits, coupled, gradient_at_logits, is_coupled, of_logits, refuse_coupled


def ordinary(network, inputs, targets):
    return (network(inputs) - targets).square()


def centred(network, inputs, targets, present):
    errors = network(inputs) - targets
    return (errors - errors[present].mean()).square()


def test_a_loss_is_coupled_where_it_is_marked_and_nowhere_else():
    assert not is_coupled(ordinary)
    assert is_coupled(coupled(centred))


def test_only_a_coupled_loss_is_refused_and_by_its_name():
    refuse_coupled(ordinary)
    with pytest.raises(ConfigError, match="the loss centred couples the samples of a batch"):
        refuse_coupled(coupled(centred))


@of_logits
def scaled(loss, network, inputs, targets, factor):
    return loss(lambda given: factor * network(given), inputs, targets)


@of_logits
def twice(network, inputs, targets):
    return network(inputs + 1).sum(1)


def test_a_loss_is_of_logits_where_it_and_all_that_it_holds_are_marked():
    assert asks_for_logits(cross_entropy)
    assert asks_for_logits(Huber(delta=0.5))
    assert asks_for_logits(partial(scaled, cross_entropy, factor=torch.ones(3)))
    assert not asks_for_logits(ordinary)
    assert not asks_for_logits(partial(scaled, ordinary))
    assert not asks_for_logits(partial(scaled, loss=torch.nn.Linear(2, 2)))
    assert not asks_for_logits(lambda *given: cross_entropy(*given))


def test_a_copy_of_the_mark_and_a_subclass_do_not_count():
    @wraps(cross_entropy)
    def own(network, inputs, targets):
        return network.features(inputs).sum(1)

    @dataclass(frozen=True)
    class Wider(Huber):
        pass

    assert own.of_logits is cross_entropy
    assert not asks_for_logits(own)
    assert not asks_for_logits(Wider())


def test_the_gradient_at_the_logits_needs_no_network():
    logits, targets = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3
    factor = torch.tensor([1.0, 2.0, 0.5])
    found = gradient_at_logits(partial(scaled, cross_entropy, factor=factor), logits, torch.zeros(5, 2), targets)
    expected = factor * (torch.softmax(factor * logits, 1) - torch.nn.functional.one_hot(targets, 3))
    torch.testing.assert_close(found, expected)
    assert not logits.requires_grad


def test_a_loss_with_the_mark_that_asks_for_other_logits_is_found_out():
    with pytest.raises(ConfigError, match="the loss twice is marked as one of logits and asks the network for those"):
        gradient_at_logits(twice, torch.zeros(2, 3), torch.zeros(2, 1), torch.zeros(2))
