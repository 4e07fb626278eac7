"""Plans of batches: public numbers only under DP-SGD, and settings refused in one sentence."""

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import Epochs, LocalTraining, Poisson, private_plan


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
