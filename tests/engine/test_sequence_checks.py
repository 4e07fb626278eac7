"""A sequence whose gradients are not autograd's is found out before a run, whether they are added up or clipped."""

from privfl.engine.sequence_checks import clips_otherwise, differs_from_autograd
from tests.engine.test_private_sequences import IMAGES, LABELS, workspace


class Doubling:
    """A sequence that says twice what arrived at one layer."""

    def __init__(self, own):
        self.own = own.own
        self.inner = own

    def serves(self, loss):
        return self.inner.serves(loss)

    def arrivals(self, inputs, targets):
        first, *others = self.inner.arrivals(inputs, targets)
        yield first[0], first[1], 2 * first[2]
        yield from others


def test_a_sequence_that_says_anything_else_is_found_out():
    space, found = workspace("many channels")
    assert clips_otherwise(Doubling(found), space.clipper, space.dropout, IMAGES, LABELS)


def test_masks_are_drawn_from_where_they_were_drawn_before():
    space, found = workspace("pooled")
    streams = [layer.generator for layer in space.dropout]
    assert not differs_from_autograd(found, space.dropout, IMAGES, LABELS)
    assert not clips_otherwise(found, space.clipper, space.dropout, IMAGES, LABELS)
    assert [layer.generator for layer in space.dropout] == streams
