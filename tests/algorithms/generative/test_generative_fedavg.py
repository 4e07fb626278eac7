"""What FedCVAE and FedCGAN share: the synthetic set, the server's classifier, what is sent, and what may be claimed."""

from __future__ import annotations

import math

import pytest
import torch
from synthetic import SyntheticImageLog

import privfl as pf
from privfl.algorithms.generative.generative_fedavg import GenerativeFedAvg
from privfl.algorithms.generative.server_training import train_classifier
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import BARE_TRAINING
from tests.algorithms.generative.generative_federation import (
    CLASSES,
    HIDDEN,
    LATENT,
    PIXELS,
    SMALL,
    TRAINING,
    sent,
    task_of,
)

ALGORITHMS: dict[str, type[GenerativeFedAvg]] = {"fedcvae": pf.FedCVAE, "fedcgan": pf.FedCGAN}
DECODER = (LATENT + CLASSES + 1) * HIDDEN + (HIDDEN + 1) * PIXELS
ENCODER = (PIXELS + CLASSES + 1) * HIDDEN + (HIDDEN + 1) * 2 * LATENT
JUDGE = (PIXELS + CLASSES + 1) * HIDDEN + HIDDEN + 1
FLOATS = {"fedcvae": ENCODER + DECODER, "fedcgan": DECODER + JUDGE}
both = pytest.mark.parametrize("name", ALGORITHMS)


@both
def test_the_server_keeps_a_labelled_set_of_pixels_that_its_generator_draws_anew_after_every_round(name: str) -> None:
    gallery = SyntheticImageLog(every=1)
    algorithm = ALGORITHMS[name](low=-0.5, high=2.5, **SMALL)
    run = pf.simulate(
        task_of(), algorithm, rounds=2, training=TRAINING, callbacks=[gallery], execution=pf.Execution(workers=1)
    )
    for found in gallery.sets.values():
        assert found.images.shape == (6, 1, 2, 3)
        assert -0.5 < float(found.images.min()) < float(found.images.max()) < 2.5
        assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert not torch.equal(gallery.sets[1].images, gallery.sets[2].images)
    server, bound = run.server, run.algorithm
    assert isinstance(bound, GenerativeFedAvg)
    logits = bound.networks().generate(server["generator"], server["noise"], torch.eye(3).double()[server["labels"]])
    expected = (-0.5 + 3 / (1 + torch.exp(-logits))).view(6, 1, 2, 3)
    torch.testing.assert_close(gallery.sets[2].images, expected, rtol=0, atol=1e-12)


@both
def test_more_can_be_drawn_of_any_classes_the_same_for_the_same_seed(name: str) -> None:
    run = pf.simulate(
        task_of(), ALGORITHMS[name](**SMALL), rounds=1, training=TRAINING, execution=pf.Execution(workers=1)
    )
    assert isinstance(run.algorithm, GenerativeFedAvg)
    labels = torch.tensor([2, 0, 0, 1])
    one, again, other = (run.algorithm.synthesise(run.server, labels, seed) for seed in (1, 1, 2))
    assert one.shape == (4, 1, 2, 3)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one[1], one[2])
    with pytest.raises(ConfigError, match="labels lie between -1 and 3; give classes from 0 to 2"):
        run.algorithm.synthesise(run.server, torch.tensor([-1, 3]))


@both
def test_the_tested_model_is_the_tasks_own_trained_on_the_set_from_fresh_parameters(name: str) -> None:
    task = task_of()
    run = pf.simulate(task, ALGORITHMS[name](**{**SMALL, "classifier_epochs": 5}), rounds=1, training=TRAINING)
    assert isinstance(run.algorithm, GenerativeFedAvg)
    fresh = run.algorithm.context.fresh(f"{name}-classifier", 0)
    images, labels = run.server["images"], run.server["labels"]
    expected = train_classifier(task.model(0), fresh, images, labels, epochs=5, seed=0)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
    assert not torch.equal(run.parameters, fresh)


@both
def test_a_client_sends_one_number_for_each_parameter_of_the_networks_and_nothing_else(name: str) -> None:
    _, results = sent(task_of(), ALGORITHMS[name](**SMALL))
    for result in results:
        assert result.upload is not None
        assert {field: tuple(value.shape) for field, value in result.upload.items()} == {"update": (FLOATS[name],)}


