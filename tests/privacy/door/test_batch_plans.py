"""Plans of batches: public numbers only under DP-SGD, and settings refused in one sentence."""

import pytest
import torch

import privfl as pf
from privfl.algorithms.fedsampling import NaiveFedSampling
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import Epochs, LocalTraining, Poisson, private_plan
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream


def test_plans_under_dp_sgd_use_public_numbers_only():
    training = LocalTraining(batch_size=25, epochs=2)
    assert private_plan(training, None, 0) == Epochs(25, 2, None)
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=(0.1, 0.4))
    assert private_plan(training, dpsgd, 0) == Poisson(0.1, steps=20, divisor=25.0)
    assert private_plan(training, dpsgd, 1) == Poisson(0.4, steps=5, divisor=25.0)


@pytest.mark.parametrize(
    "settings",
    [{"learning_rate": 0.0}, {"batch_size": 0}, {"epochs": 0}, {"steps": 0}, {"momentum": 1.0}, {"weight_decay": -1.0}],
)
def test_impossible_training_settings_are_one_sentence(settings):
    with pytest.raises(ConfigError, match=f"training.{next(iter(settings))} is"):
        LocalTraining(**settings)


def test_every_poisson_batch_is_drawn_anew_and_from_the_noise_where_there_is_any():
    """Two of ten batches of 40 rows agree with probability 4e-11; the experiment's seed decides without a mechanism."""
    plan = Poisson(0.5, steps=10, divisor=1.0)

    def drawn(seed, key):
        noise = None if key is None else NoiseSource.from_key(key).stream("door", 0, 0)
        return [tuple(rows.tolist()) for rows in plan.rows(torch.arange(40), torch_stream(seed, "batches"), noise)]

    assert len(set(drawn(1, 1))) == len(set(drawn(1, None))) == 10
    assert drawn(1, 1) == drawn(2, 1) != drawn(1, 2)
    assert drawn(1, None) != drawn(2, None)


@pytest.mark.parametrize("steps", [None, 1, 4, 11])
def test_epochs_are_shuffled_anew_and_cut_where_the_steps_end(steps):
    rows, plan = torch.arange(100, 110), Epochs(4, 2, steps)
    drawn = list(plan.rows(rows, torch_stream(3, "batches"), None))
    assert len(drawn) == plan.length(10) == (steps or 6)
    shuffle = torch_stream(3, "batches")
    orders = [rows[torch.randperm(10, generator=shuffle)] for _ in range(4)]
    for step, batch in enumerate(drawn):
        start = 4 * (step % 3)
        assert torch.equal(batch, orders[step // 3][start : start + 4])


def test_a_client_without_rows_has_empty_batches():
    noise = NoiseSource.from_key(1).stream("door", 0, 0)
    drawn = list(Poisson(0.3, steps=3, divisor=1.0).rows(torch.arange(0), torch_stream(0, "batches"), noise))
    assert [len(rows) for rows in drawn] == [0, 0, 0]


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, 1e-16, 1e-300])
@pytest.mark.parametrize(
    "made", [Poisson, pf.PoissonCohort, NaiveFedSampling, lambda rate: pf.DPSGD(noise_multiplier=1.0, sample_rate=rate)]
)
def test_rates_that_coins_of_64_bits_do_not_keep_to_are_one_sentence(rate, made):
    with pytest.raises(ConfigError, match=r"is .*; give a number between 1e-15 and 1$"):
        made(rate)
