"""What an algorithm asks before it trains is charged in every round, like the training itself."""

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

import privfl as pf

ROUNDS, STEPS, RATE, NOISE = 3, 2, 0.1, 2.0
DELTA = 1e-5
"""The default of a run of three clients."""


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_survey_and_the_training_after_it_are_both_charged_in_every_round(engine):
    task = pf.load("digits", partition=pf.IID(clients=3), model="logistic")
    loss = pf.NoisyTotal("loss", max_norm=1.0, noise_multiplier=4.0)
    run = pf.simulate(
        task,
        pf.AFL(loss_bound=4.0),
        rounds=ROUNDS,
        training=pf.LocalTraining(steps=STEPS),
        privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=NOISE, sample_rate=RATE), statistics=[loss]),
        execution=pf.Execution(engine=engine, workers=1),
    )
    theirs = PLDAccountant()
    theirs.compose(SelfComposedDpEvent(PoissonSampledDpEvent(RATE, GaussianDpEvent(NOISE)), ROUNDS * STEPS))
    trained = theirs.get_epsilon(DELTA)
    theirs.compose(SelfComposedDpEvent(GaussianDpEvent(4.0), ROUNDS))
    both = theirs.get_epsilon(DELTA)
    assert trained < 0.9 * both
    assert run.statement.cell("sample", "server").epsilon == pytest.approx(both, rel=0.02)
