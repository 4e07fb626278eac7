"""Every check of the fuzzer sees a defect that no other one sees; without it that defect would pass."""

from itertools import count, islice

import pytest

from audits.fuzz.drawing import draw
from audits.fuzz.exact import check
from tests.claims.planted.catalogue import INSIDE
from tests.claims.planted.inside import changed

ALONE = {
    "leak": "a divisor from the private batch",
    "sensitivity": "clipping factors × 1.0003",
    "another client": "float64 for all, if one client asks",
    "uncharged": "a ledger that counts one release less",
    "deviation": "noise sized by the update",
    "noise used twice": "the same noise in every step",
    "noise is not as stated": "half the noise",
    "coins are not as stated": "draws that hold all rows",
    "too little noise": "half a share of noise",
    "statement": "caveats that tell sizes",
    "fixed key": "fixed keys that nobody is told of",
    "one world": "a refusal that depends on data",
}


@pytest.mark.parametrize("kind", ALONE)
def test_a_check_is_alone_in_seeing_a_defect(kind):
    changes, like = INSIDE[ALONE[kind]]
    seen = []
    for tried in islice((one for one in (draw(7, number) for number in count()) if like(one)), 60):
        assert check(tried).status != "broken"
        with changed(changes):
            seen.append({one.kind for one in check(tried).violations})
        if seen[-1] == {kind}:
            return
    raise AssertionError(f"seen as {seen}")
