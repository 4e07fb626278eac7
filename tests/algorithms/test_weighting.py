"""How clients count is the experiment's choice: every algorithm that averages follows it, and all have one default."""

import pytest
import torch

import privfl as pf
from privfl.algorithms import ALGORITHMS
from privfl.errors import ConfigError
from tests.algorithms.federation import digits_task, layered_task

SIZES = (7, 20, 13)
FOLLOWS = sorted(name for name, kind in ALGORITHMS.items() if kind.counts_by)
OTHERWISE = {"scaffold": "uniform", "q-fedavg": "uniform"}
"""SCAFFOLD's clients would scale by exact sizes, which DP-SGD refuses; q-FedAvg's paper draws clients by size."""
KEEP = {
    *("aaggff-s", "aaggff-d", "aaggff-d-sums", "afl", "fedmgda", "grp-fed", "term-running"),  # about the weights
    *("feddyn", "fedsampling", "fedsampling-naive"),  # one way only
    *("centralized", "local"),  # no mean at all
}
BASE = {"rounds": 1, "partition": {"name": "iid", "clients": 4}, "model": {"name": "logistic"}, "workers": 1}


def test_what_follows_the_experiment_and_what_keeps_its_own_weights():
    assert {*ALGORITHMS} == {*FOLLOWS} | KEEP
    assert not {*FOLLOWS} & KEEP


@pytest.mark.parametrize("name", FOLLOWS)
def test_without_a_word_clients_count_by_size_in_all_but_two(name):
    usual = OTHERWISE.get(name, "size")
    assert ALGORITHMS[name]().weighs == ALGORITHMS[name]().following(None).weighs == usual


@pytest.mark.parametrize("name", FOLLOWS)
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_every_algorithm_that_averages_follows_the_experiment(name, weighting):
    experiment = pf.Experiment.from_dict({**BASE, "weighting": weighting, "algorithm": {"name": name}})
    assert experiment.algorithm.weighs == weighting
    assert getattr(experiment.algorithm, experiment.algorithm.counts_by) == weighting


@pytest.mark.parametrize("name", FOLLOWS)
def test_two_words_that_contradict_each_other_are_refused(name):
    kind = ALGORITHMS[name]
    with pytest.raises(
        ConfigError, match=rf"^weighting is 'size' for the experiment and {kind.counts_by} is 'uniform'"
    ):
        pf.Experiment.from_dict({**BASE, "weighting": "size", "algorithm": {"name": name, kind.counts_by: "uniform"}})


def test_an_algorithms_own_word_still_counts():
    own = pf.Experiment.from_dict({**BASE, "algorithm": {"name": "fedavg", "weighting": "uniform"}})
    both = pf.Experiment.from_dict({**BASE, "weighting": "uniform", "algorithm": {"name": "fedavg"}})
    assert own == both
    assert own.to_dict()["algorithm"]["weighting"] == "uniform"
    assert pf.Experiment.from_dict(own.to_dict()) == own


@pytest.mark.parametrize("name", sorted(KEEP))
def test_algorithms_that_are_about_the_weights_take_no_notice(name):
    assert ALGORITHMS[name]().following("uniform") == ALGORITHMS[name]()


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_a_run_from_python_counts_as_it_says(weighting):
    task, training = digits_task(SIZES), pf.LocalTraining(learning_rate=0.2, batch_size=5)
    said = pf.simulate(task, pf.FedAvg(), rounds=1, training=training, weighting=weighting)
    own = pf.simulate(task, pf.FedAvg(weighting=weighting), rounds=1, training=training)
    assert torch.equal(said.parameters, own.parameters)


def test_personal_methods_average_alike_or_by_size_like_fedavg():
    task, training = layered_task(SIZES), pf.LocalTraining(learning_rate=0.2, batch_size=5)
    moved = {
        weighting: pf.simulate(task, pf.PFedMe(), rounds=1, training=training, weighting=weighting).parameters
        for weighting in ("size", "uniform")
    }
    assert not torch.equal(moved["size"], moved["uniform"])
