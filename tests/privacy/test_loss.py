"""A loss that couples the rows of a batch says so, and DP-SGD refuses it by its name."""

import pytest

from privfl.errors import ConfigError
from privfl.privacy.loss import coupled, is_coupled, refuse_coupled


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
