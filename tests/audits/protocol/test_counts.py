"""What counting says of a strategy is what trying all mailboxes says; the rules leave no legal session broken."""

import pytest

from audits.protocol.counts import lonely_victim, opens, split_victim, splits, sums_of_too_few, two_lists, two_sums
from audits.protocol.knowledge import Setting
from audits.protocol.mailboxes import openings
from privfl.errors import ConfigError
from privfl.privacy.secagg.rules import check_quorum, check_threshold, least_threshold

SETTINGS = [(3, 0, 2, 3), (4, 0, 3, 3), (4, 0, 3, 4), (5, 0, 4, 4), (3, 1, 3, 4), (4, 1, 4, 4), (4, 2, 4, 5)]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("numbers", SETTINGS)
def test_the_smallest_sum_by_counting_is_the_smallest_over_all_mailboxes(numbers, counted):
    setting = Setting(*numbers, counted=counted)
    for listed in range(1, setting.honest + 1):
        if listed + setting.accomplices < max(setting.threshold, setting.quorum):
            continue
        _, by_size, twice = openings(setting, listed)
        counts = [one.inside for one in splits(setting) if one.inside + one.outside == listed and opens(setting, one)]
        assert min(counts) == next(size for size, stories in enumerate(by_size) if stories)
        assert (twice > 0) <= bool(two_sums(setting))


def test_no_legal_setting_of_up_to_twelve_members_opens_two_sums_or_one_of_too_few():
    legal = 0
    for n in range(2, 13):
        for accomplices in range(n - 1):
            for threshold in range(2, n + 1):
                for least_honest in range(2, n - accomplices + 1):
                    for quorum in range(threshold, n + 1):
                        try:
                            check_threshold(n, n - 1, threshold, accomplices, "active")
                            check_quorum(n, threshold, quorum, accomplices, least_honest, "active")
                        except ConfigError:
                            continue
                        legal += 1
                        setting = Setting(n - accomplices, accomplices, threshold, quorum)
                        assert sums_of_too_few(setting, least_honest) == []
                        assert two_sums(setting) == []
                        assert not two_lists(setting)
    assert legal > 2000


@pytest.mark.parametrize("n", [4, 7, 12])
def test_a_threshold_one_lower_lets_two_lists_through(n):
    for accomplices in range(n - 2):
        least = least_threshold(n, n - 1, accomplices, "active")
        below = Setting(n - accomplices, accomplices, least - 1, least - 1)
        assert two_lists(below) == (2 * (least - 1) <= n + accomplices)
        assert two_lists(below)


def test_naming_survivors_whose_letters_are_kept_back_opened_sums_below_the_quorum():
    """The guard of ``counted``: a quorum of names is none."""
    few = Setting(20, 0, threshold=11, quorum=18)
    assert sums_of_too_few(few, 18) == []
    assert {one.inside for one in sums_of_too_few(Setting(20, 0, 11, 18, counted=False), 18)} == set(range(11, 18))


@pytest.mark.parametrize(
    ("n", "threshold", "accomplices", "plain", "with_culprits"),
    [
        (10, 6, 0, True, True),
        (10, 7, 0, False, True),
        (10, 8, 0, False, False),
        (20, 13, 0, False, True),
        (100, 61, 0, True, True),
        (100, 62, 0, False, True),
        (100, 70, 25, True, True),
    ],
)
def test_without_confirmations_a_victim_with_few_letters_is_exposed_up_to_high_thresholds(
    n, threshold, accomplices, plain, with_culprits
):
    setting = Setting(n - accomplices, accomplices, threshold, threshold, confirmed=False)
    assert lonely_victim(setting, culprits=False) is plain
    assert lonely_victim(setting, culprits=True) is with_culprits
    assert split_victim(setting) is (2 * threshold <= n + accomplices)
