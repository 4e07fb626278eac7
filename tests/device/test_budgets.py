"""Budgets: what one step of a stack of clients launches on the device. Nothing in a step makes the host wait for it.

Exact numbers, for a network with two convolutions, pooling, two layers of drop-out and two dense layers. Whoever
changes one on purpose writes the new number here; a smaller one is welcome. DP-SGD may take 60 with its noise, where
Triton makes it; so may every network that is a sequence of the same kinds of layers and whose gradients fit.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping import whole_rows
from privfl.privacy.noise.source import NoiseSource
from tests.device.stand_in import CUDA, interprets, stand_in_cuda
from tests.engine.test_vectorised import federation

NOISY = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)
MOST = 60
"""Kernels of a step under DP-SGD."""
LAUNCHES = {
    "plain": 45,
    "plain, tanh": 45,
    "plain, gelu": 45,
    "plain, own class": 45,
    "plain, by functions": 46,
    "plain, no sequence": 68,
    "dp-sgd": 55,
    "dp-sgd, tanh": 55,
    "dp-sgd, gelu": 55,
    "dp-sgd, own class": 55,
    "dp-sgd, by functions": 56,
    "dp-sgd, no sequence": 79,
    "dp-sgd, too large": 108,
}
"""Of a step without its noise: where the layers give their gradients, where ``vmap`` and autograd do, and where rows do
not fit into the memory that they may take."""
NOISE = 111
"""Of the noise without Triton, as long as it is one piece and there is a compiler for its integers. With it: one."""


def cnn(seed, last=nn.ReLU):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    layers += [nn.Flatten(), nn.Linear(8 * 4 * 4, 16), last(), nn.Dropout(0.5), nn.Linear(16, 5)]
    return nn.Sequential(*layers)


class OwnClass(nn.Module):
    """The same layers, by a forward pass of one's own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.pool = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3), nn.MaxPool2d(2)
        self.little, self.much = nn.Dropout(0.25), nn.Dropout(0.5)
        self.hidden, self.last = nn.Linear(8 * 4 * 4, 16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.little(self.pool(F.relu(self.second(F.relu(self.first(x))))))
        return self.last(self.much(F.relu(self.hidden(x.view(x.size(0), -1)))))


class ByFunctions(OwnClass):
    """Drop-out as a function, padding by name, an average and logarithms too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding="valid"), nn.Conv2d(4, 8, 3, padding="valid")

    def forward(self, x):
        x = F.avg_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        x = F.dropout(x, 0.25, self.training).flatten(1)
        return F.log_softmax(self.last(F.dropout(F.relu(self.hidden(x)), 0.5, self.training)), 1)


def own_class(seed, kind=OwnClass):
    torch.manual_seed(seed)
    return kind()


LAST = {"tanh": nn.Tanh, "gelu": nn.GELU, "no sequence": nn.Hardshrink}
NETWORKS = {"own class": own_class, "by functions": partial(own_class, kind=ByFunctions)}
NETWORKS |= {name: partial(cnn, last=last) for name, last in LAST.items()}
"""As many layers; the last activation of the last one has no way of its own."""


def a_round(counts, clients, dpsgd, steps, network=cnn):
    """Launches and waits, by line, of a round of ``steps`` steps that all ``clients`` take in one stack."""
    task = federation(network, (3, 12, 12), sizes=(20,) * clients)
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


def a_step(clients, dpsgd, network=cnn):
    """Launches and waits of one step, by line."""
    with stand_in_cuda() as counts:
        (many, long), (few, short) = (a_round(counts, clients, dpsgd, steps, network) for steps in (2, 1))
    return many - few, long - short


@pytest.mark.parametrize("clients", [10, 50])
@pytest.mark.parametrize("kind", LAUNCHES)
def test_a_step_launches_what_it_may_whatever_the_cohort_and_never_waits(monkeypatch, kind, clients):
    mechanism, _, how = kind.partition(", ")
    if how == "too large":
        monkeypatch.setattr(whole_rows, "LARGEST", 0)
    private = mechanism == "dp-sgd"
    step, waits = a_step(clients, NOISY if private else None, NETWORKS.get(how, cnn))
    assert waits == Counter(), "a step makes the host wait"
    noise = of_noise(step)
    lines = "\n".join(f"{n} {line}" for line, n in step.items())
    assert noise == (private and (1 if interprets() else NOISE)), lines
    assert step.total() - noise == LAUNCHES[kind], lines


def test_with_the_kernel_of_the_noise_a_private_step_is_within_its_budget():
    assert LAUNCHES["dp-sgd"] + 1 <= MOST


def test_batches_that_are_empty_or_short_take_no_launches_each():
    """Two more pad inputs and targets of all clients to a pass that rounds alike, one the mask; one clears sums."""
    usual, waits = a_step(40, NOISY)
    sparse, waits = a_step(40, replace(NOISY, sample_rate=0.05))
    assert waits == Counter()
    assert sparse.total() - of_noise(sparse) <= usual.total() - of_noise(usual) + 4 < MOST


def test_under_noise_on_updates_a_client_descends_alike_whether_others_have_as_many_rows():
    """Where batches are equally long a stack divides and descends in one pass, but not where a claim rests on bits."""
    rows = []
    for other in (10, 7):
        with stand_in_cuda():
            task = federation(cnn, (3, 12, 12), sizes=(10, 10))
            clients = ClientIndex.of([np.arange(10), np.arange(10, 10 + other)])
            task = replace(task, inputs=task.inputs.float(), test_inputs=task.test_inputs.float(), clients=clients)
            task = task.to(CUDA)
            algorithm = pf.FedAvg("uniform").bind(task.context(10, 1))
            received = {"parameters": flatten(task.model(0)).to(CUDA)}
            training = pf.LocalTraining(batch_size=10, steps=2, learning_rate=0.3)
            with LoopEngine(task, algorithm, training, RoundChannel.bare(algorithm.fields())) as loop:
                loop.lengths = loop.steady_lengths()
                engine = VectorisedEngine(loop, 2)
                results = engine.train([0, 1], received, RoundContext(0, 1, NoiseSource.from_key(4), {}))
                rows.append(next(one.upload["update"].cpu() for one in results if one.client == 0))
    assert torch.equal(*rows)
