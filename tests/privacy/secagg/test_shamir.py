"""Any t shares give a secret back, fewer say nothing, and shares that do not belong together are refused."""

import json
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import sympy

from privfl.errors import ConfigError
from privfl.privacy.secagg.errors import BadShare
from privfl.privacy.secagg.shamir import PRIME, SHARE_BYTES, combine, evaluate, interpolate_at_zero, split

ORACLE = json.loads((Path(__file__).parents[2] / "oracles" / "secagg.json").read_text())["shamir"]
SECRET = bytes(range(100, 132))
TOP = (2**256 - 1).to_bytes(32, "big")


def entropy(seed: int):
    return np.random.default_rng(seed).bytes


def solved(shares: dict[int, bytes], threshold: int) -> int:
    """The constant coefficient by Gaussian elimination on the Vandermonde system: no Lagrange weights."""
    points = list(shares)[:threshold]
    rows = [[pow(x, i, PRIME) for i in range(threshold)] + [int.from_bytes(shares[x], "big")] for x in points]
    for column in range(threshold):
        pivot = next(row for row in rows[column:] if row[column])
        rows.remove(pivot)
        inverse = pow(pivot[column], -1, PRIME)
        pivot = [entry * inverse % PRIME for entry in pivot]
        rows = [[(a - row[column] * b) % PRIME for a, b in zip(row, pivot, strict=True)] for row in rows]
        rows.insert(column, pivot)
    return rows[0][-1]


def test_the_field_is_that_of_the_largest_prime_below_its_33_bytes() -> None:
    assert sympy.prevprime(2 ** (8 * SHARE_BYTES)) == PRIME


# The vectors of ssss over GF(2^128) do not apply here: that is another field. Google's are over a prime field.
def test_published_shares_give_their_secrets_back() -> None:
    shares = [[int.from_bytes(bytes(one[i : i + 4]), "big") for i in (0, 4)] for one in ORACLE["shares"]]
    for points in combinations(range(1, 6), ORACLE["threshold"]):
        columns = zip(*(shares[point - 1] for point in points), strict=True)
        assert [interpolate_at_zero(points, values, ORACLE["prime"]) for values in columns] == ORACLE["secrets"]


def views(secret: int, threshold: int, holders: tuple[int, ...], prime: int) -> Counter[tuple[int, ...]]:
    """How often the holders see what, over all polynomials of degree ``threshold`` − 1 with this secret."""
    return Counter(
        tuple(evaluate([secret, *others], holders, prime)) for others in product(range(prime), repeat=threshold - 1)
    )


@pytest.mark.parametrize(("prime", "threshold"), [(5, 2), (5, 3), (7, 3), (5, 4)])
def test_fewer_shares_than_the_threshold_leave_every_secret_equally_likely(prime: int, threshold: int) -> None:
    points = range(1, prime)
    for count in range(threshold):
        for holders in combinations(points, count):
            distributions = [views(secret, threshold, holders, prime) for secret in range(prime)]
            assert all(one == distributions[0] for one in distributions)
    for holders in combinations(points, threshold):  # and exactly the threshold is enough, whoever holds them
        for secret in range(prime):
            assert {interpolate_at_zero(holders, seen, prime) for seen in views(secret, threshold, holders, prime)} == {
                secret
            }


def test_a_threshold_that_is_one_too_low_shows_in_that_count() -> None:
    assert views(0, 2, (1, 2), 5) != views(1, 2, (1, 2), 5)


@pytest.mark.parametrize("secret", [SECRET, bytes(32), TOP])
@pytest.mark.parametrize(("threshold", "points"), [(1, [7]), (2, [1, 2]), (3, [9, 4, 2**32 - 1, 1, 70000]), (67, None)])
def test_shares_give_the_secret_back(secret: bytes, threshold: int, points: list[int] | None) -> None:
    shares = split(secret, threshold, points or range(1, 101), entropy(1))
    assert list(shares) == list(points or range(1, 101))
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    assert combine(shares, threshold) == secret
    some = dict(list(shares.items())[-threshold:])
    assert combine(some, threshold) == secret
    assert solved(some, threshold) == int.from_bytes(secret, "big")


def test_every_subset_of_threshold_or_more_shares_gives_the_same() -> None:
    shares = split(SECRET, 3, range(1, 7), entropy(2))
    for count in range(3, 7):
        for points in combinations(shares, count):
            assert combine({point: shares[point] for point in points}, 3) == SECRET


def test_one_share_less_gives_another_secret_or_none() -> None:
    shares = split(SECRET, 4, range(1, 7), entropy(3))
    for points in combinations(shares, 3):
        with pytest.raises(BadShare, match="give no secret of 32 bytes"):  # 1 in 256 of such values would fit
            combine({point: shares[point] for point in points}, 3)


def test_coefficients_are_drawn_again_when_they_are_no_field_elements() -> None:
    drawn = iter([b"\xff" * 33 + (1).to_bytes(33, "big"), PRIME.to_bytes(33, "big"), (PRIME - 2).to_bytes(33, "big")])
    shares = split(SECRET, 3, [1, 2, 3], lambda count: next(drawn))
    assert not list(drawn)
    assert int.from_bytes(shares[1], "big") == (int.from_bytes(SECRET, "big") - 1) % PRIME


def test_shares_are_fresh_each_time() -> None:
    assert split(SECRET, 2, [1, 2])[1] != split(SECRET, 2, [1, 2])[1]


@pytest.mark.parametrize("wrong", range(1, 6))
def test_a_wrong_share_among_more_than_the_threshold_is_noticed(wrong: int) -> None:
    shares = split(SECRET, 3, range(1, 6), entropy(4))
    value = int.from_bytes(shares[wrong], "big")
    with pytest.raises(BadShare, match="at least one is wrong"):
        combine(shares | {wrong: ((value + 1) % PRIME).to_bytes(33, "big")}, 3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: {}, "0 shares"),
        (lambda s: dict(list(s.items())[:2]), "2 shares cannot give back a secret whose threshold is 3"),
        (lambda s: s | {2: s[2][:-1]}, "point 2 has 32 bytes"),
        (lambda s: s | {2: s[2] + b"\0"}, "point 2 has 34 bytes"),
        (lambda s: s | {3: b"\xff" * 33}, "point 3 is no element"),
        (lambda s: s | {0: SECRET + b"\0"}, "outside 1 to"),
        (lambda s: s | {2**32: s[1]}, "outside 1 to"),
        (lambda s: {1: s[2], 2: s[1], 3: s[3]}, "at least one is wrong"),
    ],
)
def test_unusable_shares_are_refused_by_name(change, sentence: str) -> None:
    shares = split(SECRET, 3, [1, 2, 3], entropy(5))
    with pytest.raises(BadShare, match=sentence):
        combine(change(shares), 3)


def test_a_threshold_below_one_is_refused() -> None:
    with pytest.raises(BadShare):
        combine(split(SECRET, 1, [1]), 0)


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [
        (b"short", 2, [1, 2]),
        (SECRET, 0, [1, 2]),
        (SECRET, 3, [1, 2]),
        (SECRET, 2, [1, 1]),
        (SECRET, 2, [0, 1]),
        (SECRET, 2, [1, 2**32]),
    ],
)
def test_impossible_sharing_is_refused(secret: bytes, threshold: int, points: list[int]) -> None:
    with pytest.raises(ConfigError):
        split(secret, threshold, points)


def test_a_source_of_entropy_that_runs_dry_is_refused() -> None:
    with pytest.raises(ConfigError, match="source of entropy"):
        split(SECRET, 2, [1, 2], lambda count: b"")
