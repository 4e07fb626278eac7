"""What FedEvg's runs may claim, and what broken data does to them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from synthetic import SyntheticImageLog

import privfl as pf
from privfl.errors import ConfigError
from tests.algorithms.generative.evg_federation import TRAINING, Watched, sent, settings_of, small, task_of


def test_a_client_whose_data_is_not_finite_is_dropped_and_the_others_go_on() -> None:
    task = task_of()
    broken = replace(task, inputs=task.inputs.clone())
    broken.inputs[task.clients[1][0]] = math.nan
    run = pf.simulate(broken, small(), rounds=2, training=TRAINING)
    assert run.summary["dropped"] == {"sent a non-finite 'update'": 2}
    assert math.isfinite(run.metrics[-1]["pull_norm"])


def test_without_a_mechanism_all_claims_are_infinite_and_say_why() -> None:
    statement = pf.simulate(task_of(), small(), rounds=1, training=TRAINING).statement
    for unit in ("sample", "client"):
        for observer in ("server", "public"):
            assert statement.cell(unit, observer).epsilon == math.inf
    text = str(statement)
    assert "every client's" in text
    assert "without a mechanism" in text


NOISY = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.2)


def test_dp_sgd_gives_a_sample_level_claim_and_the_synthetic_terms_cost_nothing() -> None:
    """As many gradients as FedAvg takes, so the same ε: chain, γ-term and energies see data by parameters alone."""
    task, privacy = task_of(), pf.Privacy(training=NOISY)
    training = pf.LocalTraining(learning_rate=1e-3, batch_size=8, steps=3)
    ours, plain = (
        pf.simulate(task, algorithm, rounds=2, training=training, privacy=privacy).statement.cell("sample", "server")
        for algorithm in (small(client_weights="uniform", chain_steps=2), pf.FedAvg(weighting="uniform"))
    )
    assert ours.epsilon == pytest.approx(plain.epsilon, rel=1e-12)
    assert 0 < ours.epsilon < math.inf
    sized = pf.simulate(task, small(), rounds=1, training=training, privacy=privacy).statement
    assert sized.cell("sample", "server").epsilon == math.inf, "the exact size is sent"


def test_under_dp_sgd_the_number_of_images_in_a_batch_does_not_show_the_number_of_samples() -> None:
    algorithm = Watched(**settings_of(small(samples_per_class=5)))
    sent(task_of(), algorithm, dpsgd=NOISY)
    assert len(algorithm.seen) == 3 * 2 * 5  # clients, epochs, 1 / rate
    assert {len(chosen) for _, _, chosen, _ in algorithm.seen} == {8}


def test_both_engines_agree_under_dp_sgd() -> None:
    task = task_of()
    one, other = (sent(task, small(), dpsgd=NOISY, vectorised=vectorised)[1] for vectorised in (False, True))
    for mine, theirs in zip(one, other, strict=True):
        assert mine.log == theirs.log
        torch.testing.assert_close(theirs.upload["update"], mine.upload["update"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("at", ["server", "client"])
def test_client_level_noise_covers_strengths_and_gradients_and_keeps_the_images_pixels(at: str) -> None:
    task, gallery = task_of(), SyntheticImageLog()
    privacy = pf.Privacy(update=[pf.Clip(2.0), pf.GaussianNoise(5.0, at=at)])  # type: ignore[arg-type]
    run = pf.simulate(
        task, small(client_weights="uniform"), rounds=2, training=TRAINING, privacy=privacy, callbacks=[gallery]
    )
    assert run.statement.cell("client", "public").epsilon < math.inf
    assert gallery.last.images.isfinite().all()
    assert 0 <= float(gallery.last.images.min()) <= float(gallery.last.images.max()) <= 1


def test_exact_weights_cannot_be_hidden_by_noise_on_one_update() -> None:
    privacy = pf.Privacy(update=[pf.Clip(2.0), pf.GaussianNoise(5.0)])
    with pytest.raises(ConfigError, match="'update'; this one sends gradient, energy"):
        pf.simulate(task_of(), small(weighting="exact", client_weights="uniform"), rounds=1, privacy=privacy)
