"""LiRA's likelihood ratios against scipy's normal densities, and against Gaussian theory."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from attacks.membership.lira import LiRA, augmented, confidences, lira_offline, lira_online
from attacks.membership.shadow_models import ShadowTraining, train_shadows
from attacks.metrics.distinguishing import auc
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of, watch


def world(shadows: int, records: int, queries: int = 1, seed: int = 0):
    """Confidences that are N(1.5, 1) where a model trained on a record and N(0, 0.5²) where it did not."""
    generator = np.random.default_rng(seed)
    inside = np.argsort(generator.random((shadows, records)), 0) < shadows // 2
    members = generator.random(records) < 0.5

    def phi(trained):
        shape = (*trained.shape, queries)
        return np.where(trained[..., None], generator.normal(1.5, 1, shape), generator.normal(0, 0.5, shape))

    return phi(members), phi(inside), inside, members


def test_the_online_score_is_the_ratio_of_scipys_densities_at_sample_means_and_deviations():
    own, others, inside, _ = world(12, 5, queries=2)
    found = lira_online(own, others, inside, own_variance=True)
    for record in range(5):
        expected = 0.0
        for query in range(2):
            ins, outs = (others[mask[:, record], record, query] for mask in (inside, ~inside))
            value = own[record, query]
            expected += norm.logpdf(value, ins.mean(), ins.std(ddof=1)) - norm.logpdf(
                value, outs.mean(), outs.std(ddof=1)
            )
        assert found[record] == pytest.approx(expected, rel=1e-9)


def test_the_offline_score_orders_by_the_one_sided_probability_and_does_not_saturate():
    own, others, inside, _ = world(12, 40)
    found = lira_offline(own, others, inside, own_variance=True)
    z = []
    for record in range(40):
        outs = others[~inside[:, record], record, 0]
        z.append((own[record, 0] - outs.mean()) / outs.std(ddof=1))
        assert found[record] == pytest.approx(-norm.logsf(z[-1]), rel=1e-9)
    assert np.argsort(found).tolist() == np.argsort(norm.cdf(z)).tolist() or max(z) > 8
    far = [lira_offline(np.array([[value]]), others[:, :1], inside[:, :1], own_variance=True)[0] for value in (20, 21)]
    assert far[0] < far[1] < math.inf


def test_the_global_variance_pools_the_records_deviations_from_their_own_means():
    own, others, inside, _ = world(8, 6)
    found = lira_online(own, others, inside, own_variance=False)
    deviations = []
    for mask in (inside, ~inside):
        apart = np.concatenate([others[mask[:, r], r, 0] - others[mask[:, r], r, 0].mean() for r in range(6)])
        deviations.append(math.sqrt((apart**2).sum() / (len(apart) - 6)))
    for record in range(6):
        ins, outs = (others[mask[:, record], record, 0].mean() for mask in (inside, ~inside))
        value = own[record, 0]
        expected = norm.logpdf(value, ins, deviations[0]) - norm.logpdf(value, outs, deviations[1])
        assert found[record] == pytest.approx(expected, rel=1e-9)


def test_with_many_shadows_the_attack_reaches_the_likelihood_ratio_test():
    """N(1.5, 1) against N(0, 0.5²): the optimal AUC by integration; 4 standard errors of 4000 records are 0.025."""
    own, others, inside, members = world(200, 4000, seed=1)
    found = lira_online(own, others, inside, own_variance=True)
    grid = np.linspace(-8, 10, 40_001)
    ratio = norm.logpdf(grid, 1.5, 1) - norm.logpdf(grid, 0, 0.5)
    order = np.argsort(-ratio)
    tpr, fpr = (np.cumsum(norm.pdf(grid, m, s)[order]) * (grid[1] - grid[0]) for m, s in ((1.5, 1), (0, 0.5)))
    best = float(np.trapezoid(tpr, fpr))
    assert auc(found[members], found[~members]).value == pytest.approx(best, abs=0.025)


def test_queries_are_flips_and_shifts_of_the_image():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    assert augmented(image, "identity") is image
    assert augmented(image, "flip")[0, 0, 0].tolist() == [2, 1, 0]
    assert augmented(image, "right")[0, 0, 0].tolist() == [0, 0, 1]
    assert augmented(image, "left")[0, 0, 0].tolist() == [1, 2, 2]
    assert augmented(image, "down")[0, 0, :, 0].tolist() == [0, 0, 3]
    assert augmented(image, "up")[0, 0, :, 0].tolist() == [3, 6, 6]


@pytest.fixture(scope="module")
def victim():
    """A network that knows 60 digits with random labels by heart."""
    members, others, public = part(0, 60), part(60, 200), part(200, 360)
    return watch(task_of([members]), epochs=60), game(members, others, public)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_an_overfitted_network_gives_its_members_away(victim, mode):
    seen, asked = victim
    attack = LiRA(mode=mode, shadows=ShadowTraining(count=8, epochs=30, engine="vectorised"))
    found = attack.run(seen.before_public(), asked)
    assert found.metrics["auc"].low > 0.7
    assert found.advantage["auc"].value > 0.25
    assert found.nulls["a shadow in the victim's place"]["auc"].low < 0.5
    assert found.settings["mode"] == mode


def test_confidences_of_several_queries_come_side_by_side(victim):
    seen, asked = victim
    shadows = train_shadows(seen, asked.public, ShadowTraining(count=2, epochs=1, engine="loop"))
    own, others = confidences(seen[-1].released, shadows, asked.candidates, ("identity", "left"))
    assert own.shape == (len(asked.candidates), 2)
    assert others.shape == (2, len(asked.candidates), 2)
    alone, _ = confidences(seen[-1].released, shadows, asked.candidates, ("left",))
    assert np.array_equal(own[:, 1], alone[:, 0])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: LiRA(shadows=ShadowTraining(count=2)), "2 shadows"),
        (lambda: LiRA(queries=("spin",)), "spin"),
        (lambda: LiRA(queries=()), "asks nothing"),
        (lambda: augmented(torch.zeros(2, 5), "flip"), "needs images"),
        (lambda: lira_online(*world(2, 3)[:3], own_variance=True), "train more"),
    ],
)
def test_what_cannot_work_is_refused(call, what):
    with pytest.raises(ConfigError, match=what):
        call()
