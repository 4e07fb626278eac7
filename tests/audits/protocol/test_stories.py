"""With all guards no story gives a server more than one sum of enough; without one of them, a story does."""

from dataclasses import replace

import pytest

from audits.protocol.knowledge import Setting, Told, broken, known_sums
from audits.protocol.stories import breaks, stories, subsets
from privfl.privacy.secagg.rules import check_quorum, check_threshold

GUARDED = [
    (Setting(honest=3, accomplices=0, threshold=2, quorum=3), 3),
    (Setting(honest=3, accomplices=0, threshold=2, quorum=2), 2),
    (Setting(honest=3, accomplices=1, threshold=3, quorum=4), 3),
    (Setting(honest=3, accomplices=1, threshold=3, quorum=3), 2),
    (Setting(honest=2, accomplices=2, threshold=4, quorum=4), 2),
]


@pytest.mark.parametrize(("setting", "least_honest"), GUARDED)
def test_with_all_guards_no_story_opens_more_than_one_sum_of_enough(setting, least_honest):
    n = setting.honest + setting.accomplices
    check_threshold(n, n - 1, setting.threshold, setting.accomplices, "active")
    check_quorum(n, setting.threshold, setting.quorum, setting.accomplices, least_honest, "active")
    found = breaks(setting, least_honest)
    assert found.keys() == {""}
    assert any(known_sums(setting, story) for story in stories(setting)), "some stories do open a sum"


@pytest.mark.parametrize(
    ("setting", "least_honest", "kinds"),
    [
        (Setting(3, 0, threshold=2, quorum=2, confirmed=False), 2, {"vector"}),
        (Setting(3, 0, threshold=2, quorum=2), 3, {"few"}),
        (Setting(3, 0, threshold=2, quorum=3, counted=False), 3, {"few"}),
        (Setting(3, 0, threshold=2, quorum=2, once=False), 2, {"vector", "sums"}),
        (Setting(2, 0, threshold=2, quorum=2, signed=False), 2, {"vector"}),
        (Setting(3, 1, threshold=2, quorum=2), 2, {"vector"}),
    ],
    ids=["no confirmations", "few honest", "names count", "made again", "unsigned keys", "a threshold too low"],
)
def test_without_one_guard_a_story_breaks_the_session(setting, least_honest, kinds):
    assert breaks(setting, least_honest).keys() - {""} == kinds


def test_the_published_split_is_among_what_is_found():
    """Half of the holders are told that client 0 survived, half that it dropped, and the threshold is half."""
    told = {
        0: Told(frozenset({1, 2, 3}), frozenset({0, 1, 2, 3})),
        1: Told(frozenset({0, 2, 3}), frozenset({0, 1, 2, 3})),
        2: Told(frozenset({0, 1, 3}), frozenset({1, 2, 3})),
        3: Told(frozenset({0, 1, 2}), frozenset({1, 2, 3})),
    }
    low = Setting(honest=4, accomplices=0, threshold=2, quorum=2)
    assert (1, 0, 0, 0) in known_sums(low, [told])
    assert broken(low, [told], 2) == "vector"
    assert known_sums(replace(low, threshold=3), [told]) == []


def test_everybody_told_the_truth_gives_the_whole_sum_and_accomplices_change_nothing_of_it():
    everybody = frozenset(range(3))
    run = {client: Told(everybody - {client}, everybody) for client in everybody}
    for accomplices in (0, 1):
        assert known_sums(Setting(3, accomplices, 3, 3), [run]) == [(1, 1, 1)]


def test_subsets_are_all_of_them():
    assert len(set(subsets(frozenset(range(5))))) == 32
