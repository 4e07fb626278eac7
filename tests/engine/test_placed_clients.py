"""What a client sends under a claim does not depend on who is stacked with it, whatever its steps compute."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine import vectorised
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import ChannelSpec, RoundChannel
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource
from tests.engine.test_vectorised import federation
from tests.privacy.clipping.test_placement import depends_on_the_place

CLIENTS = 7
NOTE = (
    "clients are trained one after another, because 'sigmoid' in step of bent rounds numbers by where in a stack they "
    "are"
)


def bent(values):
    """In -3 .. 3, and twice as far apart as they were, so that a last place that differs is soon all that differs."""
    share = torch.sigmoid(values)
    return 24 * share * (1 - share) - 3


@dataclass(frozen=True)
class Bent(pf.FedAvg):
    """Parameters are bent after every step."""

    name = "bent"

    def step(self, local, received, batch, door, training):
        super().step(local, received, batch, door, training)
        local["parameters"].copy_(bent(local["parameters"]))


@dataclass(frozen=True)
class BentInTheEnd(pf.FedAvg):
    """The same, of what is sent."""

    name = "bent"

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        for _ in range(60):
            upload["update"] = bent(upload["update"])
        return upload


DPSGD = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)


def engine_of(algorithm, claim, chunk, inputs=2):
    """A vectorised engine in its loop, and what it trains with; a model has 5 parameters more than 5 · ``inputs``."""

    def network(seed):
        torch.manual_seed(seed)
        return nn.Linear(inputs, 5)

    task = federation(network, (inputs,), sizes=(6,) * CLIENTS)
    task = replace(task, inputs=task.inputs.float(), test_inputs=task.test_inputs.float())
    algorithm = algorithm.bind(task.context(CLIENTS, 1))
    parameters = flatten(task.model(0))
    dpsgd = DPSGD if claim == "DP-SGD" else None
    channel, way = RoundChannel.bare(algorithm.fields(), dpsgd), None if dpsgd is None else "layers"
    if claim == "noise on updates":
        chain = pf.Clip(1e9), pf.GaussianNoise(1.0)
        spec = ChannelSpec.of(chain, algorithm.fields())
        pattern = ParticipationPattern(CLIENTS, 1, 1)
        channel = spec.for_run(len(parameters), 10.0, pattern, False).in_round(0, 10, {})
    training = pf.LocalTraining(batch_size=3, steps=60, learning_rate=0.1)
    loop = LoopEngine(task, algorithm, training, channel, workers=2, way=way)
    return loop, VectorisedEngine(loop, chunk, way), algorithm.broadcast(algorithm.start(parameters))


def sent(algorithm, cohorts, *, claim="noise on updates", chunk=CLIENTS, inputs=2):
    """What clients 0 … send in each of ``cohorts``, and the notes."""
    loop, engine, received = engine_of(algorithm, claim, chunk, inputs)
    found = []
    with loop:
        for cohort in cohorts:
            results = engine.train(cohort, received, RoundContext(3, 1, NoiseSource.from_key(4), {}))
            found.append({one.client: one.upload["update"].clone() for one in results})
    return found, engine.notes


COHORTS = range(CLIENTS), range(1, CLIENTS), range(4, CLIENTS), [6]


@pytest.mark.parametrize("claim", ["noise on updates", "DP-SGD"])
@pytest.mark.parametrize("algorithm", [Bent(weighting="uniform"), BentInTheEnd(weighting="uniform")])
def test_a_client_sends_the_same_bits_whoever_is_stacked_with_it(algorithm, claim):
    found, notes = sent(algorithm, COHORTS, claim=claim)
    assert notes == [NOTE.replace("step", "finish") if isinstance(algorithm, BentInTheEnd) else NOTE]
    for some in found[1:]:
        for client, update in some.items():
            assert torch.equal(update, found[0][client])


def test_were_it_not_looked_at_the_last_of_a_stack_would_send_otherwise(monkeypatch):
    monkeypatch.setattr(vectorised, "nothing_is_left_over", lambda calls: True)
    differ = []
    for inputs in (2, 15):  # what is left over of a loop by 8 numbers, and of one by 16
        found, notes = sent(Bent(weighting="uniform"), COHORTS, inputs=inputs)
        assert notes == []
        differ += [not torch.equal(update, found[0][one]) for some in found[1:] for one, update in some.items()]
    if not depends_on_the_place(nn.Sigmoid()):
        pytest.skip("this processor rounds numbers alike wherever they stand")
    assert any(differ)


def test_without_noise_on_updates_and_with_exact_steps_clients_stay_stacked():
    assert sent(Bent(weighting="uniform"), COHORTS[:1], claim=None)[1] == []
    for algorithm in (pf.FedAvg(weighting="uniform"), pf.FedProx(mu=0.1), pf.FedLC(), pf.BalancedFedAvg()):
        assert sent(algorithm, COHORTS[:1])[1] == []


def test_clients_are_told_of_once_and_stay_apart():
    loop, engine, received = engine_of(Bent(weighting="uniform"), "noise on updates", 3)
    with loop:
        for number in range(2):
            list(engine.train(range(CLIENTS), received, RoundContext(number, 1, NoiseSource.from_key(4), {})))
        assert engine.chunk == 1
        assert len(engine._chunks([object()] * 4)) == 4
    assert len(engine.notes) == 1
