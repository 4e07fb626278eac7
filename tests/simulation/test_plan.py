"""What a run is before its first round: fixed, and calibrated into another plan."""

import types
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation.cohorts import Cohort
from privfl.simulation.plan import RunSettings, calibrate_noise, prepare
from privfl.simulation.settings import Schedule
from privfl.simulation.state import State

PRIVATE = pf.Privacy(training=pf.DPSGD(target_epsilon=3.0, sample_rate=0.2))


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.Dirichlet(clients=6, alpha=1.0), model="logistic")


def planned(task, **settings):
    usual = RunSettings(
        task=task,
        algorithm=pf.FedAvg(weighting="uniform"),
        schedule=Schedule(5),
        training=pf.LocalTraining(steps=2),
        privacy=PRIVATE,
        cohort=pf.FixedCohort(3),
        availability=pf.Bernoulli(0.8),
        execution=pf.Execution(device="cpu"),
        record=(),
    )
    return prepare(replace(usual, **settings))


def test_a_plan_does_not_change(task):
    plan = planned(task)
    with pytest.raises(FrozenInstanceError):
        plan.channel = None


def test_a_target_becomes_noise_in_another_plan(task):
    plan = planned(task)
    state = State.start(plan)
    calibrated = calibrate_noise(plan, state.server, state.sizes)
    assert plan.privacy.training.target_epsilon == plan.channel.dpsgd.target_epsilon == 3.0
    assert calibrated.privacy.training.target_epsilon is None
    assert calibrated.privacy.training.noise_multiplier > 0
    assert calibrated.channel.dpsgd is calibrated.privacy.training
    assert (calibrated.channel.size, calibrated.channel.expected) == (plan.channel.size, plan.channel.expected)


def test_noise_that_is_given_leaves_the_plan_as_it_is(task):
    plan = planned(task, privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0)))
    state = State.start(plan)
    assert calibrate_noise(plan, state.server, state.sizes) is plan


def test_centralised_training_has_one_client_who_is_always_there(task):
    plan = planned(task, algorithm=pf.Centralized())
    assert len(plan.task.clients) == 1
    assert isinstance(plan.cohort, pf.Everyone)
    assert plan.available(3).tolist() == [0]


def test_the_initial_model_is_that_of_the_seed(task):
    first, again, other = (planned(task, schedule=Schedule(5, seed)).initial for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_impossible_settings_are_refused_before_anything_is_built(task):
    with pytest.raises(ConfigError, match="uniform weights"):
        planned(
            task,
            algorithm=pf.FedAvg(weighting="size"),
            privacy=pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)]),
        )


class Noting(Cohort):
    """Draws everybody, and notes what it could draw from."""

    def __init__(self):
        self.sources = []

    def expected(self, available):
        return float(available)

    def draw(self, available, round, seed, source, sizes):
        self.sources.append(source)
        return pf.Everyone().draw(available, round, seed, source, sizes)


def test_a_cohort_rule_from_outside_draws_from_a_source_of_its_own(task):
    """All noise comes from the run's."""
    noting, found = Noting(), []
    for cohort in (noting, pf.PoissonCohort(0.5)):
        made = planned(task, cohort=cohort)
        sizes = types.SimpleNamespace(weights=lambda clients: None, total=lambda clients: 1.0)
        made.select_cohort(0, made.available(0), {"parameters": made.initial}, sizes)
        found.append(made.source)
    assert noting.sources[0] != found[0]
    assert noting.sources[0] == found[0].apart("cohort")
