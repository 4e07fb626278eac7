"""Availability: reproducible in any order, never empty, with the frequencies of the drop-out models.

Statistical tests fix their seed; frequencies must lie within 5 standard errors (false-alarm rate 6e-7 per comparison),
or 5.6 where 20 clients are compared at once (2e-8 each).
"""

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.federation.availability import (
    AVAILABILITY,
    Always,
    Availability,
    Bernoulli,
    FixedFraction,
    Markov,
    PerCluster,
    Persistent,
    reachable,
)
from privfl.randomness import numpy_stream

MODELS = [
    Always(),
    Bernoulli(0.3),
    Persistent(0.3, period=5),
    PerCluster((0.5, 0.5, 0.3, 0.3, 0.2)),
    PerCluster((0.5, 0.0), period=3),
    FixedFraction(0.1),
    Markov(go_offline=0.1, come_back=0.2),
    Markov(go_offline=0.9, come_back=0.8),
    Markov(go_offline=0.0, come_back=0.5),
    Markov(go_offline=1.0, come_back=1.0),
    Bernoulli(1e-9),
]


def mask(model, rounds, clients, seed=0):
    active = np.zeros((len(rounds), clients), dtype=bool)
    for row, number in enumerate(rounds):
        active[row, model.active(number, clients, seed)] = True
    return active


def within(observed, expected, trials, errors=5.0):
    return np.abs(observed - expected) < errors * np.sqrt(expected * (1 - expected) / trials)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_active_clients_are_ascending_ids_and_never_none(model):
    for clients in (1, 7, 40):
        for number in (*range(30), 1000):
            active = model.active(number, clients, seed=3)
            assert active.dtype == np.int64
            assert 1 <= len(active) <= clients
            assert (np.diff(active) > 0).all()
            assert active[0] >= 0
            assert active[-1] < clients


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_any_round_is_the_same_whatever_was_asked_before(model):
    forwards = mask(model, range(60), 25)
    backwards = mask(model, range(59, -1, -1), 25)[::-1]
    alone = mask(type(model)(**vars(model)), [37], 25)
    assert np.array_equal(forwards, backwards)
    assert np.array_equal(forwards[37], alone[0])


@pytest.mark.parametrize("model", [m for m in MODELS if m not in (Always(), Markov(0.0, 0.5))], ids=str)
def test_another_seed_gives_other_sets(model):
    assert not np.array_equal(mask(model, range(40), 25, seed=0), mask(model, range(40), 25, seed=1))


def test_bernoulli_frequencies_carry_the_correction_for_redrawn_empty_sets():
    """P(active) = p/(1 − (1−p)^m): 0.3 with 5 clients becomes 0.3606, and a third of the clients with p = 0.01."""
    for probability, clients in ((0.3, 5), (0.01, 3)):
        expected = probability / (1 - (1 - probability) ** clients)
        frequency = mask(Bernoulli(probability), range(8000), clients).mean(axis=0)
        assert within(frequency, expected, 8000).all()


def test_redrawing_has_the_law_of_a_plain_redraw_loop():
    """Pattern frequencies of 3 unlike clusters against the exact conditional law, 7 patterns, 8000 rounds, 5.6 s.e."""
    probabilities = np.array([0.1, 0.3, 0.05])
    patterns = np.array([[bit >> place & 1 for place in range(3)] for bit in range(1, 8)])
    law = np.where(patterns, probabilities, 1 - probabilities).prod(axis=1)
    law /= law.sum()
    drawn = mask(PerCluster(tuple(probabilities)), range(8000), 3) @ [1, 2, 4]
    assert within(np.bincount(drawn, minlength=8)[1:] / 8000, law, 8000, errors=5.6).all()


def test_clients_are_independent_of_each_other_and_of_other_rounds():
    """Correlations of 20 clients within and across rounds, 4000 rounds: within 6 s.e. (590 comparisons, 2e-9 each)."""
    active = mask(Bernoulli(0.5), range(4001), 20).astype(float)
    within_round = np.corrcoef(active[:-1].T)[np.triu_indices(20, 1)]
    across = np.corrcoef(active[:-1].T, active[1:].T)[:20, 20:].ravel()
    assert np.abs(np.concatenate([within_round, across])).max() < 6 / np.sqrt(4000)


