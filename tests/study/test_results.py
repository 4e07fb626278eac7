"""What a study found: judged by the right models, with intervals, fronts and frames."""

import importlib.util
import math
from dataclasses import replace

import pytest
from scipy import stats

from privfl.errors import ConfigError, DataError
from privfl.study.results import Results, front, fronts
from privfl.study.store import CELLS, Member


def member(method, seed, level="l", state="done", **metrics) -> Member:
    claims = {f"epsilon {cell}": metrics.pop("epsilon", math.inf) for cell in CELLS[:1]}
    claims |= {f"epsilon {cell}": claims["epsilon sample/server"] for cell in CELLS}
    return Member(method, level, seed, f"{method}-{level}-{seed}", state, metrics={**claims, **metrics})


def test_personal_methods_are_judged_by_their_personal_models_and_others_on_the_same_tests():
    found = Results("t", [
        member("ditto", 0, test_accuracy=0.845, local_accuracy=0.8, personal_accuracy=0.91),
        member("fedavg", 0, test_accuracy=0.87, local_accuracy=0.86),
    ])  # fmt: skip
    assert [(row.judged_by, row.mean) for row in found.rows()] == [
        ("personal_accuracy", 0.91),
        ("local_accuracy", 0.86),
    ]
    told = Results("t", found.members, metric="test_accuracy")
    assert [row.mean for row in told.rows()] == [0.845, 0.87]


def test_a_figure_does_not_take_the_place_of_a_column_of_its_name():
    (row,) = Results("t", [member("aaggff-s", 0, level="ε = 3", test_accuracy=0.8)]).table()
    assert row["level"] == "ε = 3"
    one = Member("aaggff-s", "ε = 3", 0, "r", "done", metrics={"test_accuracy": 0.8, "level": 1.5, "seed": 7.0})
    (row,) = Results("t", [one]).table()
    assert (row["level"], row["seed"], row["figure level"], row["figure seed"]) == ("ε = 3", 0, 1.5, 7.0)


def test_an_interval_is_students_and_one_seed_has_none():
    values = [0.81, 0.84, 0.86, 0.8]
    (row,) = Results("t", [member("a", seed, test_accuracy=value) for seed, value in enumerate(values)]).rows()
    expected = stats.t.interval(0.95, 3, row.mean, stats.sem(values))
    assert (row.low, row.high) == pytest.approx(expected)
    (row,) = Results("t", [member("a", 0, test_accuracy=0.8)]).rows()
    assert math.isnan(row.deviation)
    assert math.isnan(row.low)


def test_a_claim_is_the_largest_over_the_seeds_and_failed_runs_are_counted():
    (row,) = Results("t", [
        member("a", 0, test_accuracy=0.8, epsilon=1.0),
        member("a", 1, test_accuracy=0.8, epsilon=2.0),
        member("a", 2, state="failed", test_accuracy=0.1, epsilon=9.0),
    ]).rows()  # fmt: skip
    assert (row.epsilons["sample/public"], row.failed, len(row.values)) == (2.0, 1, 2)
    (row,) = Results("t", [member("a", 0, test_accuracy=0.8, epsilon=1.0), member("a", 1, test_accuracy=0.8)]).rows()
    assert row.epsilons["sample/public"] == math.inf


def test_nothing_done_and_no_such_metric_are_said():
    with pytest.raises(DataError, match="no run of 't' is done yet"):
        Results("t", [member("a", 0, state="waiting")]).rows()
    failed = [replace(member("a", seed, state="failed"), reason=f"disk {seed} is full.") for seed in range(2)]
    with pytest.raises(DataError, match=r"'t' is done: all 2 runs failed, the first because disk 0 is full; mend that"):
        Results("t", failed).rows()
    with pytest.raises(DataError, match="'t' is done: 2 of 3 runs failed, the first because disk 0 is full; mend"):
        Results("t", [*failed, member("a", 2, state="waiting")]).rows()
    with pytest.raises(ConfigError, match="unknown metric 'acuracy': did you mean 'test_accuracy'"):
        Results("t", [member("a", 0, test_accuracy=0.8)], metric="acuracy").rows()


def test_a_front_holds_what_nothing_beats():
    assert front([(1.0, 1.0), (1.0, 1.0), (2.0, 2.0), (math.inf, 0.5)]) == [0, 1, 3]
    found = fronts(Results("t", [
        member("cheap", 0, test_accuracy=0.7, epsilon=1.0, bytes_sent=10, local_worst_tenth=0.6),
        member("dear", 0, test_accuracy=0.9, epsilon=8.0, bytes_sent=5, local_worst_tenth=0.5),
        member("beaten", 0, test_accuracy=0.6, epsilon=8.0, bytes_sent=20, local_worst_tenth=0.1),
    ], metric="test_accuracy"))  # fmt: skip
    names = {cost: [method for method, _ in where] for cost, where in found.items()}
    assert names["epsilon sample/public"] == ["cheap", "dear"]
    assert names["bytes_sent"] == ["dear"]
    assert names["worst tenth"] == ["cheap", "dear"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_holds_every_figure_of_every_run_or_says_what_to_install(library):
    found = Results("t", [member("a", 0, test_accuracy=0.8), member("b", 0, state="failed")])
    if importlib.util.find_spec(library) is None:
        with pytest.raises(
            ConfigError, match=rf"{library} is not installed; install it, pip install 'privfl\[{library}"
        ):
            found.frame(library)
    else:
        frame = found.frame(library)
        assert list(frame["method"]) == ["a", "b"]
        assert frame["test_accuracy"][0] == 0.8
