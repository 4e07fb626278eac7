"""Every broken mechanism of the published list is refuted at level 1e-6, and the correct one is not.

A mutation changes one method of the real class; the run, the ledger and the audit know nothing of it. Which score and
which bound find it is written with it. Keys and coins are fixed, so the tests repeat; over keys and coins each verdict
on a correct mechanism is wrong with probability at most 1e-6.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import privfl as pf
from audits.canaries.canaries import rare_token_canaries, rare_token_task
from audits.canaries.gradient_canaries import audit_one_run
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.door.batch_plans import Poisson
from privfl.privacy.noise.source import NoiseSource, NoiseStream, add_gaussian_rows_

SURE = 1 - 1e-6
CANARIES = 1500
TASK = rare_token_task(CANARIES)
PLANTED = rare_token_canaries(TASK, CANARIES)
DOORS_NOISE = "privfl.privacy.door.keeper.add_gaussian_rows_"
"""Where the door adds noise to gradients; TASK has one client, so one row."""


def train(noise=2.0, rate=1.0, rounds=8, delta=1e-5, learning_rate=0.01, bound=0.2):
    def on(task):
        return pf.simulate(
            task,
            pf.FedAvg(weighting="uniform"),
            rounds=rounds,
            training=pf.LocalTraining(learning_rate=learning_rate, batch_size=1000, steps=1),
            privacy=pf.Privacy(
                training=pf.DPSGD(noise_multiplier=noise, max_grad_norm=bound, sample_rate=rate),
                noise_key=11,
                target_delta=delta,
            ),
            record=["server"],
            execution=pf.Execution(engine="loop", workers=1),
            evaluate_every=1000,
        )

    return on


def audit(trained, bounds=("trials",), scores=None):
    return audit_one_run(TASK, trained, PLANTED, bounds=bounds, scores=scores, confidence=SURE, seed=5)


def test_half_the_noise(monkeypatch):
    assert not audit(train()).refuted
    monkeypatch.setattr(DOORS_NOISE, lambda streams, rows, sds: add_gaussian_rows_(streams, rows, [sds[0] / 2]))
    assert audit(train()).refuted


def test_clipping_off(monkeypatch):
    """A run refuses to start with a clipper that does not clip its probe, so this one clips small batches only."""
    right = PerSampleGradients.clipped_sum

    def bare(self, loss, inputs, targets, bound, *rest):
        return right(self, loss, inputs, targets, bound if len(inputs) < 10 else float("inf"), *rest)

    monkeypatch.setattr(PerSampleGradients, "clipped_sum", bare)
    assert audit(train()).refuted

    def always_bare(self, loss, inputs, targets, bound, *rest):
        return right(self, loss, inputs, targets, float("inf"), *rest)

    monkeypatch.setattr(PerSampleGradients, "clipped_sum", always_bare)
    with pytest.raises(pf.ConfigError, match="come out different"):
        train()(TASK)


def test_noise_used_again_in_every_round(monkeypatch):
    """Sampled rows come and go above noise that stays: the spread over the rounds shows who was there."""
    setting = {"rate": 0.5, "rounds": 10, "noise": 4.0}
    assert not audit(train(**setting), scores=["likelihood", "spread"]).refuted
    key = bytes(32)
    monkeypatch.setattr(DOORS_NOISE, lambda streams, rows, sds: add_gaussian_rows_([NoiseStream(key)], rows, sds))
    assert audit(train(**setting), scores=["likelihood", "spread"]).refuted


def test_generators_seeded_anew_in_every_round(monkeypatch):
    """Noise and coins repeat, and gradients that change with the model stand out against them."""
    setting = {"noise": 6.0, "bound": 0.6, "learning_rate": 100.0}
    assert not audit(train(**setting), scores=["likelihood", "spread"]).refuted
    right = NoiseSource.stream
    monkeypatch.setattr(NoiseSource, "stream", lambda self, *labels: right(self, labels[0], 0))
    assert audit(train(**setting), scores=["likelihood", "spread"]).refuted


def test_batches_of_everybody_accounted_as_samples(monkeypatch):
    setting = {"rate": 0.25, "noise": 1.5}
    assert not audit(train(**setting)).refuted
    monkeypatch.setattr(NoiseStream, "poisson_sample", lambda self, n, rate: np.arange(n))
    assert audit(train(**setting)).refuted


def test_shuffled_batches_of_fixed_size_accounted_as_poisson(monkeypatch):
    """Every row comes exactly once in an epoch; a Poisson sample misses a third of them altogether."""
    setting = {"rate": 0.1, "rounds": 10, "noise": 0.3}
    assert not audit(train(**setting), scores=["largest"]).refuted
    places = iter(range(10))

    def shuffled(self, rows, shuffle, noise):
        order = torch.from_numpy(np.random.default_rng(3).permutation(len(rows)))
        yield rows[order.tensor_split(10)[next(places)]]

    monkeypatch.setattr(Poisson, "rows", shuffled)
    assert audit(train(**setting), scores=["largest"]).refuted


def test_a_quarter_of_the_sampling_rate_in_the_ledger(monkeypatch):
    setting = {"rate": 0.4, "noise": 0.6, "rounds": 10}
    assert not audit(train(**setting)).refuted
    right = pf.DPSGD.event
    monkeypatch.setattr(pf.DPSGD, "event", lambda self, noise, rate: right(self, noise, rate / 4))
    assert audit(train(**setting)).refuted


def test_delta_ignored(monkeypatch):
    """ε is computed at δ = 0.01 and printed beside 1e-5."""
    assert not audit(train(noise=1.0)).refuted

    def careless(ledger, delta, **more):
        return replace(make_statement(ledger, 0.01, **more), delta=delta)

    monkeypatch.setattr("privfl.simulation.simulation.make_statement", careless)
    assert audit(train(noise=1.0)).refuted


def test_noise_left_out_now_and_then(monkeypatch):
    """A failure of probability 1/4 that δ does not cover; one-run bounds find it, whatever the noise is like."""
    coins = np.random.default_rng(1)

    def sometimes(streams, rows, sds):
        return rows if coins.random() < 0.25 else add_gaussian_rows_(streams, rows, sds)

    setting = {"noise": 40.0, "delta": 1e-11}
    assert not audit(train(**setting), bounds=["one-run"], scores=["smallest"]).refuted
    monkeypatch.setattr(DOORS_NOISE, sometimes)
    result = audit(train(**setting), bounds=["one-run"], scores=["smallest"])
    assert result.refuted


def test_a_mechanism_that_claims_nothing_cannot_be_refuted():
    result = audit(train(noise=0.0), bounds=["one-run"])
    assert result.claim == float("inf")
    assert not result.refuted


def test_layers_that_mix_the_rows_of_a_batch_are_refused_before_any_claim():
    def model():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    rows, classes = np.zeros((8, 4), np.float32), np.arange(8) % 2
    with pytest.raises(pf.ConfigError, match="mixes the samples"):
        train()(pf.Task.from_arrays(rows, classes, partition=pf.IID(clients=2), model=model))