def test_persistent_sets_are_held_for_a_period_and_redrawn_at_its_multiples():
    model, blocks = Persistent(0.3, period=5), 4000
    active = mask(model, range(200), 20)
    assert all(np.array_equal(active[number], active[number // 5 * 5]) for number in range(200))
    assert sum(not np.array_equal(a, b) for a, b in pairwise(active[::5])) >= 38
    frequency = mask(model, range(0, 5 * blocks, 5), 20).mean(axis=0)  # blocks are the trials, not rounds
    assert within(frequency, 0.3 / (1 - 0.7**20), blocks, errors=5.6).all()


def test_a_period_of_one_is_bernoulli_and_one_cluster_is_bernoulli():
    plain = mask(Bernoulli(0.4), range(50), 12)
    assert np.array_equal(plain, mask(Persistent(0.4, period=1), range(50), 12))
    assert np.array_equal(plain, mask(PerCluster((0.4,)), range(50), 12))
    assert np.array_equal(mask(Persistent(0.4, period=3), range(50), 12), mask(PerCluster((0.4,), 3), range(50), 12))


def test_clusters_are_client_modulo_number_of_clusters():
    probabilities = np.array([0.5, 0.5, 0.3, 0.3, 0.2])
    frequency = mask(PerCluster(tuple(probabilities)), range(4000), 20).mean(axis=0)
    expected = np.resize(probabilities, 20) / (1 - np.prod(1 - np.resize(probabilities, 20)))
    assert within(frequency, expected, 4000, errors=5.6).all()


def test_a_fixed_fraction_is_that_many_clients_drawn_uniformly():
    active = mask(FixedFraction(0.1), range(4000), 20)
    assert (active.sum(axis=1) == 2).all()
    assert within(active.mean(axis=0), 0.1, 4000, errors=5.6).all()
    assert len(FixedFraction(0.001).active(0, 20, 0)) == 1
    assert len(FixedFraction(1.0).active(0, 20, 0)) == 20


@pytest.mark.parametrize(("go_offline", "come_back"), [(0.1, 0.2), (0.9, 0.8), (0.3, 0.7), (0.02, 0.05)])
def test_the_markov_chain_is_stationary_from_the_first_round_and_moves_at_its_rates(go_offline, come_back):
    """20 000 clients, so no round is empty; transitions between given rounds are exact binomials."""
    clients, share = 20_000, come_back / (go_offline + come_back)
    active = mask(Markov(go_offline, come_back), [0, 1, 2, 3, 90, 91], clients)
    assert within(active.mean(axis=1), share, clients).all()
    for before, after in ((0, 1), (1, 2), (2, 3), (4, 5)):
        on, off = active[before], ~active[before]
        assert within((~active[after][on]).mean(), go_offline, on.sum())
        assert within(active[after][off].mean(), come_back, off.sum())


def test_the_markov_chain_forgets_nothing_but_the_last_state():
    """P(on at t+1 | on at t, on at t−1) = P(on at t+1 | on at t, off at t−1) = 1 − go_offline."""
    active = mask(Markov(0.3, 0.4), [10, 11, 12], 40_000)
    for before in (True, False):
        chosen = (active[0] == before) & active[1]
        assert within(active[2][chosen].mean(), 0.7, chosen.sum())


def test_the_markov_walk_back_agrees_with_a_forward_replay():
    """A brute-force twin runs the chain forwards from round 0 with the same uniforms."""
    for go_offline, come_back in ((0.1, 0.2), (0.9, 0.8), (1.0, 1.0), (0.0, 0.5)):
        model, clients = Markov(go_offline, come_back), 50
        state = numpy_stream(5, "availability", 0).random(clients) < come_back / (go_offline + come_back)
        low, high = min(1 - go_offline, come_back), max(1 - go_offline, come_back)
        for number in range(1, 80):
            u = numpy_stream(5, "availability", number).random(clients)
            middle = state if 1 - go_offline >= come_back else ~state
            state = np.where(u < low, True, np.where(u >= high, False, middle))
            assert np.array_equal(model.active(number, clients, seed=5), np.flatnonzero(state))


def test_a_late_markov_round_is_answered_without_replaying_the_run():
    start = time.process_time()
    Markov(0.1, 0.2).active(10**9, 1000, seed=0)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bernoulli(0), "probability is 0; give a finite number above 0 and at most 1"),
        (lambda: Bernoulli(1.1), "probability is 1.1"),
        (lambda: Persistent(0.5, period=0), "period is 0; give a whole number of at least 1"),
        (lambda: PerCluster((0.5, -0.1)), "an entry of probabilities is -0.1"),
        (lambda: PerCluster((0.0, 0.0)), "at least one cluster must sometimes be active"),
        (lambda: PerCluster(0.5), "PerCluster's probabilities is 0.5; give a list, such as [0.5]"),
        (lambda: PerCluster(()), "at least one cluster must sometimes be active"),
        (lambda: PerCluster((0.0, 0.5)).active(0, 1, 0), "none of 1 clients can ever be active"),
        (lambda: FixedFraction(0.0), "fraction is 0.0"),
        (lambda: Markov(0.5, 0.0), "come_back is 0.0; give a finite number above 0 and at most 1"),
        (lambda: Markov(1.5, 0.5), "go_offline is 1.5"),
        (lambda: Always().active(-1, 5, 0), "round is -1; give a whole number of at least 0"),
        (lambda: Always().active(0, 0, 0), "clients is 0"),
    ],
)
def test_an_impossible_setting_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert sentence in str(refusal.value)


def test_the_registry_holds_every_model_under_its_name():
    assert {type(model) for model in MODELS} == set(AVAILABILITY.values())
    assert AVAILABILITY["per-cluster"]([0.5]) == PerCluster((0.5,))


@dataclass(frozen=True)
class Own(Availability):
    """What a test wants it to say."""

    said: object = None

    def active(self, round, clients, seed):
        return self.said

    def _mask(self, round, clients, seed):
        return self.said


NO_CLIENTS = [
    None,
    ["a"],
    [True, False, True],
    [0.0, 1.0],
    [None, 1],
    [[0], [1]],
    1,
    {0, 1},
    [],
    [-1],
    [3],
    [[0], [1, 2]],
]


@pytest.mark.parametrize("said", [[2, 0, 2], np.array([2, 0]), (0, 2)], ids=str)
def test_a_rule_of_ones_own_may_name_clients_in_any_order(said):
    assert reachable(Own(said), 0, 3, seed=0).tolist() == [0, 2]


@pytest.mark.parametrize("said", NO_CLIENTS, ids=str)
def test_what_names_no_clients_is_refused_in_a_sentence(said):
    with pytest.raises(ConfigError, match=r"Own says that clients .* give at least one number from 0 to 2, as whole"):
        reachable(Own(said), 7, 3, seed=0)


@pytest.mark.parametrize("said", [None, ["a", "b", "c"], [0, 2], [0.5, 0.5, 0.5], [True, False], True], ids=str)
def test_a_mask_that_has_no_bool_for_each_client_is_refused_in_a_sentence(said):
    with pytest.raises(ConfigError, match=r"_mask of Own gives .* give an array of 3 bools, one for each client"):
        Availability.active(Own(said), 7, 3, seed=0)
