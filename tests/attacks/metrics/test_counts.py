"""Inferred label counts are scored by rows, labels and distance."""

import pytest

from attacks.metrics.counts import exact_match, l1_error, multiset_accuracy
from privfl.errors import ConfigError


def test_counts_are_scored_by_rows_labels_and_distance():
    estimated, true = [[2, 0, 2], [1, 3, 0]], [[2, 0, 2], [2, 1, 1]]
    assert exact_match(estimated, true).value == 0.5
    assert multiset_accuracy(estimated, true).value == pytest.approx((1 + 0.5) / 2)
    assert l1_error(estimated, true).value == pytest.approx(2)


@pytest.mark.parametrize("true", [[[0, 0]], [[1, 2, 3]], [[-1, 2]]])
def test_counts_that_cannot_be_compared_are_refused(true):
    with pytest.raises(ConfigError, match="give equally many, each row with a label"):
        exact_match([[0, 0]], true)
