"""All mechanisms of one run: what may be handed over as what."""

import pytest

import privfl as pf
from privfl.errors import ConfigError


def test_a_chain_is_any_iterable_of_mechanisms():
    chain = (pf.Clip(1.0), pf.GaussianNoise(1.0))
    assert pf.Privacy(update=list(chain)).update == pf.Privacy(update=iter(chain)).update == chain


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (pf.Clip(1.0), r"privacy.update is Clip itself; put it into a list: update=\[Clip\(max_norm=1.0\)\]"),
        (pf.Clip, "give a list of mechanisms"),
        ("clip", r"privacy.update is 'clip'; give a list of mechanisms, such as \[Clip\(1.0\)\]"),
        (None, "privacy.update is None; give a list"),
        (1.0, "privacy.update is 1.0; give a list"),
        ([pf.Clip], "holds the class Clip"),
        (["clip"], "'clip', which is no mechanism"),
        ([pf.DPSGD(noise_multiplier=1.0)], "holds DPSGD, which is no mechanism for uploads; give it as training"),
        ([pf.LaplaceSize(epsilon=1.0, bound=100)], "holds LaplaceSize, .*; give it as size"),
        ([pf.NoisyTotal("loss", 1.0, 1.0)], "holds NoisyTotal, .*; give it as statistics"),
    ],
)
def test_what_is_no_chain_is_refused_in_one_sentence_with_the_mend(update, says):
    with pytest.raises(ConfigError, match=says):
        pf.Privacy(update=update)
