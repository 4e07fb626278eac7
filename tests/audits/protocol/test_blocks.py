"""What is counted for blocks of clients is what linear algebra and all mailboxes say of the clients one by one."""

import numpy as np
import pytest

from audits.protocol import mailboxes
from audits.protocol.blocks import MOST_BLOCKS, Strategies, openings, partitions, three_stories, tried
from audits.protocol.knowledge import Setting, Told, known_sums
from audits.protocol.stories import stories

PREPARED = [Strategies.of(blocks) for blocks in range(1, MOST_BLOCKS + 1)]
DRAWS = 150


@pytest.mark.parametrize(
    "setting",
    [
        Setting(3, 0, 2, 2),
        Setting(4, 0, 2, 3, counted=False),
        Setting(4, 0, 2, 2, confirmed=False),
        Setting(4, 1, 3, 4),
        Setting(5, 1, 3, 3),
        Setting(6, 0, 3, 3),
    ],
)
def test_the_sums_that_open_are_those_of_the_symbols(setting):
    """Thresholds that are too low among them, so that much opens: any number of sums, small and large."""
    random, seen = np.random.default_rng(setting.honest), set()
    for sizes in partitions(setting.honest):
        strategies = PREPARED[len(sizes) - 1]
        smallest, several = openings(setting, sizes, strategies)
        where = np.flatnonzero(smallest)
        drawn = [*random.choice(where, min(DRAWS, len(where)), replace=False), *random.choice(len(strategies), 20)]
        for place in drawn if len(where) else []:
            known = known_sums(setting, [strategies.run(place, sizes)])
            found = min((sum(map(bool, row)) for row in known), default=0)
            assert (found, len(known) > 1) == (smallest[place], several[place])
            seen.add((found, len(known) > 1))
    assert len(seen) > 2


@pytest.mark.parametrize(
    "numbers", [(3, 0, 2, 2), (3, 1, 3, 3), (3, 0, 3, 3), (4, 0, 3, 3), (4, 0, 3, 4), (4, 0, 4, 4)]
)
def test_whatever_sum_any_story_opens_three_stories_open(numbers):
    """Every story of every single client, up to four clients."""
    setting, opened = Setting(*numbers), 0
    for (run,) in stories(setting):
        opened += opened_by_three(setting, run)
    assert opened > 0


def test_whatever_sum_drawn_stories_of_six_clients_open_three_stories_open():
    setting, random, opened = Setting(6, 0, 4, 4), np.random.default_rng(0), 0
    everybody = range(setting.honest)
    for _ in range(400):
        survivors, inside = (frozenset(np.flatnonzero(random.random(6) < share).tolist()) for share in (0.85, 0.7))
        run = {}
        for client in everybody:
            kept = survivors - inside if client in inside else frozenset()
            letters = {peer for peer in everybody if random.random() < (0.1 if peer in kept else 0.92)}
            run[client] = Told(frozenset(letters) - {client}, survivors if client in survivors else None)
        opened += opened_by_three(setting, run)
    assert opened > 20


def opened_by_three(setting, run):
    """How many sums ``run`` opens, after a check that :func:`three_stories` opens each."""
    known = known_sums(setting, [run])
    for row in known:
        assert set(row) <= {0, 1}
        inside = frozenset(client for client, factor in enumerate(row) if factor)
        lists = {run[client].survivors for client in inside}
        found = [known_sums(setting, [three_stories(setting, one, inside)]) for one in lists if one and inside <= one]
        assert [row] in found, (run, row)
    return len(known)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("numbers", [(3, 0, 2, 3), (4, 0, 3, 3), (5, 0, 4, 4), (4, 1, 4, 4), (4, 2, 4, 5)])
def test_three_stories_open_as_small_a_sum_as_all_mailboxes_do(numbers, counted):
    setting = Setting(*numbers, counted=counted)
    found = [openings(setting, sizes, PREPARED[len(sizes) - 1])[0] for sizes in partitions(setting.honest)]
    least = min(int(one[one > 0].min()) for one in found if (one > 0).any())
    by_mailboxes = []
    for listed in range(1, setting.honest + 1):
        if listed + setting.accomplices >= max(setting.threshold, setting.quorum):
            by_size = mailboxes.openings(setting, listed)[1]
            by_mailboxes += [size for size, stories in enumerate(by_size) if stories]
    assert least == min(by_mailboxes)


def test_no_strategy_of_three_stories_opens_a_wrong_sum_in_a_legal_session_and_one_does_below():
    for honest in (3, 5, 8):
        least = honest // 2 + 1
        count, opened, wrong = tried(honest, least, max(least, 2), PREPARED)
        assert count > opened > 0
        assert wrong == 0
        assert tried(honest, least - 1, max(least - 1, 2), PREPARED)[2] > 0
