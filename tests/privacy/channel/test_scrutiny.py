"""Noise from outside is looked at number by number: each has its own, enough of it, whatever the update is."""

import re

import pytest

from privfl.privacy.channel import scrutiny
from privfl.privacy.channel.own_noise import doubt
from tests.privacy.channel.own_noises import (
    AtClient,
    AtServer,
    ByTheUpdate,
    WhereSomethingIs,
    Whole,
    WithMemory,
    run_of,
)

LONG = 2**14
MISPLACED = {
    "not the last": r"adds no noise to 1 of \d+ numbers of an update of zeros",
    "loud or not": r"adds no noise to (325|8192) of \d+ numbers of an update of zeros",
    "loud or quiet": r"adds noise to (325|8192) of \d+ numbers that is far smaller than its cover",
    "five": r"adds noise to (645|16379) of \d+ numbers that is a multiple of another one's",
    "five, mixed": r"adds noise of fewer draws than an update has numbers",
    "one twice": r"adds noise to 1 of \d+ numbers that is a multiple",
    "opposite": r"adds noise to (3[012]\d|8[01]\d\d) of \d+ numbers that is a multiple",
    "multiples": r"adds noise to (2[6-9]\d|3[012]\d|[678]\d\d\d) of \d+ numbers that is a multiple",
    "cancels": r"adds noise that cancels in the sum over all numbers",
    "first round": r"adds noise of standard deviation \S+ to public numbers in round 9, and its cover stands for 1;",
}


@pytest.mark.parametrize("kind", [AtClient, AtServer])
@pytest.mark.parametrize("mistake", MISPLACED)
@pytest.mark.parametrize("length", [650, LONG])
def test_every_number_has_noise_of_its_own_though_all_together_have_enough(length, mistake, kind):
    assert re.search(f"^{kind.__name__} {MISPLACED[mistake]}", doubt(kind(mistake), run_of(length)))


@pytest.mark.parametrize("length", [10, 650])
@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("longer", "to an update of zeros and .* to a longer one"),
        ("shorter", "to an update of zeros and .* to a longer one"),
        ("none for long ones", "to an update of zeros and 0 to a longer one"),
        ("moved", "moves what it releases by"),
        ("tenfold", r"moves what it releases by 5 for an update of length 0\.5"),
    ],
)
def test_noise_that_depends_on_the_update_is_not_what_a_gaussian_cover_stands_for(mistake, said, length):
    assert re.search(said, doubt(ByTheUpdate(mistake), run_of(length)))


@pytest.mark.parametrize("length", [1, 2])
def test_the_noise_of_very_few_numbers_is_seen_to_depend_on_the_update_too(length):
    assert "to an update of zeros and" in doubt(ByTheUpdate("longer"), run_of(length))
    assert "moves what it releases by" in doubt(ByTheUpdate("moved"), run_of(length))


@pytest.mark.parametrize("length", [10, 650, LONG])
@pytest.mark.parametrize(
    "how",
    [
        *("", "heavier layer", "one more for all", "half", "rounded by a quarter", "rounded by all of it"),
        *("the largest", "bfloat16"),
    ],
)
def test_right_noise_is_believed_whatever_is_made_of_it(how, length):
    assert doubt(ByTheUpdate(how), run_of(length)) == ""


@pytest.mark.parametrize(("how", "length"), [("", 1), ("half", 2), ("rounded by all of it", 3), ("heavier layer", 2)])
def test_right_noise_is_believed_of_very_few_numbers(how, length):
    assert doubt(ByTheUpdate(how), run_of(length)) == ""


@pytest.mark.parametrize("length", [650, 4000])
def test_noise_that_remembers_the_last_rounds_is_believed(length):
    assert doubt(WithMemory(), run_of(length)) == ""


def test_an_update_of_zeros_is_noisy_too():
    assert "adds no noise to 64 of 64 numbers of an update of zeros" in doubt(WhereSomethingIs(), run_of(64))
    assert "makes numbers that are not finite of an update of zeros" in doubt(WhereSomethingIs("relative"), run_of(64))


@pytest.mark.parametrize("length", [64, LONG])
@pytest.mark.parametrize("z", [0.5, 2.0])
def test_numbers_of_discrete_noise_may_be_0_and_alike_by_accident(z, length):
    assert doubt(Whole(z=z), run_of(length)) == ""


def test_of_very_long_updates_the_ends_are_looked_at_and_some_numbers_between(monkeypatch):
    monkeypatch.setattr(scrutiny, "PLACES", 1000)
    assert doubt(AtClient(), run_of(100_000)) == ""
    found = doubt(AtClient("not the last"), run_of(100_000))
    assert re.search(r"adds no noise to 1 of \d{3,4} numbers looked at, of 100000, of an update of zeros", found)
