"""Audits of the row ``client``: canary clients that take part or send nothing, in an otherwise ordinary federation."""

import math

import numpy as np
import pytest

import privfl as pf
from audits.bounds.gaussian_family import GaussianFamily
from audits.canaries.alignment import client_alignment
from audits.canaries.canaries import noise_canaries, rare_token_canaries, rare_token_task
from audits.canaries.client_canaries import audit_clients, with_canary_clients
from audits.canaries.views import seen_by
from privfl.errors import ConfigError
from privfl.federation.cohorts import CohortWithout
from privfl.privacy.noise.source import NoiseSource

SURE = 1 - 1e-6  # the false-alarm rate of every verdict here
CLIP = 0.02


def trainer(noise, rounds=2, *, record=("server", "public"), update=None, delta=1e-5):
    def train(task, cohort):
        return pf.simulate(
            task,
            pf.FedAvg(weighting="uniform"),
            rounds=rounds,
            training=pf.LocalTraining(learning_rate=1.0, batch_size=1, steps=1),
            privacy=pf.Privacy(
                update=update or [pf.Clip(CLIP), pf.GaussianNoise(noise)], noise_key=1, target_delta=delta
            ),
            cohort=cohort,
            record=list(record),
            execution=pf.Execution(engine="vectorised", workers=1),
            evaluate_every=1000,
        )

    return train


@pytest.fixture(scope="module")
def tokens():
    task = rare_token_task(500)
    return task, rare_token_canaries(task, 500)


def test_a_canary_client_moves_the_sum_by_the_clipping_norm_and_a_silent_one_by_nothing(tokens):
    planted, canaries = with_canary_clients(*tokens)
    included = canaries.coins(1)
    left_out = frozenset(canaries.owners[~included].tolist())
    run = trainer(2.0)(planted, CohortWithout(pf.Everyone(), left_out))
    assert run.statement.cell("client", "public").epsilon == pytest.approx(2.943, abs=1e-3)
    shift = client_alignment(seen_by(run, "public"), canaries, planted.loss) * 501 / CLIP
    # 500 numbers a side of standard deviation 2: five standard errors
    assert shift[:, included].mean() == pytest.approx(1, abs=5 * 2 / math.sqrt(480))
    assert shift[:, ~included].mean() == pytest.approx(0, abs=5 * 2 / math.sqrt(480))
    assert shift[:, ~included].std() == pytest.approx(2, rel=5 / math.sqrt(960))
    assert np.isin(canaries.owners[~included], run.transcript[0].training.members).sum() == 0


def test_the_claim_is_not_refuted_and_the_estimate_is_no_bound(tokens, common_noise):
    family = GaussianFamily(steps=2, observed_steps=2)
    result = audit(tokens, 2.0, trials=family)
    assert result.unit == "client"
    assert len(result.bounds) == 3
    assert result.bounds[0].assumes == ""
    assert result.bounds[0].epsilon > 0.5
    assert result.bound.epsilon <= result.claim
    assert not result.refuted
    assert result.estimates[0].epsilon == pytest.approx(result.claim, rel=0.6)
    assert "estimate" in str(result)


def audit(tokens, noise, confidence=0.95, **more):
    task, canaries = tokens
    # one run and m canaries certify nothing unless m·δ is well below the error
    train = trainer(noise, delta=1e-5 if confidence < 0.99 else 1e-11)
    return audit_clients(task, train, canaries, confidence=confidence, **more)


def test_a_quarter_of_the_noise_on_the_sum_is_refuted(tokens, monkeypatch):
    family = GaussianFamily(steps=2, observed_steps=2)
    assert not audit(tokens, 2.0, SURE, trials=family).refuted
    from privfl.privacy.noise.source import NoiseStream

    right = NoiseStream.add_gaussian_
    monkeypatch.setattr(NoiseStream, "add_gaussian_", lambda self, tensor, sd: right(self, tensor, sd / 4))
    assert audit(tokens, 2.0, SURE, trials=family).refuted


def test_updates_that_are_not_clipped_are_refuted_without_any_assumption(tokens, monkeypatch):
    assert not audit(tokens, 8.0, SURE).refuted
    monkeypatch.setattr(pf.Clip, "at_client", lambda self, update, noise, round: update)
    assert not audit(tokens, 8.0, SURE).refuted, "the channel holds updates to the bound by itself"
    monkeypatch.setattr("privfl.privacy.channel.client_side.within_bound", lambda update, bound: update)
    result = audit(tokens, 8.0, SURE)
    assert result.refuted
    assert all(bound.assumes == "" for bound in result.bounds)


def test_secure_sums_are_audited_before_the_server():
    task = rare_token_task(60, clients=140)  # so that silence is no more than the drop-out that sums survive
    update = [pf.Clip(CLIP), pf.DiscreteGaussianNoise(0.5), pf.SecureSum(mode="ideal")]
    train = trainer(0.0, update=update)
    result = audit_clients(task, train, rare_token_canaries(task, 60), observer="server")
    assert math.isfinite(result.claim)
    assert not result.refuted
    # a client whose update alone is left out would have added its share of the noise: the silent one did not
    assert all("share of the noise" in bound.assumes for bound in result.bounds)


