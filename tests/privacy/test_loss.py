"""What a loss says of itself: that it couples the rows of a batch, or that logits or features are all it asks for."""

from dataclasses import dataclass
from functools import partial, wraps

import pytest
import torch

from privfl.errors import ConfigError
from privfl.federation.losses import Huber, cross_entropy
from privfl.privacy.loss import (
    asks_for_features,
    asks_for_logits,
    coupled,
    gradient_at_logits,
    gradients_at_features,
    is_coupled,
    of_features,
    of_logits,
    refuse_coupled,
)


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


@of_features
def pulled(loss, network, inputs, targets, centre):
    features = network.features(inputs)
    logits = network.head(features)
    return loss(lambda _: logits, inputs, targets) + (features - centre).square().sum(1)


class Pulling:
    @of_features
    def terms(self, network, inputs, targets):
        return network.features(inputs).square().sum(1)


class Pushing(Pulling):
    def terms(self, network, inputs, targets):
        return -network(inputs).sum(1)


def test_a_loss_is_of_features_where_it_is_marked_and_holds_at_most_losses_of_logits():
    assert asks_for_features(partial(pulled, cross_entropy, centre=torch.ones(3)))
    assert asks_for_features(Pulling().terms)
    assert not asks_for_features(Pushing().terms)
    assert not asks_for_features(partial(pulled, ordinary))
    assert not asks_for_features(cross_entropy)
    assert not asks_for_features(None)
    assert not asks_for_features(wraps(pulled)(ordinary))


def test_gradients_at_features_and_head_need_no_body():
    torch.manual_seed(0)
    features, targets, head = torch.randn(5, 3), torch.arange(5) % 2, torch.nn.Linear(3, 2)
    loss = partial(pulled, cross_entropy, centre=torch.ones(3))
    found = gradients_at_features(loss, features, head, torch.zeros(5, 7), targets)
    wrong = torch.softmax(head(features), 1) - torch.nn.functional.one_hot(targets, 2)
    expected = (wrong @ head.weight + 2 * (features - 1), wrong.T @ features, wrong.sum(0))
    torch.testing.assert_close(found, expected)
    assert not features.requires_grad
    unused = gradients_at_features(Pulling().terms, features, head, torch.zeros(5, 7), targets)
    torch.testing.assert_close(unused, (2 * features, torch.zeros(2, 3), torch.zeros(2)))


@of_features
def shifted(network, inputs, targets):
    return network.features(inputs + 1).sum(1)


@of_features
def whole(network, inputs, targets):
    return network(inputs).sum(1)


@of_features
def weighed(network, inputs, targets):
    return network.features(inputs).sum(1) + network.body.weight.square().sum()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (shifted, "the loss shifted is marked as one of features and asks the network for those of other inputs"),
        (whole, "the loss whole is marked as one of features and calls the network"),
        (weighed, "the loss weighed is marked as one of features and asks the network for its 'body'"),
    ],
)
def test_a_loss_with_the_mark_of_features_that_asks_for_more_is_found_out(loss, message):
    with pytest.raises(ConfigError, match=message):
        gradients_at_features(loss, torch.zeros(2, 3), torch.nn.Linear(3, 2), torch.zeros(2, 1), torch.zeros(2))
