"""FedCGAN: its losses against cross-entropies, its clients and its one-client limit against torch.optim on torch.nn."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import privfl as pf
from privfl.federation.task import Task
from tests.algorithms.generative.generative_federation import (
    CLASSES,
    HIDDEN,
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

MAKER = (LATENT + CLASSES + 1) * HIDDEN + (HIDDEN + 1) * PIXELS


def trained(task: Task, client: int, start: Tensor, *, round: int = 0) -> Tensor:
    """One client's round by two torch.optim.Adam on networks of ordinary layers, which take turns."""
    maker, judge = perceptron(LATENT + CLASSES, PIXELS, 0.0), perceptron(PIXELS + CLASSES, 1, 0.2)
    parameters = [*maker.parameters(), *judge.parameters()]
    nn.utils.vector_to_parameters(start.clone(), parameters)
    makers, judges = adam(list(maker.parameters()), TRAINING), adam(list(judge.parameters()), TRAINING)
    for pixels, kinds, (first, second) in steps_of(task, client, TRAINING, 2, round=round):
        made = torch.sigmoid(maker(torch.cat([first, kinds], 1))).detach()
        real, fake = (judge(torch.cat([shown, kinds], 1)) for shown in (pixels, made))
        loss = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
        loss = loss + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
        judges.zero_grad()
        loss.backward()
        judges.step()
        made = torch.sigmoid(maker(torch.cat([second, kinds], 1)))
        fake = judge(torch.cat([made, kinds], 1))
        makers.zero_grad()
        F.binary_cross_entropy_with_logits(fake, torch.ones_like(fake)).backward()
        makers.step()
    return nn.utils.parameters_to_vector(parameters).detach()


def test_the_losses_are_those_of_a_certain_and_of_an_undecided_discriminator() -> None:
    algorithm = pf.FedCGAN(**SMALL).bind(task_of().context(1, 0))
    networks = algorithm.networks()
    maker, judge = networks.parts(torch.zeros(networks.size, dtype=torch.float64))
    pixels, kinds = torch.rand(4, PIXELS, dtype=torch.float64), torch.eye(CLASSES, dtype=torch.float64)[[0, 1, 2, 0]]
    noise = torch.zeros(4, LATENT, dtype=torch.float64)
    for logit in (0.0, 2.0, -30.0):
        judge[-1] = logit
        said = algorithm.judge_loss(judge, maker, pixels, kinds, noise)
        assert said.tolist() == pytest.approx([math.log1p(math.exp(-logit)) + math.log1p(math.exp(logit))] * 4)
        fooled = algorithm.maker_loss(maker, judge, kinds, noise)
        assert fooled.tolist() == pytest.approx([math.log1p(math.exp(-logit))] * 4)


@pytest.mark.parametrize("stacked", [False, True], ids=["loop", "stacked"])
def test_a_client_trains_as_two_torch_adams_that_take_turns_do(stacked: bool) -> None:
    task = task_of()
    server, results = sent(task, pf.FedCGAN(**SMALL), stacked=stacked)
    for result in results:
        assert result.upload is not None
        expected = trained(task, result.client, server["generator"]) - server["generator"]
        torch.testing.assert_close(result.upload["update"], expected, rtol=0, atol=1e-10)
        assert float(expected[:MAKER].abs().min()) > 0
        assert float(expected[MAKER:].abs().max()) > 0


def test_with_one_client_it_is_a_centralised_gan_whose_adams_begin_anew_in_every_round() -> None:
    task = task_of((20,))
    run = pf.simulate(
        task, pf.FedCGAN(**SMALL), rounds=3, training=TRAINING, execution=pf.Execution(engine="loop", workers=1)
    )
    parameters = sent(task, pf.FedCGAN(**SMALL))[0]["generator"]
    for round in range(3):
        parameters = trained(task, 0, parameters, round=round)
    torch.testing.assert_close(run.server["generator"], parameters, rtol=0, atol=1e-10)


def test_both_networks_are_averaged_in_proportion_to_the_clients_sizes() -> None:
    task = task_of()
    run = pf.simulate(
        task, pf.FedCGAN(**SMALL), rounds=1, training=TRAINING, execution=pf.Execution(engine="loop", workers=1)
    )
    start = sent(task, pf.FedCGAN(**SMALL))[0]["generator"]
    parts = [size / sum(SIZES) * trained(task, client, start) for client, size in enumerate(SIZES)]
    torch.testing.assert_close(run.server["generator"], torch.stack(parts).sum(0), rtol=0, atol=1e-10)


def test_the_generator_follows_the_discriminator_to_a_fixed_picture() -> None:
    """All clients hold one picture: what is drawn comes nearer to it than at the start, for every class they hold."""
    task = task_of((30, 30), dtype=torch.float32)
    picture = torch.tensor([0.95, 0.05, 0.95, 0.05, 0.95, 0.05])
    task.inputs.copy_(picture.view(1, 2, 3).expand_as(task.inputs))
    algorithm = pf.FedCGAN(hidden=16, latent=4, classifier_epochs=1)
    training = pf.LocalTraining(learning_rate=5e-3, batch_size=15, epochs=2)
    run = pf.simulate(
        task, algorithm, rounds=40, training=training, evaluate_every=40, execution=pf.Execution(workers=1)
    )
    before = run.algorithm.start(torch.zeros(1))["images"].flatten(1)
    after = run.server["images"].flatten(1)
    for label in range(CLASSES):
        own = run.server["labels"] == label
        was, now = (float((images[own] - picture).abs().mean()) for images in (before, after))
        assert now < 0.5 * was