def test_any_model_takes_canary_clients():
    arrays = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    task = pf.Task.from_arrays(arrays, np.arange(40) % 2, partition=pf.IID(clients=4), model="logistic")
    result = audit_clients(task, trainer(0.1), noise_canaries(task, 40, seed=2))
    assert not result.refuted
    assert result.bound.epsilon > 0.2


def test_a_cohort_keeps_its_public_numbers_without_some_clients():
    cohort = CohortWithout(pf.PoissonCohort(0.5), frozenset({0, 1}))
    assert cohort.rate == 0.5
    assert cohort.expected(10) == 5
    assert not cohort.needs_sizes
    assert cohort.min_separation(10) == 1
    drawn = cohort.draw(np.arange(10), 0, 0, NoiseSource.from_key(0), np.ones(10))
    whole = pf.PoissonCohort(0.5).draw(np.arange(10), 0, 0, NoiseSource.from_key(0), np.ones(10))
    assert drawn.clients.tolist() == [client for client in whole.clients.tolist() if client > 1]


def test_noise_that_is_missing_altogether_is_refuted_and_merely_not_estimated(monkeypatch):
    """Scores without noise are one value on either side, to which no normal law can be fitted."""
    task = rare_token_task(200)
    monkeypatch.setattr("privfl.privacy.noise.source.NoiseStream.add_gaussian_", lambda self, tensor, sd: tensor)
    result = audit_clients(task, trainer(8.0, delta=1e-11), rare_token_canaries(task, 200), confidence=SURE)
    assert result.refuted
    assert result.estimates == ()
    assert "no distribution can be fitted" in result.settings["no_estimate"]


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_any_number_of_canary_clients_is_audited(count):
    task = rare_token_task(count)
    result = audit_clients(task, trainer(2.0), rare_token_canaries(task, count))
    assert not result.refuted
    assert len(result.bounds) == 2


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"weight_decay": 0.1}, "weight_decay moves the weights of all tokens"),
        ({"algorithm": pf.PerFedAvg("uniform")}, "per-fedavg does not treat every parameter by itself"),
        ({"clip": pf.AdaptiveClip(CLIP)}, "adaptive-clip may tie clients, or rounds, to each other"),
        ({"training": pf.DPSGD(noise_multiplier=1.0)}, "the noise of DP-SGD in one update reaches the weights of all"),
    ],
    ids=["weight decay", "algorithm", "mechanism", "DP-SGD"],
)
def test_trials_are_left_out_where_canaries_are_tied_to_each_other(more, reason):
    def tied(task, cohort):
        return pf.simulate(
            task,
            more.get("algorithm", pf.FedAvg(weighting="uniform")),
            rounds=1,
            training=pf.LocalTraining(
                learning_rate=1.0, batch_size=1, steps=1, weight_decay=more.get("weight_decay", 0.0)
            ),
            privacy=pf.Privacy(
                training=more.get("training"), update=[more.get("clip", pf.Clip(CLIP)), pf.GaussianNoise(2.0)]
            ),
            cohort=cohort,
            record=True,
        )

    task = rare_token_task(20)
    result = audit_clients(task, tied, rare_token_canaries(task, 20), trials=GaussianFamily())
    assert [bound.assumes for bound in result.bounds] == ["", ""]
    assert result.settings["no_trials"].startswith(reason)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"confidence": 0}, "the confidence is 0; give a number in"),
        ({"confidence": 1.0}, "the confidence is 1.0"),
        ({"confidence": 1 - 2**-53}, "too near to 1 to be shared among 2 bounds"),
        ({"confidence": "0.9"}, "confidence is '0.9'; give a number"),
        ({"observer": "client"}, "observer is 'client'"),
        ({"trials": GaussianFamily(steps=2)}, "trials observe 1 of 2 steps, and a score sees the whole run"),
    ],
)
def test_impossible_settings_are_one_sentence_before_anything_is_trained(tokens, change, sentence):
    task, canaries = tokens
    with pytest.raises(ConfigError, match=sentence):
        audit_clients(task, lambda *given: pytest.fail("it was trained"), canaries, **change)


def test_what_cannot_be_audited_says_why(tokens):
    task, canaries = tokens
    with pytest.raises(ConfigError, match="trials need canaries that do not interfere"):
        audit_clients(task, trainer(1.0), noise_canaries(task, 9), trials=GaussianFamily())
    with pytest.raises(ConfigError, match="recorded nothing"):
        audit_clients(task, trainer(1.0, record=()), canaries)
    with pytest.raises(ConfigError, match="are in one group"):
        audit_clients(task, trainer(1.0), noise_canaries(task, 1))


def test_a_function_that_ignores_its_task_or_its_cohort_is_refused(tokens):
    task, canaries = tokens
    train = trainer(1.0)
    for wrong, sentence in (
        (lambda given, cohort: train(task, cohort), "did not train on the task it was given"),
        (lambda given, cohort: train(given, pf.Everyone()), "did not use the cohort it was given"),
        (
            lambda given, cohort: None,
            r"train returned None; .* lambda task, cohort: .*cohort=cohort",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            audit_clients(task, wrong, canaries)
    within = audit_clients(task, lambda given, cohort: train(given, CohortWithout(cohort, frozenset({0}))), canaries)
    assert not within.refuted, "a cohort of one's own may be built around the given one"
