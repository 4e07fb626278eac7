"""Shadows are the victim's network trained on shares of the attacker's records, in one federation."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Records
from attacks.membership.shadow_models import ShadowTraining, join, shares, train_shadows
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import part, task_of, watch


@pytest.fixture(scope="module")
def seen():
    return watch(task_of([part(0, 40)]), rounds=2, epochs=3)


def test_every_record_is_in_exactly_its_share_of_the_shadows_and_records_are_drawn_apart():
    inside = shares(500, 16, 0.5, torch.Generator().manual_seed(0))
    assert (inside.sum(0) == 8).all()
    assert shares(10, 2, 0.99, torch.Generator()).sum(0).tolist() == [1] * 10
    together = (inside[0] & inside[1]).double().mean()
    assert 0.15 < float(together) < 0.32, "P[both] = ½·7/15 = 0.233; 5 standard errors of 500 are 0.095"


def test_both_engines_train_the_same_shadows_and_a_record_outside_changes_nothing(seen):
    pool = part(100, 160)
    loop, stacked = (
        train_shadows(seen, pool, ShadowTraining(count=4, epochs=2, engine=engine)) for engine in ("loop", "vectorised")
    )
    assert torch.allclose(loop.parameters, stacked.parameters, atol=1e-4)
    assert torch.equal(loop.inside, stacked.inside)
    assert len({tuple(row[:5].tolist()) for row in loop.parameters}) == 4, (
        "every shadow has an initialisation of its own"
    )
    outside = int((~loop.inside[0]).nonzero()[0])
    changed = pool.inputs.clone()
    changed[outside] = 1 - changed[outside]
    again = train_shadows(seen, Records(changed, pool.targets), ShadowTraining(count=4, epochs=2, engine="loop"))
    same = [torch.equal(a, b) for a, b in zip(loop.parameters, again.parameters, strict=True)]
    assert same == [not bool(row[outside]) for row in loop.inside]


def test_shadows_train_as_the_victim_did_unless_told_otherwise(seen):
    plan = ShadowTraining().resolved(seen)
    assert (plan.epochs, plan.learning_rate, plan.batch_size) == (6, 0.2, 20)
    assert ShadowTraining(epochs=2, learning_rate=0.5).resolved(seen).learning_rate == 0.5
    by_steps = watch(task_of([part(0, 40)]), steps=2)
    with pytest.raises(ConfigError, match="2 steps"):
        ShadowTraining().resolved(by_steps)


def test_shadows_learn_what_they_were_given(seen):
    pool = part(100, 160)
    shadows = train_shadows(seen, pool, ShadowTraining(count=2, epochs=60, engine="loop"))
    right = (shadows.logits(pool.inputs).argmax(-1) == pool.targets).double()
    assert float(right[shadows.inside].mean()) > 0.95
    assert float(right[~shadows.inside].mean()) < 0.5, "labels are random"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: ShadowTraining(count=0), "0 shadows"),
        (lambda: ShadowTraining(share=1.0), "share 1.0"),
        (lambda: ShadowTraining(epochs=0), "epochs are 0"),
        (lambda: join(None, None), "public"),
    ],
)
def test_what_cannot_be_trained_is_refused(call, what):
    with pytest.raises(ConfigError, match=what):
        call()


def test_a_pool_too_small_for_its_shadows_is_refused(seen):
    with pytest.raises(ConfigError, match="too few"):
        train_shadows(seen, part(0, 1), ShadowTraining(count=4, epochs=1))


def test_a_federated_shadow_is_a_run_like_the_victims_with_its_noise():
    """Labels are random: a run without noise learns its records by heart, and one with much learns nothing."""
    pool, training = part(100, 160), {"epochs": 30, "rounds": 3}
    accuracies = []
    for noise in (None, 20.0):
        dpsgd = None if noise is None else pf.DPSGD(noise_multiplier=noise, sample_rate=0.5)
        victim = task_of([part(20 * k, 20 * (k + 1)) for k in range(3)])
        seen = watch(victim, privacy=pf.Privacy(training=dpsgd), **(training if noise is None else {"rounds": 3}))
        shadows = train_shadows(seen, pool, ShadowTraining(count=2, federated=True, engine="loop"))
        right = (shadows.logits(pool.inputs).argmax(-1) == pool.targets).double()
        accuracies.append(float(right[shadows.inside].mean()))
    assert accuracies[0] > 0.7
    assert accuracies[1] < 0.4


def test_what_federated_shadows_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="leave their epochs"):
        ShadowTraining(federated=True, epochs=3)
    other = watch(task_of([part(0, 40), part(40, 80)]), algorithm=pf.FedProx())
    with pytest.raises(ConfigError, match="the victim fedprox"):
        train_shadows(other, part(100, 160), ShadowTraining(count=2, federated=True))
