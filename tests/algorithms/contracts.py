"""What the tests of the contract share: results straight from either engine, and an algorithm with a survey."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import privfl as pf
from privfl.algorithms.base import Survey
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.noise.source import NoiseSource
from tests.algorithms.federation import initial

SIZES = (7, 20, 1, 13)
TRAINING = LocalTraining(batch_size=5, epochs=2, learning_rate=0.1)


def results(task, algorithm, *, chunk=None, dpsgd=None, statistics=(), received=None, training=TRAINING):
    algorithm = algorithm.bind(task.context(3, 1))
    channel = RoundChannel.bare(algorithm.fields(), dpsgd, statistics)
    way = None if dpsgd is None else "layers"
    with LoopEngine(task, algorithm, training, channel, way=way, workers=1) as loop:
        engine = loop if chunk is None else VectorisedEngine(loop, chunk, way)
        context = RoundContext(2, 1, NoiseSource.from_key(4), {})
        found = engine.train(range(len(SIZES)), received or {"parameters": initial(task)}, context)
        return {result.client: result for result in found}


def both(task, algorithm, **settings):
    """The loop engine's results, which the vectorised engine's are held to."""
    expected = results(task, algorithm, **settings)
    for chunk in (2, 4):
        for client, result in results(task, algorithm, chunk=chunk, **settings).items():
            assert result.log == expected[client].log
            for name, value in (expected[client].upload or {}).items():
                torch.testing.assert_close(result.upload[name], value, rtol=1e-9, atol=1e-9)
            for name, value in expected[client].client_state.items():
                torch.testing.assert_close(result.client_state[name], value, rtol=1e-9, atol=1e-9)
    return expected


def loaded(task, flat):
    network = task.model(0)
    nn.utils.vector_to_parameters(flat.clone(), network.parameters())
    return network


def one_hot(network, inputs, targets):
    return nn.functional.one_hot(targets, 10).to(inputs.dtype)


@dataclass(frozen=True)
class Voiced(pf.FedAvg):
    """Weighs clients by the square of the loss that a survey asks for."""

    name: ClassVar[str] = "voiced"
    epsilon: float | None = None

    def survey(self):
        return LossOnly(self.epsilon)

    def start(self, parameters):
        return {"parameters": parameters.clone(), "losses": torch.zeros(self.context.clients, dtype=torch.float64)}

    def weights(self):
        return "server"

    def server_weights(self, server, clients):
        return server["losses"][clients].square()


@dataclass(frozen=True)
class LossOnly(Survey):
    name: ClassVar[str] = "loss-only"
    statistics: ClassVar[tuple[str, ...]] = ("loss",)
    epsilon: float | None = None

    def fields(self):
        return (Field("loss", "each", (), epsilon=self.epsilon, value_range=(0.0, 4.0)),)

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "loss": received["parameters"].new_zeros(())}

    def prepare(self, local, received, everything, client, training):
        local["loss"] += client.total(client.loss, received["parameters"], everything, name="loss") / everything.count

    def finish(self, local, received, training):
        return {"loss": local["loss"]}

    def aggregate(self, server, total, round, training):
        losses = server["losses"].clone()
        losses[round.members] = total["loss"]
        return {**server, "losses": losses}
