"""What the clients of a round send, in plain torch: the losses at the received model, and the updates."""

from __future__ import annotations

from functools import cache

import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

import privfl as pf
from privfl.federation.task import cross_entropy
from privfl.models.flat_network import flatten
from tests.algorithms.federation import layered_task
from tests.algorithms.test_baselines import trained_alone

SIZES = (7, 20, 13, 4)
TRAINING = pf.LocalTraining(learning_rate=0.3, batch_size=5, epochs=2, momentum=0.5, learning_rate_decay=0.5)
STEPS = pf.LocalTraining(learning_rate=0.1, batch_size=5, steps=2)
PRIVATE = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)
NOISY_LOSS = pf.NoisyTotal("loss", 1.0, 4.0)


def fair_task(sizes=SIZES, *, dtype=torch.float64):
    """Four clients whose losses differ at the initial model."""
    return layered_task(sizes, dtype=dtype)


def losses_at(task, parameters, *, differentiable=False):
    """Every client's mean loss [m] at ``parameters``, by plain autograd."""
    flat = parameters if differentiable else parameters.detach()
    network, offset, named = task.model(0), 0, {}
    for name, value in network.named_parameters():
        named[name] = flat[offset : offset + value.numel()].view_as(value)
        offset += value.numel()

    def model(inputs):
        return torch.func.functional_call(network, named, (inputs,))

    rows = [task.clients[client] for client in range(len(task.clients))]
    return torch.stack([cross_entropy(model, task.inputs[one], task.targets[one]).mean() for one in rows])


def sent(task, parameters, round, training=TRAINING):
    """Losses [m] and updates [m, size] of everybody in ``round``."""
    now = training.in_round(round)
    alone = [trained_alone(task, client, now, parameters, round=round) for client in range(len(task.clients))]
    return losses_at(task, parameters), torch.stack(alone) - parameters


def replay(task, rounds, server_step, training=TRAINING):
    """The parameters after ``rounds`` of ``server_step(losses, updates, learning rate, round) -> step``."""
    parameters = flatten(task.model(0))
    for round in range(rounds):
        losses, updates = sent(task, parameters, round, training)
        rate = training.learning_rate * training.learning_rate_decay**round
        parameters = parameters + server_step(losses, updates, rate, round)
    return parameters


def simulated(task, algorithm, *, rounds=2, training=TRAINING, **settings):
    """A run of ``algorithm`` from the same initial model."""
    return pf.simulate(
        task, algorithm, rounds=rounds, training=training, execution=pf.Execution(workers=1, engine="loop"), **settings
    )


def cell(run, unit="sample", observer="server"):
    """One cell of the run's statement."""
    return run.statement.cell(unit, observer)


@cache
def expected_epsilon(rounds=1):
    """ε of ``rounds`` of :data:`STEPS` under :data:`PRIVATE` and :data:`NOISY_LOSS`, by the library's accountant."""
    reference = PLDAccountant()
    reference.compose(PoissonSampledDpEvent(0.3, GaussianDpEvent(1.0)), 2 * rounds)
    reference.compose(GaussianDpEvent(4.0), rounds)
    return reference.get_epsilon(1e-5)
