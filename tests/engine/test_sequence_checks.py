"""A sequence whose gradients are not autograd's is found out before a run, whether they are added up or clipped."""

import math

import pytest

from privfl.engine.sequence_checks import clips_otherwise, differs_from_autocast, differs_from_autograd
from privfl.engine.sequences import sequence_of
from privfl.federation.losses import cross_entropy
from tests.engine.test_private_sequences import IMAGES, LABELS, workspace


class Doubling:
    """A sequence that says twice what arrived at one layer."""

    def __init__(self, own):
        self.own = own.own
        self.inner = own

    def serves(self, loss):
        return self.inner.serves(loss)

    def arrivals(self, loss, inputs, targets):
        (layer, [(given, back)]), *others = self.inner.arrivals(loss, inputs, targets)
        yield layer, [(given, 2 * back)]
        yield from others


def test_a_sequence_that_says_anything_else_is_found_out():
    space, found = workspace("many channels")
    assert clips_otherwise(Doubling(found), cross_entropy, space.clipper, space.dropout, IMAGES, LABELS)


def test_masks_are_drawn_from_where_they_were_drawn_before():
    space, found = workspace("pooled")
    streams = [layer.generator for layer in space.dropout]
    assert not differs_from_autograd(found, cross_entropy, space.dropout, IMAGES, LABELS)
    assert not clips_otherwise(found, cross_entropy, space.clipper, space.dropout, IMAGES, LABELS)
    assert [layer.generator for layer in space.dropout] == streams


class Scaled:
    """A sequence that writes ``factor`` times the gradient of the parameters whose number is ``place``."""

    def __init__(self, inner, place, factor):
        self.own, self.inner, self.place, self.factor = inner.own, inner, place, factor

    def write_gradient(self, loss, inputs, targets, divisor):
        self.inner.write_gradient(loss, inputs, targets, divisor)
        self.own.gradient_views[self.place].mul_(self.factor)


@pytest.mark.parametrize("factor", [2.0, 0.0, -1.0, math.nan])
def test_a_gradient_in_bfloat16_is_found_out_if_one_layer_s_is_another(factor):
    space, _ = workspace("many channels")
    found = sequence_of(space.own, cross_entropy, IMAGES, narrow=True)
    inputs, targets = IMAGES.repeat(3, 1, 1, 1), LABELS.repeat(3)
    assert not differs_from_autocast(found, cross_entropy, space.dropout, inputs, targets)
    for place in range(len(space.own.parameters)):
        assert differs_from_autocast(Scaled(found, place, factor), cross_entropy, space.dropout, inputs, targets)
