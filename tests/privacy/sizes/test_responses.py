"""A memoised answer is drawn once and replayed; only fresh answers are charged; a table survives a checkpoint."""

import json

import numpy as np
import pytest

from privfl.errors import DataError, PrivacyError
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS, PiecewiseSize
from privfl.privacy.sizes.randomized_response import RandomizedResponse
from privfl.privacy.sizes.responses import SizeResponses

SOURCE = NoiseSource.from_key(11)
CLIENTS = list(range(20))
SIZES = np.arange(20) + 1


def run(refresh, rounds, mechanism=PiecewiseSize):
    table, answers, fresh = SizeResponses(), [], []
    for round in range(rounds):
        answers.append(table.answers(round, CLIENTS, SIZES, mechanism(1.0, 100, refresh=refresh), SOURCE))
        fresh.append(table.fresh)
    return answers, fresh


def test_by_default_every_client_answers_once_and_is_charged_once():
    answers, fresh = run("once", 5)
    assert fresh == [tuple(CLIENTS), (), (), (), ()]
    assert all(np.array_equal(answers[0], later) for later in answers)


def test_every_round_means_a_fresh_answer_and_charge_each_round():
    answers, fresh = run("every_round", 3)
    assert fresh == [tuple(CLIENTS)] * 3
    assert not set(answers[0]) & set(answers[1])


def test_every_three_rounds_means_a_fresh_answer_each_third_round():
    answers, fresh = run(3, 7)
    assert [len(charged) for charged in fresh] == [20, 0, 0, 20, 0, 0, 20]
    assert np.array_equal(answers[0], answers[2])
    assert not set(answers[2]) & set(answers[3])


def test_a_client_asked_late_or_seldom_is_due_by_its_own_clock():
    table, mechanism = SizeResponses(), PiecewiseSize(1.0, 100, refresh=3)
    charged = []
    for round, asked in [(0, [1]), (2, [1, 2]), (3, [1, 2]), (4, [2]), (9, [1, 2])]:
        table.answers(round, asked, [5] * len(asked), mechanism, SOURCE)
        charged.append(table.fresh)
    assert charged == [(1,), (2,), (1,), (), (1, 2)]


def test_the_first_draw_is_kept_for_ever_though_the_size_changes():
    table, mechanism = SizeResponses(), RandomizedResponse(3.0, 100)
    first = table.answers(0, CLIENTS, SIZES, mechanism, SOURCE)
    assert np.array_equal(table.answers(1, CLIENTS, SIZES + 50, mechanism, SOURCE), first)
    assert table.fresh == ()


def test_a_repeated_round_is_replayed_and_charges_nobody_twice():
    table, mechanism = SizeResponses(), PiecewiseSize(1.0, 100, refresh="every_round")
    first = table.answers(4, CLIENTS, SIZES, mechanism, SOURCE)
    assert np.array_equal(table.answers(4, CLIENTS, SIZES, mechanism, SOURCE), first)
    assert table.fresh == ()


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_answers_depend_on_the_client_and_not_on_who_else_is_asked_or_in_which_order(name):
    mechanism = SIZE_MECHANISMS[name](1.0, 100)
    together = SizeResponses().answers(0, CLIENTS, SIZES, mechanism, SOURCE)
    table = SizeResponses()
    apart = [table.answers(0, [c], [SIZES[c]], mechanism, SOURCE)[0] for c in reversed(CLIENTS)]
    assert np.array_equal(together, apart[::-1])


def test_the_coins_of_the_kth_answer_come_from_the_clients_place_in_a_block_of_the_stream_of_k():
    mechanism, table = PiecewiseSize(1.0, 100, refresh="every_round"), SizeResponses()
    for k in range(3):
        answer = table.answers(10 * k, [7], [42], mechanism, SOURCE)
        everyone = np.where(np.arange(1024) == 7, 42, 1)  # client 7 has place 7 of block 0, whoever else answers
        assert answer[0] == mechanism.respond(everyone, SOURCE.stream("size", 0, k))[7]


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_a_restored_table_continues_to_the_same_answers_bit_for_bit(name):
    mechanism = SIZE_MECHANISMS[name](1.0, 100, refresh=2)
    table = SizeResponses()
    table.answers(0, np.arange(20), SIZES, mechanism, SOURCE)
    restored = SizeResponses.from_state(json.loads(json.dumps(table.state())))
    assert restored == table
    for round in (1, 2, 3):
        expected = table.answers(round, CLIENTS, SIZES, mechanism, SOURCE)
        actual = restored.answers(round, CLIENTS, SIZES, mechanism, SOURCE)
        assert np.array_equal(actual, expected)
        assert actual.dtype == expected.dtype
        assert restored.fresh == table.fresh


def test_answers_of_another_mechanism_are_not_replayed():
    table = SizeResponses()
    table.answers(0, CLIENTS, SIZES, RandomizedResponse(3.0, 100), SOURCE)
    with pytest.raises(PrivacyError, match="keep the mechanism"):
        table.answers(1, CLIENTS, SIZES, RandomizedResponse(1.0, 100), SOURCE)


def test_an_epsilon_written_as_an_integer_is_the_same_mechanism():
    table = SizeResponses()
    table.answers(0, CLIENTS, SIZES, RandomizedResponse(3, 100), SOURCE)
    table.answers(1, CLIENTS, SIZES, RandomizedResponse(3.0, 100), SOURCE)
    assert table.fresh == ()


def test_ill_formed_requests_are_refused():
    mechanism = RandomizedResponse(3.0, 100)
    with pytest.raises(DataError, match="list each client once"):
        SizeResponses().answers(0, [1, 1], [5, 5], mechanism, SOURCE)
    with pytest.raises(DataError, match="one size per client"):
        SizeResponses().answers(0, [1, 2], [5], mechanism, SOURCE)


def test_every_client_gets_its_own_answer_whoever_else_is_asked_and_in_which_order():
    """At ε = 32 an answer is within a sample of the truth; clients 1024 apart draw from other blocks of coins."""
    clients = [1500, 3, 2051, 1025, 2, 1027]
    sizes = np.array([90, 10, 50, 70, 30, 20])
    answers = SizeResponses().answers(0, clients, sizes, PiecewiseSize(32.0, 100), SOURCE)
    assert np.abs(answers - sizes).max() < 1
    same = SizeResponses().answers(0, [3, 1027, 2051], [10, 10, 10], PiecewiseSize(1.0, 100), SOURCE)
    assert len(set(same.tolist())) == 3
