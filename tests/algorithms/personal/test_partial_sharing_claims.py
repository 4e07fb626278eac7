"""What may be claimed for methods that split a model: the private part is a function of what the door gave.

The argument for DP-SGD is post-processing, which the replay below shows on the real steps.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.release import BARE_TRAINING
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import private_plan
from privfl.privacy.door.contract import Batch
from privfl.privacy.noise.source import NoiseSource
from tests.algorithms.personal.test_partial_sharing import (
    ONE_OF_EACH,
    TRAINING,
    bound,
    deep,
    deep_task,
    named,
    simulate,
)


@pytest.fixture(scope="module")
def task():
    return deep_task()


@dataclass
class Recording:
    """The client's door, which notes what it gave."""

    door: object
    tape: list

    def __post_init__(self):
        self.loss = self.door.loss

    def gradient(self, loss, parameters, batch):
        self.tape.append((given := self.door.gradient(loss, parameters, batch).clone(), batch.last.clone()))
        return given.clone()


@dataclass
class Replaying:
    """A door without data: it gives what was noted."""

    tape: list
    loss: object = None

    def gradient(self, loss, parameters, batch):
        return self.tape.pop(0)[0]


def watched(algorithm, tape):
    """``algorithm`` with its door on ``tape``."""
    kind = type(algorithm)

    class Watched(kind):
        def step(self, local, received, batch, client, training):
            super().step(local, received, batch, Recording(client, tape), training)

    return Watched(**{one.name: getattr(algorithm, one.name) for one in fields(algorithm)})


@pytest.mark.parametrize("algorithm", ONE_OF_EACH, ids=named(ONE_OF_EACH))
def test_under_dp_sgd_upload_and_private_part_are_functions_of_the_noisy_gradients_alone(task, algorithm):
    """Post-processing, shown: the steps repeated on a door that has no data give the same bits."""
    dpsgd, tape = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5), []
    training = replace(TRAINING, steps=3)
    seen = bound(task, watched(algorithm, tape))
    client_state = {1: {"parameters": flatten(deep(5))}} if "parameters" in algorithm.keeps else {}
    received = {"parameters": flatten(deep(0))}
    channel = RoundChannel.bare(seen.fields(), dpsgd)
    with LoopEngine(task, seen, training, channel, way="layers", workers=1) as engine:
        source = NoiseSource.from_key(2)
        (result,) = engine.train([1], received, RoundContext(0, 0, source, client_state))
    steps = 5 if algorithm.name == "fedrep" else 3  # one epoch of the head at rate 1/2 comes first
    trainings = 2 if algorithm.local_only else 1  # a class from outside sends what comes of the second training
    assert sum(result.log.noisy.values()) == len(tape) / trainings == steps
    tape = tape[-steps:]
    assert not result.log.bare
    plain = bound(task, algorithm)
    assert plain.plan(private_plan(training, dpsgd, 1), received).steps == steps
    local = plain.begin(received, client_state.get(1, {}), training)
    local["parameters"] = local["parameters"].clone()
    nothing, door = torch.empty(0), Replaying(list(tape))
    for _, last in tape:
        unread = Batch(lambda: pytest.fail("a batch was counted"), last, nothing, nothing)
        plain.step(local, received, unread, door, training)
    assert torch.equal(plain.finish(local, received, training)["update"], result.upload["update"])
    if "parameters" in algorithm.keeps:  # fedbabu keeps a fine-tuned model, which nothing covers
        assert torch.equal(local["parameters"], result.client_state["parameters"])


MECHANISMS = {
    "none": pf.Privacy(),
    "DP-SGD": pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2)),
    "noise on updates": pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)]),
}
FINITE = {
    "none": set(),
    "DP-SGD": {("sample", "server"), ("sample", "public")},
    "noise on updates": {("sample", "public"), ("client", "public")},
}


def cells(task, algorithm, mechanism, steps):
    """ε and the reasons for ∞, by cell."""
    training = replace(TRAINING, steps=steps)
    run = simulate(task, algorithm, training=training, privacy=MECHANISMS[mechanism], evaluate_every=9)
    return {(cell.unit, cell.observer): (cell.epsilon, cell.reasons) for cell in run.statement.cells}


