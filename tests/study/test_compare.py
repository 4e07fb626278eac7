"""Comparisons on the same seeds: p-values that are right, corrected for how many there are, and said in words."""

import math

import numpy as np
import pytest
from scipy import stats

from privfl.study.compare import compare, holm, in_words, paired, sentences
from privfl.study.results import Results
from privfl.study.store import CELLS, Member


def results(values: dict[tuple[str, str], list[float]], **chosen) -> Results:
    members = [
        Member(method, level, seed, f"{method}{seed}", "done", metrics={"test_accuracy": value})
        for (method, level), found in values.items()
        for seed, value in enumerate(found)
    ]
    return Results("t", members, **chosen)


def test_holm_errs_nowhere_more_often_than_it_says():
    """20,000 families of five true hypotheses: any error at all in at most 5 % of them, up to 6 standard deviations."""
    drawn = np.random.default_rng(0).uniform(size=(20_000, 5))
    wrong = sum(min(holm(family)) < 0.05 for family in drawn.tolist())
    assert wrong <= 1000 + 6 * math.sqrt(950)
    assert wrong >= 1000 * 0.8  # and it is not merely never wrong


def test_holm_passes_on_what_was_not_tested():
    corrected = holm([0.01, math.nan, 0.02])
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.02)


def test_paired_tests_are_those_of_scipy_on_the_differences():
    differences = [0.02, 0.011, 0.03, -0.004, 0.017]
    assert paired(differences, "t") == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert paired(differences, "wilcoxon") == pytest.approx(stats.wilcoxon(differences).pvalue)
    assert paired(differences, "sign") == pytest.approx(stats.binomtest(4, 5).pvalue)


def test_equal_differences_settle_no_more_than_their_signs_do():
    assert paired([0.1, 0.1], "t") == 0.5
    assert paired([0.1] * 6, "t") == pytest.approx(2**-5)
    assert paired([0.0, 0.0, 0.0], "t") == 1.0
    assert math.isnan(paired([0.1], "t"))


def test_a_pair_is_compared_on_the_seeds_that_both_have():
    values = {("A", "l"): [0.9, 0.91, 0.92, 0.93], ("B", "l"): [0.8, 0.815, 0.82]}
    (one,) = compare(results(values))
    assert (one.better, one.worse, one.seeds) == ("A", "B", 3)
    expected = stats.ttest_rel([0.9, 0.91, 0.92], [0.8, 0.815, 0.82])
    assert one.p == pytest.approx(expected.pvalue)
    assert (one.low, one.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert one.settled
    assert "settled by these seeds" in in_words(one, "accuracy")
    assert "not settled" not in in_words(one, "accuracy")


def test_what_one_pair_would_settle_many_do_not():
    rng = np.random.default_rng(1)
    alone = {("A", "l"): list(0.9 + 0.01 * rng.normal(size=5)), ("B", "l"): list(0.88 + 0.01 * rng.normal(size=5))}
    many = alone | {(name, "l"): list(0.5 + 0.2 * rng.normal(size=5)) for name in "CDEFG"}
    (one,) = compare(results(alone))
    again = next(pair for pair in compare(results(many)) if {pair.better, pair.worse} == {"A", "B"})
    assert again.p == pytest.approx(one.p)
    assert again.corrected > one.corrected


def test_less_is_better_where_the_metric_says_so():
    values = {("A", "l"): [0.9, 0.8, 0.85], ("B", "l"): [0.2, 0.3, 0.24]}
    assert compare(results(values))[0].better == "A"
    assert compare(results(values, better="lower"))[0].better == "B"


def test_words_and_interval_agree_on_who_is_ahead_where_less_is_better():
    values = {("A", "l"): [0.9, 0.8, 0.85], ("B", "l"): [0.2, 0.3, 0.24]}
    told = in_words(compare(results(values, better="lower"))[0], "loss")
    expected = stats.ttest_rel(values["A", "l"], values["B", "l"]).confidence_interval(0.95)
    assert told.startswith("At l, B is ahead of A by 0.603 in loss")
    assert f"interval [{expected.low:.3g}, {expected.high:.3g}]" in told
    assert expected.low > 0


def test_one_seed_settles_nothing_and_says_so():
    told = sentences(results({("A", "l"): [0.9], ("B", "l"): [0.1]}))
    assert told[0] == "At l, A is ahead of B by 0.8 in accuracy; one seed in common settles nothing."
    assert "all 0 comparisons" in told[-1]
    assert sentences(results({("A", "l"): [0.9], ("B", "m"): [0.1]}))[0].startswith("No two methods share")
    assert len(CELLS) == 4
