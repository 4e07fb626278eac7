"""Axes span runs: what is laid over what, how each run is called, and which mistakes are refused."""

import math

import pytest

from privfl.errors import ConfigError
from privfl.study.axes import Variant, merged, points, with_target

BASE = {
    "rounds": 3,
    "algorithm": {"name": "fedavg", "weighting": "uniform"},
    "training": {"learning_rate": 0.1},
    "privacy": {"training": {"noise_multiplier": 1.0, "sample_rate": 0.2}},
}


def test_tables_merge_unless_another_part_is_named():
    assert merged(BASE, {"algorithm": {"weighting": "size"}})["algorithm"] == {"name": "fedavg", "weighting": "size"}
    assert merged(BASE, {"algorithm": {"name": "fedavg", "weighting": "size"}})["algorithm"]["weighting"] == "size"
    assert merged(BASE, {"algorithm": {"name": "ditto"}})["algorithm"] == {"name": "ditto"}
    assert merged(BASE, {"training": {"steps": 1}})["training"] == {"learning_rate": 0.1, "steps": 1}
    assert BASE["training"] == {"learning_rate": 0.1}


def test_epsilon_takes_the_place_of_the_noise_and_infinity_takes_dp_sgd_away():
    assert with_target(BASE, 3)["privacy"]["training"] == {"target_epsilon": 3.0, "sample_rate": 0.2}
    assert with_target(BASE, math.inf)["privacy"] == {}
    assert with_target({}, 2)["privacy"]["training"] == {"target_epsilon": 2.0}
    assert BASE["privacy"]["training"]["noise_multiplier"] == 1.0


def test_every_value_meets_every_other_one_and_lists_that_vary_together_do_not():
    variants = [Variant("A"), Variant("B", {"algorithm": {"name": "ditto"}}, unset=("privacy.training",))]
    variants += [Variant(name, {"rounds": rounds}, axis="length") for name, rounds in (("short", 2), ("long", 9))]
    found = points(
        BASE,
        variants=variants,
        zipped={"partition": {"clients": [10, 100]}, "training.batch_size": [50, 5]},
        grid={"training": {"learning_rate": [0.1, 0.5]}},
        epsilon=(math.inf, 8),
        seeds=(4, 7),
    )
    assert len(found) == 2 * 2 * 2 * 2 * 2 * 2
    assert len({str(point) for point in found}) == len(found)
    first, last = found[0], found[-1]
    assert (first.method, first.level, first.seed) == (
        "A", "short, clients = 10, batch_size = 50, learning_rate = 0.1, no privacy", 4
    )  # fmt: skip
    assert (last.method, last.level, last.seed) == (
        "B", "long, clients = 100, batch_size = 5, learning_rate = 0.5, ε = 8", 7
    )  # fmt: skip
    assert last.settings["algorithm"] == {"name": "ditto"}
    assert last.settings["privacy"]["training"] == {"target_epsilon": 8.0}
    assert (last.settings["training"], last.settings["seed"]) == ({"learning_rate": 0.5, "batch_size": 5}, 7)


def test_an_axis_of_algorithms_names_the_methods():
    named = points(BASE, grid={"algorithm": {"name": ["fedavg", "ditto"]}})
    tables = points(BASE, grid={"algorithm": [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}]})
    assert [(one.method, one.level) for one in named] == [("fedavg", "as given"), ("ditto", "as given")]
    assert named[1].settings["algorithm"] == {"name": "ditto"}
    assert [one.method for one in tables] == ["fedavg", "fedprox (mu = 0.1)"]


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"grid": {"training": {"learning_rate": 0.1}}}, r"study\.grid\.training\.learning_rate is 0\.1; give a list"),
        ({"grid": {"rounds": []}}, r"study\.grid\.rounds is empty"),
        ({"zipped": {"rounds": [1, 2], "evaluate_every": [1]}}, r"rounds has 2, evaluate_every has 1\); make them"),
        ({"epsilon": (3, -1)}, r"study\.epsilon holds -1; give positive numbers, or inf"),
        ({"epsilon": (3, 3)}, "two runs of the study are called 'fedavg, ε = 3, seed 0'"),
        ({"variants": [Variant("A"), Variant("A")]}, "two variants of the axis 'method' are called 'A'"),
    ],
)
def test_impossible_axes_are_one_sentence(axes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        points(BASE, **axes)


@pytest.mark.parametrize("table", [{"rounds": 3}, {"name": "A", "axis": 3}, {"name": "A", "unset": "rounds"}, 7])
def test_variants_that_are_none_are_refused(table):
    with pytest.raises(ConfigError, match=r"give|write"):
        Variant.of(table)
