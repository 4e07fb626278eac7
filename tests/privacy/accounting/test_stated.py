"""Whose claim counts: the class that makes it, of what that class does."""

from dataclasses import dataclass

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.accounting.stated import check_exact, loose_attributes, stating_class, unstated
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.privacy.sizes.mechanism import SizeMechanism, size_release


@dataclass(frozen=True)
class Renamed(pf.LaplaceSize):
    """The same under another name."""


@dataclass(frozen=True)
class Bare(pf.LaplaceSize):
    """States a parent's ε, and answers with the truth."""

    def randomise(self, truths, stream):
        return truths.astype(float)


@dataclass(frozen=True)
class Modest(pf.LaplaceSize):
    """Adds a parent's noise, and states a hundredth of its ε to whoever asks for one example."""

    def sample_cost(self):
        return pf.LaplaceSize(self.epsilon / 100, self.bound).client_cost()


@dataclass(frozen=True)
class Cheap(pf.RandomizedResponse):
    """Prices its answers elsewhere than where it says what they cost."""

    def costs(self):
        return pf.RandomizedResponse(0.001, self.bound).costs()


@dataclass(frozen=True)
class Wider(pf.LaplaceSize):
    """States an ε of its own, for both units."""

    def client_cost(self):
        return pf.LaplaceSize(self.epsilon / 2, self.bound).client_cost()

    def sample_cost(self):
        return pf.LaplaceSize(self.epsilon / 2, self.bound).sample_cost()


@dataclass(frozen=True)
class Half(pf.LaplaceSize):
    """States an ε of its own for clients, and forgets that examples are told another one."""

    def client_cost(self):
        return pf.LaplaceSize(self.epsilon / 2, self.bound).client_cost()


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_every_shipped_size_mechanism_states_its_own_cost(name):
    mechanism = SIZE_MECHANISMS[name](1.0, 100)
    assert unstated(mechanism, "client_cost", SizeMechanism) == ""
    assert size_release(mechanism) == mechanism.costs()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Bare, "changes randomise of LaplaceSize"),
        (Modest, "changes sample_cost of LaplaceSize"),
        (Cheap, "changes costs of RandomizedResponse"),
        (Half, "changes client_cost of LaplaceSize and states no sample_cost of its own"),
    ],
)
def test_what_a_subclass_changes_costs_everything_until_it_says_what_it_costs(kind, changes):
    release = size_release(kind(1.0, 100))
    for _, cost in release.costs:
        assert cost.event is None
        assert changes in cost.reason
    assert {cell for cell, _ in release.costs} == {cell for cell, _ in pf.LaplaceSize(1.0, 100).costs().costs}


def test_what_changes_nothing_or_states_its_cost_anew_is_taken_at_its_word():
    assert size_release(Renamed(1.0, 100)) == size_release(pf.LaplaceSize(1.0, 100))
    assert size_release(Wider(1.0, 100)) == size_release(pf.LaplaceSize(0.5, 100))
    assert stating_class(Wider(1.0, 100), "client_cost") is Wider
    assert stating_class(Renamed(1.0, 100), "client_cost") is pf.LaplaceSize


def test_only_the_very_class_as_it_was_made_is_exact():
    plain = pf.DPSGD(noise_multiplier=1.0)
    check_exact("it", plain, pf.DPSGD)

    @dataclass(frozen=True)
    class Loud(pf.DPSGD):
        """Says that its noise is ten times what it is."""

    with pytest.raises(ConfigError, match=r"it is a Loud, and nobody has accounted .* give a DPSGD\(…\) itself"):
        check_exact("it", Loud(noise_multiplier=1.0), pf.DPSGD)
    object.__setattr__(plain, "event", lambda noise, rate: None)
    assert loose_attributes(plain) == {"event"}
    with pytest.raises(ConfigError, match="this DPSGD was changed after it was made: it has 'event'"):
        check_exact("it", plain, pf.DPSGD)
