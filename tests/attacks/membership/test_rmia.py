"""RMIA against its formula, pair by pair, and at work."""

import numpy as np
import pytest

from attacks.membership.rmia import RMIA, best_offline_a, relative, rmia
from attacks.membership.shadow_models import ShadowTraining
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of, watch


def probabilities(seed: int = 0, models: int = 5, records: int = 9):
    generator = np.random.default_rng(seed)
    inside = generator.random((models, records)) < 0.5
    inside[0], inside[1] = True, False
    return generator.random(records), generator.random((models, records)), inside


@pytest.mark.parametrize("gamma", [1.0, 2.0])
@pytest.mark.parametrize("a", [None, 0.3])
def test_the_score_is_the_share_of_the_population_that_is_beaten(gamma, a):
    own, others, inside = probabilities()
    ratio = relative(own, others, inside, a)
    scores = rmia(ratio[:4], ratio[4:], gamma)
    for x in range(4):
        wins = 0
        for z in range(4, 9):
            average = []
            for record in (x, z):
                ins, outs = (np.mean(others[mask[:, record], record]) for mask in (inside, ~inside))
                average.append((ins + outs) / 2 if a is None else 0.5 * ((1 + a) * outs + (1 - a)))
            wins += (own[x] / average[0]) / (own[z] / average[1]) >= gamma
        assert int(scores[x] * 5 + 1e-9) == wins  # what is left of it breaks ties


def test_ties_are_broken_by_the_bare_ratio_and_by_nothing_else():
    scores = rmia(np.array([0.1, 3.0, 2.5, 2.5, 9.0]), np.array([1.0, 4.0]), 2.0)
    assert (np.floor(scores * 2 + 1e-9) == [0, 1, 1, 1, 2]).all()
    assert scores[2] == scores[3] < scores[1] < scores[4]
    assert scores[0] < scores[2]


def test_a_record_that_no_model_left_out_takes_the_mean_over_all():
    own, others, _ = probabilities()
    everyone = np.ones(others.shape, dtype=bool)
    assert np.allclose(relative(own, others, everyone, None), own / others.mean(0))
    assert np.allclose(relative(own, others, ~everyone, 1.0), own / others.mean(0))


def test_a_is_the_one_by_which_the_models_attack_each_other_best():
    """Hard records (small p̄_out) profit most from training: without calibration they drown, and a = 1 is exact."""
    generator = np.random.default_rng(1)
    inside = np.argsort(generator.random((8, 400)), 0) < 4
    base = np.exp(generator.uniform(-4, -1, 400))
    others = np.minimum(1, base * np.exp(np.where(inside, 0.8, 0) + generator.normal(0, 0.3, inside.shape)))
    assert best_offline_a(others, inside, 1.0) >= 0.8


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_an_overfitted_network_gives_its_members_away(mode):
    members, others, public = part(0, 60), part(60, 200), part(200, 360)
    seen, asked = watch(task_of([members]), epochs=60), game(members, others, public)
    attack = RMIA(mode=mode, shadows=ShadowTraining(count=4, epochs=30, engine="vectorised"))
    found = attack.run(seen.before_public(), asked)
    assert found.metrics["auc"].low > 0.65
    assert found.advantage["auc"].value > 0.2


def test_impossible_settings_are_refused():
    for settings in ({"gamma": 0.0}, {"offline_a": 1.5}):
        with pytest.raises(ConfigError):
            RMIA(**settings)


def test_one_reference_is_enough_and_its_null_is_an_untrained_network():
    members, others, public = part(0, 60), part(60, 200), part(200, 360)
    seen, asked = watch(task_of([members]), epochs=60), game(members, others, public)
    found = RMIA(shadows=ShadowTraining(count=1, epochs=30, engine="vectorised")).run(seen.before_public(), asked)
    assert found.metrics["auc"].low > 0.6
    assert set(found.nulls) == {"chance", "untrained network"}
