"""DP-SGD's settings, refused in one sentence where they are impossible."""

import math

import pytest

import privfl as pf
from privfl.errors import ConfigError


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"noise_multiplier": 1.0, "target_epsilon": 1.0},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": 1.0, "max_grad_norm": 0.0},
        {"noise_multiplier": 1.0, "sample_rate": 0.0},
        {"noise_multiplier": 1.0, "sample_rate": 1.1},
        {"noise_multiplier": 1.0, "noise_at": "nowhere"},
        {"noise_multiplier": (1.0, 2.0), "noise_at": "server"},
        {"target_epsilon": 0.0},
    ],
)
def test_impossible_dp_sgd_settings_are_one_sentence(settings):
    with pytest.raises(ConfigError, match="DPSGD"):
        pf.DPSGD(**settings)


def test_a_list_for_another_number_of_clients_is_refused():
    with pytest.raises(ConfigError, match="lists 2 values for 3 clients"):
        pf.DPSGD(noise_multiplier=(1.0, 2.0)).check_clients(3)
