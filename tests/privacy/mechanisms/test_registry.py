"""Every mechanism of an upload's chain can be named in a file."""

import privfl as pf
from privfl.privacy.mechanisms.registry import UPDATE_MECHANISMS, update_mechanisms
from privfl.schema import choose, plain


def test_a_mechanism_is_read_by_the_name_that_it_is_written_with():
    assert update_mechanisms() == UPDATE_MECHANISMS
    for mechanism in (pf.Clip(2.0), pf.GaussianNoise(1.5, at="client"), pf.SecureSum(threshold=0.6)):
        told = plain(mechanism, {pf.Clip | pf.GaussianNoise | pf.SecureSum: update_mechanisms()})
        assert choose(update_mechanisms(), {k: v for k, v in told.items() if v is not None}, "update") == mechanism
