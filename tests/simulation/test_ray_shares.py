"""A cohort is divided so that workers end together, and clients stay where their state is as long as that is fair."""

import random

import pytest

from privfl.simulation.ray_shares import SLACK, divide


def ends(parts, work, speeds):
    return [sum(work[client] for client in part) / speed for part, speed in zip(parts, speeds, strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_every_client_is_trained_once_and_nobody_waits_for_more_than_one(seed):
    draw = random.Random(seed)
    work = {client: draw.uniform(1, 9) for client in draw.sample(range(100), 30)}
    speeds = [draw.uniform(0.5, 2) for _ in range(4)]
    parts = divide(work, speeds, {})
    assert sorted(client for part in parts for client in part) == sorted(work)
    assert all(part == [client for client in work if client in part] for part in parts)
    fair = sum(work.values()) / sum(speeds)
    assert max(ends(parts, work, speeds)) <= fair + max(work.values()) / min(speeds)


def test_a_worker_twice_as_fast_gets_twice_as_much():
    parts = divide(dict.fromkeys(range(30), 1.0), [1.0, 2.0], {})
    assert [len(part) for part in parts] == [10, 20]


def test_clients_stay_where_their_state_is_unless_that_worker_would_be_late():
    work = dict.fromkeys(range(8), 1.0)
    homes = {client: client % 2 for client in work}
    assert divide(work, [1.0, 1.0], homes) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    crowded = divide(work, [1.0, 1.0], dict.fromkeys(work, 0))
    assert max(ends(crowded, work, [1.0, 1.0])) <= SLACK * 4


def test_more_workers_than_clients_and_one_worker_alone():
    assert divide({7: 1.0}, [1.0, 1.0, 1.0], {}) == [[7], [], []]
    assert divide({7: 1.0, 3: 2.0}, [1.0], {3: 0}) == [[7, 3]]