@both
def test_pixels_beyond_the_bounds_count_as_the_bounds(name: str) -> None:
    task = task_of()
    task.inputs.mul_(3).sub_(1)
    outside = sent(task, ALGORITHMS[name](**SMALL))[1]
    task.inputs.clamp_(0, 1)
    inside = sent(task, ALGORITHMS[name](**SMALL))[1]
    for one, other in zip(outside, inside, strict=True):
        assert one.upload is not None
        assert other.upload is not None
        assert torch.equal(one.upload["update"], other.upload["update"])


@both
def test_a_client_whose_data_is_not_finite_is_dropped_and_the_others_go_on(name: str) -> None:
    task = task_of()
    task.inputs[task.clients[1][0]] = math.nan
    run = pf.simulate(task, ALGORITHMS[name](**SMALL), rounds=2, training=TRAINING, execution=pf.Execution(workers=1))
    assert run.summary["dropped"] == {"sent a non-finite 'update'": 2}
    assert bool(run.server["generator"].isfinite().all())


@both
def test_without_a_mechanism_nothing_is_claimed_for_the_reasons_that_fedavg_has(name: str) -> None:
    ours, theirs = (
        pf.simulate(task_of(), algorithm, rounds=1, training=TRAINING).statement
        for algorithm in (ALGORITHMS[name](**SMALL), pf.FedAvg())
    )
    for unit in ("sample", "client"):
        for observer in ("server", "public"):
            cell = ours.cell(unit, observer)
            assert cell.epsilon == math.inf
            assert cell.reasons == theirs.cell(unit, observer).reasons
    reasons = " ".join(ours.cell("sample", "server").reasons)
    assert BARE_TRAINING in reasons
    assert "exact number of samples" in reasons


@both
def test_every_client_notes_at_its_door_that_sums_over_its_samples_left_bare(name: str) -> None:
    for stacked in (False, True):
        _, results = sent(task_of(), ALGORITHMS[name](**SMALL), stacked=stacked)
        for result in results:
            assert "sums over samples are sent without a mechanism" in result.log.bare
            assert not result.log.noisy
            assert not result.client_state


@both
@pytest.mark.parametrize("at", ["server", "client"])
def test_client_level_noise_claims_for_it_what_it_claims_for_fedavg(name: str, at: str) -> None:
    privacy = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0, at=at)])  # type: ignore[arg-type]
    cells = []
    for algorithm in (ALGORITHMS[name](weighting="uniform", **SMALL), pf.FedAvg(weighting="uniform")):
        run = pf.simulate(
            task_of(), algorithm, rounds=2, training=TRAINING, privacy=privacy, execution=pf.Execution(workers=1)
        )
        cells.append({unit: run.statement.cell(unit, "public").epsilon for unit in ("client", "sample")})
    assert cells[0] == cells[1]
    assert all(0 < epsilon < math.inf for epsilon in cells[0].values())


@both
def test_dp_sgd_is_refused_with_what_to_do_instead(name: str) -> None:
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    with pytest.raises(ConfigError, match=f"{name} trains networks of its own.*privacy.update.*or take fedevg"):
        pf.simulate(task_of(), ALGORITHMS[name](**SMALL), rounds=1, training=TRAINING, privacy=privacy)


@both
def test_no_total_of_a_batch_can_be_named_for_noise_that_is_charged_once_a_round(name: str) -> None:
    privacy = pf.Privacy(statistics=(pf.NoisyTotal("gradient", 1.0, 1.0),))
    with pytest.raises(ConfigError, match="takes no total named 'gradient'"):
        pf.simulate(task_of(), ALGORITHMS[name](**SMALL), rounds=1, training=TRAINING, privacy=privacy)


@both
def test_a_secure_sum_gives_what_a_plain_one_does(name: str) -> None:
    algorithm = ALGORITHMS[name](weighting="uniform", **SMALL)
    secure = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    runs = [pf.simulate(task_of(), algorithm, rounds=1, training=TRAINING, privacy=p) for p in (secure, pf.Privacy())]
    torch.testing.assert_close(runs[0].server["generator"], runs[1].server["generator"], rtol=0, atol=1e-6)


@both
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples_per_class": 0}, "samples_per_class is 0; give a whole number of at least 1"),
        ({"latent": 0}, "latent is 0; give a whole number of at least 1"),
        ({"hidden": 1.5}, "hidden is 1.5; give a whole number"),
        ({"classifier_epochs": 0}, "classifier_epochs is 0"),
        ({"low": math.inf}, "low is inf; give a finite number"),
        ({"low": 1.0}, "pixels lie between 1.0 and 1.0; give low < high"),
        ({"weighting": "sise"}, "weighting is 'sise'"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}'s {sentence}"):
        ALGORITHMS[name](**options)  # type: ignore[arg-type]