@pytest.fixture(scope="module")
def of_fedavg(task):
    """What is claimed for FedAvg, by mechanism and number of steps."""
    return cache(lambda mechanism, steps: cells(task, pf.FedAvg("uniform"), mechanism, steps))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("algorithm", ONE_OF_EACH, ids=named(ONE_OF_EACH))
def test_the_statement_says_what_it_says_for_fedavg_with_as_many_steps(task, of_fedavg, algorithm, mechanism):
    more = 5 if algorithm.name == "fedrep" and mechanism == "DP-SGD" else 0  # ⌈1/0.2⌉ steps of the head
    found = cells(task, algorithm, mechanism, steps=4)
    assert found == of_fedavg(mechanism, 4 + more)
    assert {where for where, (epsilon, _) in found.items() if epsilon < math.inf} == FINITE[mechanism]
    if mechanism == "none":
        assert BARE_TRAINING in " ".join(found["sample", "public"][1])


@pytest.mark.parametrize("algorithm", ONE_OF_EACH, ids=named(ONE_OF_EACH))
def test_noise_on_the_sum_of_gradients_alone_is_refused(task, algorithm):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2, noise_at="server"))
    with pytest.raises(ConfigError, match="sums of per-sample gradients"):
        simulate(task, algorithm, privacy=privacy, training=replace(TRAINING, steps=1))


@pytest.mark.parametrize("algorithm", ONE_OF_EACH, ids=named(ONE_OF_EACH))
def test_a_secure_sum_of_the_shared_part_is_the_sum_in_clear(task, algorithm):
    secure = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    runs = [
        simulate(task, replace(algorithm, weighting="size"), privacy=one, rounds=1) for one in (pf.Privacy(), secure)
    ]
    torch.testing.assert_close(runs[1].parameters, runs[0].parameters, rtol=0, atol=1e-9)


def test_one_example_moves_upload_and_private_part_together_by_no_more_than_the_clipping_norm(task):
    """Clipped, without noise, one step on everybody: the joint change is at most η·C/divisor, whatever is private."""
    dpsgd = pf.DPSGD(noise_multiplier=0.0, sample_rate=1.0, max_grad_norm=0.2)
    training = pf.LocalTraining(learning_rate=1.0, batch_size=8, steps=1)

    def trained(rows):
        index = ClientIndex.of([rows])
        algorithm = bound(task, pf.FedPer("uniform"))
        channel = RoundChannel.bare(algorithm.fields(), dpsgd)
        with LoopEngine(replace(task, clients=index), algorithm, training, channel, way="layers", workers=1) as engine:
            source = NoiseSource.from_key(0)
            (result,) = engine.train([0], {"parameters": flatten(deep(0))}, RoundContext(0, 0, source, {}))
        return torch.cat([result.upload["update"], result.client_state["parameters"][~algorithm.shared]])

    rows = task.clients[1].numpy()
    whole = trained(rows)
    moved = [float((trained(np.delete(rows, place)) - whole).norm()) for place in range(len(rows))]
    assert 0.01 < max(moved) <= 0.2 / 8 * (1 + 1e-9)


SUM = pf.SecureSum(mode="ideal")
NOISY_SUMS = {
    "at the server": [SUM, pf.GaussianNoise(0.5)],
    "in shares": [pf.DiscreteGaussianNoise(0.5), SUM],
    "correlated": [SUM, pf.BandedNoise(0.5, bands=1)],
}


@pytest.mark.parametrize("noisy_sum", NOISY_SUMS)
def test_noise_on_a_secure_sum_of_the_shared_part_is_as_long_as_that_part(task, noisy_sum):
    """The same claim as for a whole model, which does not depend on how long the bounded update is but by rounding."""
    privacy = pf.Privacy(update=[pf.Clip(1.0), *NOISY_SUMS[noisy_sum]])
    part, whole = (simulate(task, one, privacy=privacy) for one in (pf.FedPer("uniform"), pf.FedAvg("uniform")))
    epsilons = [[cell.epsilon for cell in run.statement.cells] for run in (part, whole)]
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-3)
    assert min(epsilons[0]) < math.inf
    assert [line["clients"] for line in part.metrics] == [3, 3]
    assert part.summary["dropped"] == {}
    assert any("own models, which no claim covers" in one for one in part.statement.caveats)
