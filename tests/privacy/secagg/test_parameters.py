"""Degree and threshold are the published ones, the smallest by exact arithmetic, and refused where there are none."""

import json
import math
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from privfl.errors import ConfigError
from privfl.privacy.secagg.graph import neighbours
from privfl.privacy.secagg.parameters import MANY, ThreatModel, _log_factorial, check_complete, find

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "secagg.json").read_text())
ADVERSARY = {"curious": "semi-honest", "none": "semi-honest", "semi-malicious": "active"}
ROWS = ORACLES["parameters"]["rows"]


BELOW_ITS_OWN_BOUND = [(10, 0.05, 0.33, "curious"), (10, 0.0, 0.33, "curious"), (10, 0.0, 0.33, "none")]
"""Rows whose published threshold of 2 leaves the failure probability far above the stated 2^-20."""


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] != "semi-malicious"], ids=str)
def test_degree_and_threshold_are_the_published_ones(row) -> None:
    clients, corrupt, dropout, server, degree, threshold = row
    if degree is None:
        with pytest.raises(ConfigError):
            find(clients, ThreatModel(corrupt, dropout, ADVERSARY[server]))
        return
    threat = ThreatModel(corrupt, dropout, ADVERSARY[server])
    found = find(clients, threat, least_threshold=1)
    assert (found[0], max(found[1], 2)) == (degree, threshold)
    if tuple(row[:4]) in BELOW_ITS_OWN_BOUND:
        too_few = sum(chance(clients, threat.staying_of(clients), degree, found) for found in range(threshold))
        assert too_few == Fraction(1, 30)
        assert find(clients, threat) == (6, 2)
    else:
        assert find(clients, threat) == (degree, threshold)


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] == "semi-malicious"], ids=str)
def test_a_server_that_deviates_from_the_start_needs_more_than_was_published_for_one_that_does_so_later(row) -> None:
    clients, corrupt, dropout, _, degree, threshold = row
    if degree is None:
        with pytest.raises(ConfigError):
            find(clients, ThreatModel(corrupt, dropout, "active"))
        return
    threat = ThreatModel(corrupt, dropout, "active")
    if degree < clients - 1:
        found = find(clients, threat)
        assert found[0] >= degree
        assert found[1] >= threshold
    else:
        assert find(clients, threat) == (degree, threshold)


def test_thresholds_of_the_complete_graph_are_accepted_and_refused_as_published() -> None:
    published = ORACLES["complete_graph"]
    threat = ThreatModel(published["corrupt"], published["dropout"], ADVERSARY[published["server"]])
    for threshold in range(published["accepted"][0], published["accepted"][1] + 1):
        check_complete(published["clients"], threshold, threat)
    for threshold in range(published["refused"][0], published["refused"][1] + 1):
        with pytest.raises(ConfigError):
            check_complete(published["clients"], threshold, threat)


@cache
def chance(clients: int, marked: int, drawn: int, found: int) -> Fraction:
    """That ``found`` of ``drawn`` clients are marked, ``marked`` of all being so; exact."""
    ways = math.comb(marked, found) * math.comb(clients - marked, drawn - found) if found <= drawn else 0
    return Fraction(ways, math.comb(clients, drawn))


def cut_bound(clients: int, degree: int, lost: int) -> Fraction:
    """The union bound on two gaps of half the degree in a circle of clients."""
    within = Fraction(math.comb(clients - degree, lost - degree), math.comb(clients, lost)) if lost >= degree else 0
    return Fraction(clients * (clients - degree - 1), 2) * within


@pytest.mark.parametrize(("clients", "degree"), [(8, 2), (9, 4), (11, 4), (12, 6)])
def test_the_bound_on_a_cut_covers_the_count_of_all_losses_that_cut(clients: int, degree: int) -> None:
    graph = neighbours(range(clients), degree, bytes(32))
    for lost in range(degree, clients - 1):
        cuts = 0
        for gone in map(set, combinations(range(clients), lost)):
            left = set(range(clients)) - gone
            reached, front = set(), {min(left)}
            while front:
                reached |= front
                front = {other for one in front for other in graph[one]} - gone - reached
            cuts += reached != left
        assert Fraction(cuts, math.comb(clients, lost)) <= cut_bound(clients, degree, lost)


