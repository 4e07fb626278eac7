"""FedRep against a twin with two optimisers, one for each phase; what rests in a phase; how many steps there are."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import Epochs, Poisson
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation.round_costs import planned_gradients
from tests.algorithms.personal.test_partial_sharing import (
    HEAD,
    SIZES,
    TOP_TWO,
    TRAINING,
    assert_as_by_hand,
    bound,
    by_hand,
    deep,
    deep_task,
    simulate,
)

BODY = ("body.",)
LOWEST = ("body.0.",)


@pytest.fixture(scope="module")
def task():
    return deep_task()


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(("head_epochs", "base_epochs"), [(3, 1), (1, 2), (0, 2)])
def test_two_rounds_are_those_of_the_twin(task, head_epochs, base_epochs, engine):
    training = replace(TRAINING, epochs=base_epochs)
    run = simulate(task, pf.FedRep(head_epochs=head_epochs), training=training, execution=pf.Execution(engine=engine))
    assert_as_by_hand(task, run, by_hand(task, HEAD, [(HEAD, head_epochs), (BODY, base_epochs)]))


def test_the_head_may_be_more_than_one_layer(task):
    run = simulate(task, pf.FedRep(head_epochs=1, personal_layers=2))
    assert_as_by_hand(task, run, by_hand(task, TOP_TWO, [(TOP_TWO, 1), (LOWEST, 2)]))


@dataclass(frozen=True)
class Watched(pf.FedRep):
    """Notes the parameters after every step."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "path", [])

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        self.path.append(local["parameters"].clone())


def test_in_every_step_one_part_rests_bit_for_bit_whatever_the_momentum(task):
    algorithm = Watched(head_epochs=2)
    training = replace(TRAINING, momentum=0.9, weight_decay=0.5, epochs=3)
    simulate(task, algorithm, rounds=1, training=training, cohort=pf.FixedCohort(1), seed=0)
    head = task.context(1, 0).head
    points = [flatten(deep(0)), *algorithm.path]
    trained = []
    for before, after in pairwise(points):
        moved = [bool((before[part] != after[part]).any()) for part in (head, ~head)]
        assert sum(moved) == 1
        trained.append(moved[0])
    per_epoch = len(trained) // 5
    assert per_epoch in {-(-size // 5) for size in SIZES}
    assert trained == [True] * (2 * per_epoch) + [False] * (3 * per_epoch)


def test_without_head_epochs_it_uploads_what_fedbabu_uploads(task):
    runs = [simulate(task, algorithm) for algorithm in (pf.FedRep(head_epochs=0), pf.FedBABU())]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


@dataclass(frozen=True)
class Masked(pf.FedRep):
    """FedRep with all parameters shared, or none."""

    shares: bool = True

    def part(self):
        return torch.full_like(self.context.head, self.shares)


def test_with_an_empty_head_it_is_fedavg(task):
    cohort = pf.FixedCohort(2)
    runs = [simulate(task, one, rounds=3, cohort=cohort) for one in (Masked(head_epochs=0), pf.FedAvg())]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_with_an_empty_base_every_client_trains_alone_for_the_heads_epochs(task):
    alone = simulate(task, pf.Local(), rounds=3, training=replace(TRAINING, epochs=4))
    run = simulate(task, Masked(head_epochs=4, shares=False), rounds=3, training=replace(TRAINING, epochs=1))
    for client in range(3):
        torch.testing.assert_close(
            run.client_state[client]["parameters"], alone.client_state[client]["parameters"], rtol=0, atol=1e-12
        )


def test_the_plan_puts_the_heads_passes_before_the_usual_ones(task):
    algorithm = bound(task, pf.FedRep(head_epochs=3))
    plan = algorithm.plan(Epochs(5, 2), {})
    assert plan.length(13) == 3 * 3 + 2 * 3
    assert [plan.is_last(step, 13) for step in range(15)] == [False] * 9 + [True] * 6
    rows = list(plan.rows(torch.arange(13), torch.Generator().manual_seed(0), None))
    for epoch in range(5):
        assert sorted(torch.cat(rows[3 * epoch : 3 * epoch + 3]).tolist()) == list(range(13))
    cut = algorithm.plan(Epochs(5, 2, steps=4), {})
    assert cut.length(13) == 9 + 4
    assert sum(cut.is_last(step, 13) for step in range(13)) == 4
    poisson = algorithm.plan(Poisson(0.3, 7, 5.0), {})
    assert (poisson.rate, poisson.steps, poisson.divisor) == (0.3, 10 + 7, 5.0)
    assert [poisson.is_last(step, 13) for step in range(17)] == [False] * 10 + [True] * 7
    rounded = bound(task, pf.FedRep(head_epochs=1)).plan(Poisson(1 / 49, 1, 5.0), {})
    assert rounded.head_steps == 49  # though 1 / (1 / 49) lies above 49


def test_under_dp_sgd_every_client_has_as_many_steps_for_its_head_as_its_own_rate_asks(task):
    rates = (0.5, 0.1, 0.25)
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=rates)
    training = replace(TRAINING, steps=3)
    algorithm = bound(task, pf.FedRep("uniform", head_epochs=2))
    for client, head_steps in enumerate((4, 20, 8)):
        planned = planned_gradients(algorithm, training, dpsgd, client, {})
        assert planned == (rates[client], head_steps + 3)
    channel, received = RoundChannel.bare(algorithm.fields(), dpsgd), {"parameters": flatten(deep(0))}
    with LoopEngine(task, algorithm, training, channel, way="layers", workers=1) as loop:
        one_by_one, stacked = (
            {
                result.client: result
                for result in engine.train(range(3), received, RoundContext(0, 0, NoiseSource.from_key(3), {}))
            }
            for engine in (loop, VectorisedEngine(loop, 3, "layers"))
        )
    for client, steps in enumerate((7, 23, 11)):
        assert sum(one_by_one[client].log.noisy.values()) == steps
        assert one_by_one[client].log == stacked[client].log
        both = [results[client].client_state["parameters"] for results in (one_by_one, stacked)]
        torch.testing.assert_close(both[0], both[1], rtol=0, atol=1e-4)  # noise is rounded to a grid
