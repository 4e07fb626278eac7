"""A study that compares methods with different weights says so before it trains."""

import pytest

import privfl as pf
from privfl.study.members import Resolved
from privfl.study.objectives import different_weights, weights_of

OWN = {"name": "pfedme", "weighting": "uniform"}
BASE = {"rounds": 1, "partition": {"name": "iid", "clients": 4}, "training": {"steps": 1}}


def resolved(variants, **grid):
    study = pf.Study(
        BASE,
        variants=tuple(pf.Variant(name, {"algorithm": table}) for name, table in variants.items()),
        grid=grid,
    )
    return [Resolved(point, pf.Experiment.from_dict(point.settings)) for point in study.points()]


def test_methods_that_weigh_clients_differently_are_named():
    sentence = different_weights(
        resolved({"FedAvg": {"name": "fedavg"}, "SCAFFOLD": {"name": "scaffold"}, "pFedMe": OWN})
    )
    assert sentence == (
        "the methods pursue two objectives: clients count by size in FedAvg, and alike in SCAFFOLD, pFedMe; set the "
        "study's weighting to one value to compare them"
    )


@pytest.mark.parametrize(
    "tables",
    [
        ({"name": "fedavg"}, {"name": "scaffold", "weighting": "size"}),
        ({"name": "fedavg", "weighting": "uniform"}, {"name": "scaffold"}),
        ({"name": "fedavg"}, {"name": "afl"}, {"name": "fedsampling", "samples_per_round": 8}),
    ],
)
def test_nothing_is_said_of_one_objective_or_of_methods_that_are_about_weights(tables):
    assert different_weights(resolved({table["name"]: table for table in tables})) == ""


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_one_weighting_of_the_study_makes_the_methods_one_objective(weighting):
    names = ("fedavg", "scaffold", "pfedme", "q-fedavg", "afl", "fedevg")
    study = pf.Study(
        {**BASE, "weighting": weighting}, variants=tuple(pf.Variant(one, {"algorithm": {"name": one}}) for one in names)
    )
    found = [Resolved(point, pf.Experiment.from_dict(point.settings)) for point in study.points()]
    assert different_weights(found) == ""
    assert [weights_of(one.experiment) for one in found] == [weighting] * 4 + [None] + [weighting]


def test_weights_that_the_axis_varies_are_no_slip():
    both = {"FedAvg": {"name": "fedavg"}, "FedProx": {"name": "fedprox"}}
    assert different_weights(resolved(both, **{"algorithm.weighting": ["size", "uniform"]})) == ""


def test_drawing_by_size_is_weighing_by_size():
    cohort = {"name": "size-weighted", "size": 2}
    given = {**BASE, "cohort": cohort, "algorithm": {"name": "fedavg", "weighting": "uniform"}}
    assert weights_of(pf.Experiment.from_dict(given)) == "size"
    assert weights_of(pf.Experiment.from_dict({**given, "cohort": {"name": "everyone"}})) == "uniform"


def test_a_study_says_so_before_its_first_run(tmp_path, caplog):
    variants = [pf.Variant(name, {"algorithm": {"name": name}}) for name in ("fedavg", "scaffold")]
    pf.Study({**BASE, "workers": 1, "model": {"name": "logistic"}}, variants=tuple(variants)).run(tmp_path, processes=1)
    assert any("by size in fedavg, and alike in scaffold" in record.message for record in caplog.records)
