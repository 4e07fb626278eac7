"""What is kept comes back as it was, and goes with its owner."""

import numpy as np
import pytest

from privfl.privacy.secagg.spool import Spool


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
def test_vectors_come_back_by_their_clients_in_any_order(word):
    random = np.random.default_rng(0)
    vectors = {member: random.integers(0, 1 << 32, 1000).astype(word) for member in (7, 0, 3)}
    spool = Spool()
    for member, vector in vectors.items():
        spool.keep(member, vector)
    for member in (3, 7, 0, 3):
        assert np.array_equal(spool.take(member, np.zeros(1000, word)), vectors[member])
    spool.close()
    with pytest.raises((KeyError, ValueError)):
        spool.take(3, np.zeros(1000, word))
