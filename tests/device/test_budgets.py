"""Budgets: what one step of a stack of clients launches on the device. Nothing in a step makes the host wait for it.

Exact numbers, for a network with two convolutions, pooling, two layers of drop-out and two dense layers. Whoever
changes one on purpose writes the new number here; a smaller one is welcome.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.noise.source import NoiseSource
from tests.device.stand_in import CUDA, stand_in_cuda
from tests.engine.test_vectorised import federation

NOISY = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)
LAUNCHES = {"plain": (47, 0), "dp-sgd": (55, 111)}
"""Of a step without its noise, and of the noise, as long as that is one piece; where there is no compiler more."""


def cnn(seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    layers += [nn.Flatten(), nn.Linear(8 * 4 * 4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5)]
    return nn.Sequential(*layers)


def a_round(counts, clients, dpsgd, steps):
    """Launches and waits, by line, of a round of ``steps`` steps that all ``clients`` take in one stack."""
    task = federation(cnn, (3, 12, 12), sizes=(20,) * clients)
    task = replace(task, inputs=task.inputs.float(), test_inputs=task.test_inputs.float()).to(CUDA)
    algorithm = pf.FedAvg().bind(task.context(10, 1))
    channel, way = RoundChannel.bare(algorithm.fields(), dpsgd), None if dpsgd is None else "layers"
    received = {"parameters": flatten(task.model(0)).to(CUDA)}
    training = pf.LocalTraining(batch_size=10, steps=steps)
    with LoopEngine(task, algorithm, training, channel, way=way) as loop:
        engine = VectorisedEngine(loop, clients, way)
        for _ in range(2):  # the first time finds out which lengths of passes round alike
            counts.reset()
            assert (
                len(list(engine.train(range(clients), received, RoundContext(0, 1, NoiseSource.from_key(4), {})))) > 0
            )
    return Counter(counts.launches), Counter(counts.waits)


def of_noise(launches):
    """How many of ``launches`` make noise and add it."""
    return sum(number for line, number in launches.items() if line.startswith("privfl/privacy/noise/"))


@pytest.mark.parametrize(("mechanism", "clients"), [("plain", 10), ("plain", 50), ("dp-sgd", 10), ("dp-sgd", 50)])
def test_a_step_launches_what_it_may_whatever_the_cohort_and_never_waits(mechanism, clients):
    dpsgd = NOISY if mechanism == "dp-sgd" else None
    with stand_in_cuda() as counts:
        (many, long), (few, short) = (a_round(counts, clients, dpsgd, steps) for steps in (3, 2))
    assert long - short == Counter(), "a step makes the host wait"
    step = many - few
    noise = of_noise(step)
    assert (step.total() - noise, noise) == LAUNCHES[mechanism], "\n".join(f"{n} {line}" for line, n in step.items())