def scanned(clients: int, threat: ThreatModel) -> tuple[int, int] | None:
    """The first even degree and its first threshold, each condition computed exactly; nothing is skipped."""
    corrupt, staying = threat.corrupt_of(clients), threat.staying_of(clients)
    secure, failure = Fraction(1, 2 ** (threat.security_bits + 1)), Fraction(1, 2**threat.failure_bits)
    for degree in range(2, clients - 1, 2):
        cut = cut_bound(clients, degree, min(clients, corrupt + clients - staying))
        if threat.adversary == "semi-honest" and cut >= secure:
            continue
        for threshold in range(2, degree + 1):
            # The most corrupt neighbours a client can have without all being lost: more are too unlikely.
            harmless = threshold - 2 - degree // 2 if threat.adversary == "active" else threshold - 1
            too_many = sum(chance(clients, corrupt, degree, found) for found in range(max(harmless + 1, 0), degree + 1))
            too_few = sum(chance(clients, staying, degree, found) for found in range(threshold))
            if too_many * clients <= secure and too_few * clients < failure:
                return degree, threshold
    return None


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
@pytest.mark.parametrize("clients", [5, 8, 13, 20, 31, 44])
def test_no_smaller_degree_or_threshold_would_do(clients: int, adversary) -> None:
    for corrupt, dropout, bits in product((0, 0.05, 0.1, 0.25), (0, 0.1, 0.2), ((40, 20), (10, 5), (3, 2))):
        threat = ThreatModel(corrupt, dropout, adversary, *bits)
        sparse = scanned(clients, threat)
        if sparse is not None:
            assert find(clients, threat) == sparse
        else:
            try:
                degree, threshold = find(clients, threat)
            except ConfigError:
                for threshold in range(2, threat.staying_of(clients) + 1):
                    with pytest.raises(ConfigError):
                        check_complete(clients, threshold, threat)
                continue
            assert degree == clients - 1
            check_complete(clients, threshold, threat)
            assert threshold <= threat.staying_of(clients)


def test_a_share_of_the_clients_is_rounded_down_but_not_by_the_last_bit() -> None:
    assert int(0.29 * 100) == 28
    assert ThreatModel(0.29, 0.29).corrupt_of(100) == 29
    assert ThreatModel(0.29, 0.29).staying_of(100) == 71
    assert ThreatModel(0.299, 0.1).corrupt_of(10) == 2


def test_the_complete_graph_against_an_active_adversary_needs_more_than_half_and_half_the_corrupt() -> None:
    threat = ThreatModel(0.2, 0.3, "active")
    check_complete(10, 7, threat)  # (10 + 2)/2 = 6 shares could be had twice
    with pytest.raises(ConfigError, match="must lie in 7 to 10"):
        check_complete(10, 6, threat)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"corrupt": 1.0}, "corrupt is 1.0"),
        ({"corrupt": math.nan}, "corrupt is nan"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"corrupt": 0.5, "dropout": 0.41}, "keep it at or below 0.9"),
        ({"corrupt": 0.1, "dropout": 0.41, "adversary": "active"}, "keep it at or below 0.9"),
        ({"adversary": "curious"}, "give one of semi-honest, active"),
        ({"security_bits": 0}, "security_bits is 0"),
        ({"failure_bits": math.inf}, "failure_bits is inf"),
    ],
)
def test_impossible_threat_models_are_refused_in_a_sentence(setting, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ThreatModel(**{"corrupt": 0.1, "dropout": 0.1, **setting})


@pytest.mark.parametrize("clients", [0, 1])
def test_one_client_has_no_sum_to_hide_in(clients: int) -> None:
    with pytest.raises(ConfigError, match="2 clients or more"):
        find(clients, ThreatModel(0, 0))


def test_too_small_a_cohort_for_its_losses_is_refused() -> None:
    with pytest.raises(ConfigError, match="add clients"):
        find(3, ThreatModel(0, 0.7))


@pytest.mark.parametrize("count", [MANY - 1, MANY, 3 * MANY])
def test_a_factorial_is_the_same_computed_and_looked_up(count: int) -> None:
    numbers = np.arange(count, dtype=np.float64)[::-1]
    assert _log_factorial(numbers).tolist() == [math.lgamma(number + 1) for number in numbers]
