"""All mechanisms of one run: what may be handed over as what."""

import pytest

import privfl as pf
from privfl.errors import ConfigError


def test_a_chain_is_a_list_or_a_tuple_of_mechanisms():
    chain = (pf.Clip(1.0), pf.GaussianNoise(1.0))
    assert pf.Privacy(update=list(chain)).update == pf.Privacy(update=chain).update == chain


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (pf.Clip(1.0), r"Privacy's update is Clip\(…\); give a list, such as \[Clip\(…\)\]"),
        (pf.Clip, "Privacy's update is the class Clip; give a list, each entry of it a Mechanism"),
        ("clip", "Privacy's update is 'clip'; give a list, each entry of it a Mechanism"),
        (None, "Privacy's update is None; give a list"),
        (1.0, "Privacy's update is 1.0; give a list"),
        ([pf.Clip], r"Privacy's update holds the class Clip; give an object of it, Clip\(…\)"),
        (["clip"], r"Privacy's update holds 'clip'; give an object, such as Clip\(…\)"),
        ([pf.DPSGD(noise_multiplier=1.0)], "holds DPSGD.*, which has a place of its own; give it as training"),
        ([pf.LaplaceSize(epsilon=1.0, bound=100)], "holds LaplaceSize.*; give it as size"),
        ([pf.NoisyTotal("loss", 1.0, 1.0)], "holds NoisyTotal.*; give it as statistics"),
    ],
)
def test_what_is_no_chain_is_refused_in_one_sentence_with_the_mend(update, says):
    with pytest.raises(ConfigError, match=says):
        pf.Privacy(update=update)


def test_what_was_changed_after_it_was_made_is_refused():
    clip = pf.Clip(1.0)
    object.__setattr__(clip, "at_client", lambda update, noise, round: update * 1000)
    with pytest.raises(ConfigError, match="this Clip was changed after it was made"):
        pf.Privacy(update=[clip])
