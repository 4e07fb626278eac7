"""What correlated noise promises, whatever its matrix: patterns, prices, errors, grids, resumes."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation

from privfl.errors import ConfigError
from privfl.federation.cohorts import Everyone
from privfl.privacy.accounting.accountant import epsilon
from privfl.privacy.mechanisms.banded import BandedNoise
from privfl.privacy.mechanisms.participation import ParticipationPattern as Pattern
from privfl.privacy.mechanisms.tree import TreeNoise
from privfl.privacy.noise.source import NoiseSource, release_grid

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
ACCOUNTING = json.loads((Path(__file__).parents[2] / "oracles" / "accounting.json").read_text())
SOURCE = NoiseSource.from_key(11)
MECHANISMS = [BandedNoise(1.5), BandedNoise(1.5, objective="max"), TreeNoise(1.5)]
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)


def admissible(pattern):
    """Every set of rounds in which one client may take part, largest ones included."""
    for count in range(1, pattern.participations + 1):
        for rounds in itertools.combinations(range(pattern.rounds), count):
            if all(late - early >= pattern.separation for early, late in itertools.pairwise(rounds)):
                yield list(rounds)


def claim(event, delta=1e-5):
    return epsilon({(event, ADD_REMOVE): 1}, delta, interval=False).epsilon


@each_mechanism
def test_the_rounds_that_a_client_takes_part_in_cost_no_more_than_the_run(mechanism):
    pattern = Pattern(14, 4, 3)
    plan = mechanism.plan(pattern, 2.0)
    costs = np.array([plan.participation_event(round).noise_multiplier ** -2 for round in range(14)])
    worst = max(costs[rounds].sum() for rounds in admissible(pattern))
    assert worst == pytest.approx(plan.event.noise_multiplier**-2, rel=1e-9)
    rounds = max(admissible(pattern), key=lambda rounds: costs[rounds].sum())
    together = [((plan.participation_event(round), ADD_REMOVE), 1) for round in rounds]
    assert epsilon(together, 1e-5).epsilon == pytest.approx(claim(plan.event), rel=1e-7)


@pytest.mark.parametrize("row", ACCOUNTING["zcdp"]["rows"], ids=lambda row: f"rho{row['rho']}")
def test_a_run_is_priced_as_the_gaussian_mechanism_it_is_not_by_its_zcdp(row):
    plan = BandedNoise((2 * row["rho"]) ** -0.5).plan(Pattern(30, 10, 3), 1.0)
    assert claim(plan.event, row["delta"]) == pytest.approx(row["gauss_exact"], rel=1e-6)
    assert claim(plan.event, row["delta"]) < row["rdp_eps"]


@pytest.mark.parametrize(
    ("mechanism", "pattern", "gain"),
    [
        (
            BandedNoise(1.0, objective="square-root"),
            Pattern(64, 64, 1),
            65 / 2 / 4.971457167923639,
        ),  # jax-privacy's loss
        (BandedNoise(1.0), Pattern(64, 64, 1), 6.8),
        (BandedNoise(1.0), Pattern(64, 8, 8), 4.5),
        (TreeNoise(1.0), Pattern(64, 64, 1), 2.4),
        (TreeNoise(1.0), Pattern(64, 8, 8), 2.6),
    ],
    ids=str,
)
def test_at_the_same_epsilon_sums_of_rounds_carry_less_noise_than_with_independent_noise(mechanism, pattern, gain):
    """Independent noise for k participations has variance k in every round: k(T + 1)/2 on average, kT at the end."""
    most, rounds = pattern.participations, pattern.rounds
    plan, independent = mechanism.plan(pattern, 1.0), BandedNoise(1.0, bands=1).plan(pattern, 1.0)
    assert plan.event == independent.event
    assert independent.mean_error == pytest.approx(most * (rounds + 1) / 2)
    assert independent.max_error == pytest.approx(most * rounds)
    assert independent.mean_error / plan.mean_error >= gain * (1 - 1e-9)
    assert independent.max_error / plan.max_error > gain * 0.8


@each_mechanism
def test_the_noise_on_sums_of_rounds_is_as_large_as_announced(mechanism):
    plan = mechanism.plan(Pattern(11, 4, 3), 0.7)
    size = 20_000
    sums = np.cumsum([plan.add_(torch.zeros(size), round, SOURCE).numpy() for round in range(11)], axis=0)
    ratio = (sums.astype(np.float64) ** 2).mean(1) / plan.prefix_deviations() ** 2
    assert np.abs(ratio - 1).max() < 6.2 * math.sqrt(2 / size)  # 11 rounds, two-sided: 6e-9


@each_mechanism
def test_a_resumed_run_repeats_the_noise_and_goes_on_with_it(mechanism):
    pattern = Pattern(13, 5, 3)
    whole = mechanism.plan(pattern, 1.0)
    noise = [whole.add_(torch.zeros(33, dtype=torch.float64), round, SOURCE) for round in range(13)]
    for start in (1, 6, 11):
        resumed = mechanism.plan(pattern, 1.0)
        for round in range(start, 13):
            assert torch.equal(resumed.add_(torch.zeros(33, dtype=torch.float64), round, SOURCE), noise[round])
    for round in (12, 3, 3, 4, 9):  # in any order
        assert torch.equal(whole.add_(torch.zeros(33, dtype=torch.float64), round, SOURCE), noise[round])


@each_mechanism
def test_noise_depends_on_the_key_the_round_and_the_size_whatever_was_drawn_before(mechanism):
    def fresh(shape, round, source):
        return mechanism.plan(Pattern(6, 3, 2), 1.0).add_(torch.zeros(shape), round, source)

    other, plan = NoiseSource.from_key(12), mechanism.plan(Pattern(6, 3, 2), 1.0)
    for round, shape, source in [(0, (4,), SOURCE), (1, (2, 9), SOURCE), (2, (18,), other), (3, (18,), SOURCE)]:
        assert torch.equal(plan.add_(torch.zeros(shape), round, source), fresh(shape, round, source))
    assert not torch.equal(fresh(4, 1, SOURCE), fresh(4, 1, other))
    assert not torch.equal(fresh(4, 1, SOURCE), fresh(4, 2, SOURCE))


class CountingSource(NoiseSource):
    """Counts the streams that were asked for."""

    asked = 0

    def stream(self, *labels):
        type(self).asked += 1
        return super().stream(*labels)


@each_mechanism
def test_a_run_in_order_draws_each_number_once(mechanism):
    plan, source, CountingSource.asked = (
        mechanism.plan(Pattern(64, 16, 4), 1.0),
        CountingSource.from_key(1),
        0,
    )
    for round in range(64):
        plan.add_(torch.zeros(3), round, source)
    nodes = 4 * (16 + 8 + 4 + 2 + 1)
    assert CountingSource.asked == (nodes if isinstance(mechanism, TreeNoise) else 64)


@each_mechanism
def test_releases_lie_on_the_grid_of_the_noise_and_keep_their_sum(mechanism):
    plan = mechanism.plan(Pattern(6, 3, 2), 1.0)
    grid = release_grid(plan.deviation)
    total = torch.linspace(-3, 3, 50, dtype=torch.float64).reshape(5, 10)
    for round in range(4):
        bare = mechanism.plan(Pattern(6, 3, 2), 1.0).add_(torch.zeros_like(total), round, SOURCE)
        released = plan.add_(total.clone(), round, SOURCE)
        assert torch.equal((released / grid).round() * grid, released)
        assert (released - bare - total).abs().max() <= grid
        single = plan.add_(total.float(), round, SOURCE)
        assert (single.double() - released).abs().max() <= grid


@pytest.mark.parametrize("kind", [BandedNoise, TreeNoise])
def test_without_a_multiplier_nothing_is_added_and_nothing_is_claimed(kind):
    plan = kind(0.0).plan(Pattern(6, 3, 2), 1.0)
    total = torch.ones(3)
    assert torch.equal(plan.add_(total, 0, SOURCE), torch.ones(3))
    assert claim(plan.event) == claim(plan.participation_event(1)) == math.inf


@pytest.mark.parametrize("kind", [BandedNoise, TreeNoise])
def test_one_round_needs_no_pattern_and_is_the_gaussian_mechanism(kind):
    plan = kind(2.0).plan(Pattern.of(Everyone(), clients=5, rounds=1), 0.5)
    assert plan.deviation == 1.0
    assert plan.prefix_deviations().tolist() == [1.0]


@pytest.mark.parametrize("kind", [BandedNoise, TreeNoise])
@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda kind: kind(-1.0), "noise_multiplier is -1.0"),
        (lambda kind: kind(math.nan), "noise_multiplier is nan"),
        (lambda kind: kind(math.inf), "noise_multiplier is inf"),
        (lambda kind: kind(1.0, 0), "is 0; give a whole number of at least 1"),
        (lambda kind: kind(1.0).plan(Pattern(4, 2, 2), 0.0), "bound that correlated noise covers is 0.0"),
        (lambda kind: kind(1.0).plan(Pattern(4, 2, 2), 1e-310), "ordinary size"),
        (
            lambda kind: kind(1.0).plan(Pattern(4, 1, 4), 1.0),
            "two rounds running; use the cohort rotation",
        ),
        (lambda kind: kind(1.0, 3).plan(Pattern(4, 2, 2), 1.0), "may return after 2"),
        (
            lambda kind: kind(1.0).plan(Pattern(4, 2, 2), 1.0).add_(torch.zeros(2), 4, SOURCE),
            "round 4 is none of",
        ),
        (
            lambda kind: kind(1.0).plan(Pattern(4, 2, 2), 1.0).participation_event(-1),
            "round -1 is none of",
        ),
        (
            lambda kind: kind(1.0).plan(Pattern(4, 2, 2), 1.0).add_(torch.zeros(2, dtype=torch.int64), 0, SOURCE),
            "tensor of torch.int64",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(kind, act, says):
    with pytest.raises(ConfigError, match=says):
        act(kind)
