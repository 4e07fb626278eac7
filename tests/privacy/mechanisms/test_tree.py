"""Tree noise against a dense twin: least squares on the nodes known so far, and what the releases then reveal."""

import itertools
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, SingleEpochTreeAggregationDpEvent

from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.mechanisms.tree import TreeNoise
from privfl.privacy.noise.source import NoiseSource

SOURCE = NoiseSource.from_key(31)
ACCOUNTING = json.loads((Path(__file__).parents[2] / "oracles" / "accounting.json").read_text())


@cache
def twin(rounds, length):
    """(nodes [nodes] as (level, first), their blocks M [nodes, rounds], noise coefficients B [rounds, nodes])."""
    nodes, blocks = [], []
    for tree in range(0, rounds, length):
        size = min(length, rounds - tree)
        for level in range(size.bit_length()):
            for place in range(0, size - 2**level + 1, 2**level):
                nodes.append((level, tree + place))
                blocks.append([float(tree + place <= t < tree + place + 2**level) for t in range(rounds)])
    matrix = np.array(blocks)
    last = np.array([first + 2**level - 1 for level, first in nodes])
    estimators = np.zeros((rounds, len(nodes)))
    for t in range(rounds):
        known = last <= t
        estimators[t, known] = (np.arange(rounds) <= t) @ np.linalg.pinv(matrix[known])
    return nodes, matrix, estimators


SIZES = [(1, 1), (6, 1), (8, 8), (11, 4), (13, 6), (21, 21), (16, 7)]


@pytest.mark.parametrize(("rounds", "length"), SIZES)
def test_each_prefix_sum_is_the_best_estimate_from_the_nodes_known_by_then(rounds, length):
    nodes, matrix, estimators = twin(rounds, length)
    assert estimators @ matrix == pytest.approx(np.tril(np.ones((rounds, rounds))), abs=1e-9)
    plan = TreeNoise(1.2, length).plan(ParticipationPattern(rounds, length, rounds), 0.6)
    fresh = np.array([SOURCE.stream("server", "correlated", level, first).normal(9) for level, first in nodes])
    wanted = plan.deviation * np.diff(estimators @ fresh, axis=0, prepend=0)
    found = np.array([plan.add_(torch.zeros(9, dtype=torch.float64), t, SOURCE).numpy() for t in range(rounds)])
    assert np.abs(found - wanted).max() <= plan.deviation * 2**-20
    assert plan.prefix_deviations() == pytest.approx(plan.deviation * np.sqrt((estimators**2).sum(1)))


@pytest.mark.parametrize(
    ("rounds", "length", "separation", "participations"),
    [(8, 8, 8, 1), (8, 4, 4, 2), (9, 4, 4, 3), (9, 3, 4, 3), (7, 5, 2, 1), (6, 1, 1, 6), (10, 3, 3, 4), (10, 2, 5, 2)],
)
def test_the_sensitivity_is_that_of_the_worst_rounds_and_signs(rounds, length, separation, participations):
    _, matrix, estimators = twin(rounds, length)
    plan = TreeNoise(1.0, length).plan(ParticipationPattern(rounds, separation, participations), 1.0)
    precision = np.linalg.inv(estimators @ estimators.T)
    worst = 0.0
    for count in range(1, participations + 1):
        for places in itertools.combinations(range(rounds), count):
            if any(late - early < separation for early, late in itertools.pairwise(places)):
                continue
            charged = sum(plan.columns[t] for t in places)
            for signs in itertools.product((-1, 1), repeat=count):
                contribution = np.zeros(rounds)
                contribution[list(places)] = signs
                answer = np.linalg.norm(matrix @ contribution)
                assert answer**2 == pytest.approx(charged, rel=1e-12)
                shift = np.cumsum(contribution)  # of the prefix sums, which is all that is released
                assert shift @ precision @ shift <= answer**2 * (1 + 1e-9)
                worst = max(worst, answer)
    assert plan.sensitivity == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("row", ACCOUNTING["tree_aggregation"]["rows"], ids=lambda row: f"z{row['z']}-T{row['T']}")
def test_one_tree_has_dp_accountings_height_and_an_exact_price_below_its_bound(row):
    plan = TreeNoise(row["z"] / row["height"] ** 0.5).plan(ParticipationPattern(row["T"], row["T"], 1), 1.0)
    assert plan.sensitivity**2 == pytest.approx(row["height"])
    assert plan.deviation == pytest.approx(row["z"])  # of one node
    ours = epsilon({(plan.event, NeighboringRelation.ADD_OR_REMOVE_ONE): 1}, row["delta"], interval=False).epsilon
    assert ours == pytest.approx(row["gauss_equiv"], rel=1e-6)
    bound = (SingleEpochTreeAggregationDpEvent(row["z"], row["T"]), NeighboringRelation.REPLACE_SPECIAL)
    assert ours < epsilon({bound: 1}, row["delta"], interval=False).epsilon


def test_trees_restart_before_a_client_can_return():
    assert TreeNoise(1.0).plan(ParticipationPattern(100, 100, 1), 1.0).length == 100
    assert TreeNoise(1.0).plan(ParticipationPattern(100, 20, 5), 1.0).length == 16
    assert TreeNoise(1.0, 20).plan(ParticipationPattern(100, 20, 5), 1.0).length == 20
    plan = TreeNoise(1.0).plan(ParticipationPattern(64, 16, 4), 1.0)
    assert plan.sensitivity**2 == pytest.approx(4 * 5)  # a leaf and the four nodes above it, four times
    assert plan.participation_event(0) == GaussianDpEvent(2.0)


def test_the_server_keeps_one_vector_for_each_complete_block():
    plan = TreeNoise(1.0).plan(ParticipationPattern(40, 16, 3), 1.0)
    for round in range(40):
        plan.add_(torch.zeros(5), round, SOURCE)
        assert len(plan._blocks) == (round % 16 + 1).bit_count()
