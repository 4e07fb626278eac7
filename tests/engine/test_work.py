"""How much work a round is, counted and not timed: operators dispatched per client's step, against a stored budget.

The counts depend on torch's own decompositions, so the budget leaves a tenth; a change that makes a step allocate,
copy or loop more than that fails here, on any machine and however busy it is.
"""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.models.layouts import lay_channels_innermost
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.noise.source import NoiseSource

CLIENTS = 8
BUDGETS = {
    ("loop", "plain"): 68,
    ("loop", "dp-sgd"): 179,
    ("stacked", "plain"): 19,
    ("stacked", "dp-sgd"): 112,
}
"""Operators for one client's step, all included: batches, gradient, clipping, noise, descent, upload, summing up."""


class Count(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operators += 1
        return function(*args, **(kwargs or {}))


def operators(kind, privacy):
    """Operators of a round over clients and steps."""
    task = pf.load("digits", partition=pf.IID(clients=CLIENTS), model="two-nn")
    dpsgd = None if privacy == "plain" else pf.DPSGD(noise_multiplier=1.0, sample_rate=0.25)
    way = None if dpsgd is None else "layers"
    algorithm = FedAvg("uniform")
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    received = algorithm.broadcast(algorithm.start(flatten(task.model(0))))
    with LoopEngine(task, algorithm, LocalTraining(steps=4), channel, way=way, workers=1) as loop:
        engine = loop if kind == "loop" else VectorisedEngine(loop, CLIENTS, way)
        counter = Count()

        def on_the_worker(work):
            def counted(*arguments):
                with counter:
                    return work(*arguments)

            return counted

        context = RoundContext(0, 0, NoiseSource.from_key(1), {})
        list(engine.train(range(CLIENTS), received, context))  # finds lengths that round alike, once in a process
        submit = loop._pool.submit
        loop._pool.submit = lambda work, *items: submit(on_the_worker(work), *items)
        list(engine.train(range(CLIENTS), received, context))
    return counter.operators / (CLIENTS * 4)


@pytest.mark.parametrize(("kind", "privacy"), BUDGETS)
def test_a_step_takes_no_more_operators_than_its_budget(kind, privacy):
    assert operators(kind, privacy) <= BUDGETS[kind, privacy]


def test_an_algorithm_that_takes_a_network_apart_gets_the_fast_layout_too():
    layer = nn.Conv2d(3, 4, 3)
    network = Network(nn.Sequential(layer, nn.MaxPool2d(2), nn.Flatten()), nn.Linear(36, 2))
    lay_channels_innermost(network)
    seen = []
    layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    images = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(network.head(network.features(images)), network(images))
    assert all(found.is_contiguous(memory_format=torch.channels_last) for found in seen)
