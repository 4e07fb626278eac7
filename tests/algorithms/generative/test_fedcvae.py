"""FedCVAE: its loss against closed forms, its clients and its one-client limit against torch.optim on torch.nn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal, kl_divergence

import privfl as pf
from privfl.algorithms.generative.fedcvae import divergence, reconstruction_terms
from privfl.errors import ConfigError
from privfl.federation.task import Task
from tests.algorithms.generative.generative_federation import (
    CLASSES,
    LATENT,
    PIXELS,
    SIZES,
    SMALL,
    TRAINING,
    adam,
    perceptron,
    sent,
    steps_of,
    task_of,
)


def trained(
    task: Task,
    client: int,
    start: Tensor,
    training: pf.LocalTraining = TRAINING,
    *,
    beta: float = 1.0,
    squared: bool = False,
    round: int = 0,
) -> Tensor:
    """One client's round by torch.optim.Adam on a conditional VAE of ordinary layers, sample by sample."""
    encoder = perceptron(PIXELS + CLASSES, 2 * LATENT, 0.0)
    decoder = perceptron(LATENT + CLASSES, PIXELS, 0.0)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    nn.utils.vector_to_parameters(start.clone(), parameters)
    optimizer = adam(parameters, training)
    for pixels, kinds, (noise,) in steps_of(task, client, training, 1, round=round):
        loss = torch.zeros((), dtype=torch.float64)
        for x, y, z in zip(pixels, kinds, noise, strict=True):
            mean, log_variance = encoder(torch.cat([x, y])).split(LATENT)
            posterior = Normal(mean, (log_variance / 2).exp())
            decoded = torch.sigmoid(decoder(torch.cat([mean + posterior.stddev * z, y])))
            error = (x - decoded).square() if squared else -(x * decoded.log() + (1 - x) * (1 - decoded).log())
            prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
            loss = loss + (error.sum() + beta * kl_divergence(posterior, prior).sum()) / len(pixels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(parameters).detach()


def test_the_kl_is_that_of_torch_distributions_and_zero_for_the_prior() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    posterior = Normal(mean, (log_variance / 2).exp())
    expected = kl_divergence(posterior, Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(1)
    torch.testing.assert_close(divergence(mean, log_variance), expected, rtol=1e-12, atol=1e-12)
    assert (expected > 0).all()
    assert divergence(torch.zeros(3), torch.zeros(3)) == 0


def test_the_reconstruction_is_a_bernoulli_likelihood_or_a_squared_distance_summed_over_pixels() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(9, 5, generator=generator, dtype=torch.float64)
    bits = torch.randint(2, (9, 5), generator=generator).double()
    likelihood = Bernoulli(logits=logits).log_prob(bits).sum(1)
    torch.testing.assert_close(reconstruction_terms(logits, bits, "bce"), -likelihood, rtol=1e-12, atol=1e-12)
    grey = torch.rand(9, 5, generator=generator, dtype=torch.float64)
    shown = 1 / (1 + torch.exp(-logits))
    entropy = -(grey * shown.log() + (1 - grey) * (1 - shown).log()).sum(1)
    torch.testing.assert_close(reconstruction_terms(logits, grey, "bce"), entropy, rtol=1e-12, atol=1e-12)
    squares = ((shown - grey) ** 2).sum(1)
    torch.testing.assert_close(reconstruction_terms(logits, grey, "mse"), squares, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stacked", [False, True], ids=["loop", "stacked"])
@pytest.mark.parametrize(("beta", "reconstruction"), [(1.0, "bce"), (0.3, "mse")])
def test_a_client_trains_as_torch_adam_on_a_vae_of_torch_layers_does(
    beta: float, reconstruction: str, stacked: bool
) -> None:
    task = task_of()
    algorithm = pf.FedCVAE(beta=beta, reconstruction=reconstruction, **SMALL)  # type: ignore[arg-type]
    server, results = sent(task, algorithm, stacked=stacked)
    for result in results:
        assert result.upload is not None
        start = server["generator"]
        expected = trained(task, result.client, start, beta=beta, squared=reconstruction == "mse") - start
        torch.testing.assert_close(result.upload["update"], expected, rtol=0, atol=1e-10)


def test_a_batch_of_more_rows_than_a_step_draws_uses_them_again() -> None:
    """600 rows pass the door in two pieces of at most 512, and a step draws z for 256."""
    task, training = task_of((600,)), pf.LocalTraining(learning_rate=1e-2, batch_size=600)
    server, (result,) = sent(task, pf.FedCVAE(**SMALL), training)
    assert result.upload is not None
    expected = trained(task, 0, server["generator"], training) - server["generator"]
    torch.testing.assert_close(result.upload["update"], expected, rtol=0, atol=1e-10)


def test_with_one_client_it_is_a_centralised_vae_whose_adam_begins_anew_in_every_round() -> None:
    task = task_of((20,))
    run = pf.simulate(
        task, pf.FedCVAE(**SMALL), rounds=3, training=TRAINING, execution=pf.Execution(engine="loop", workers=1)
    )
    parameters = sent(task, pf.FedCVAE(**SMALL))[0]["generator"]
    for round in range(3):
        parameters = trained(task, 0, parameters, round=round)
    torch.testing.assert_close(run.server["generator"], parameters, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("weighting", "counts"), [("size", SIZES), ("uniform", (1, 1, 1))])
def test_a_round_is_the_weighted_mean_of_what_the_clients_trained_alone(
    weighting: str, counts: tuple[int, ...]
) -> None:
    task = task_of()
    algorithm = pf.FedCVAE(weighting=weighting, **SMALL)  # type: ignore[arg-type]
    run = pf.simulate(task, algorithm, rounds=1, training=TRAINING, execution=pf.Execution(engine="loop", workers=1))
    start = sent(task, algorithm)[0]["generator"]
    parts = [count / sum(counts) * trained(task, client, start) for client, count in enumerate(counts)]
    torch.testing.assert_close(run.server["generator"], torch.stack(parts).sum(0), rtol=0, atol=1e-10)


def test_training_on_two_distinct_classes_makes_the_server_draw_them() -> None:
    """Class 0 is bright on the left half, class 1 on the right; clients hold one class each."""
    task = task_of((40, 40), dtype=torch.float32)
    task.targets.copy_(torch.tensor([0, 1]).repeat_interleave(40))
    task.inputs.mul_(0.2)
    task.inputs[:40, :, :, 0] += 0.8
    task.inputs[40:, :, :, 2] += 0.8
    algorithm = pf.FedCVAE(hidden=16, latent=2, classifier_epochs=1)
    training = pf.LocalTraining(learning_rate=3e-2, batch_size=20, epochs=2)
    run = pf.simulate(
        task, algorithm, rounds=40, training=training, evaluate_every=40, execution=pf.Execution(workers=1)
    )
    drawn = run.algorithm.synthesise(run.server, torch.tensor([0, 1]).repeat_interleave(100))  # type: ignore[attr-defined]
    for label, bright, dark in ((0, 0, 2), (1, 2, 0)):
        images = drawn[100 * label : 100 * label + 100, 0]
        assert float(images[:, :, bright].mean()) > 0.7
        assert float(images[:, :, dark].mean()) < 0.3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beta": -1.0}, "fedcvae's beta is -1.0; give a finite number of at least 0"),
        ({"reconstruction": "mae"}, "fedcvae's reconstruction is 'mae'"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pf.FedCVAE(**options)  # type: ignore[arg-type]
