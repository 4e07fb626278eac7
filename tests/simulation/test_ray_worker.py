"""What a worker makes of its share is what the loop makes of it, bit for bit, whoever has the other shares."""

from dataclasses import replace

import pytest
import torch

import privfl as pf
from privfl.data.own_file import Arrays
from privfl.engine.aggregation import CohortSums, PlainAggregator, aggregate_uploads
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext, phases_of
from privfl.errors import PrivflError
from privfl.federation.recipe import Recipe
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation.plan import RunSettings, prepare
from privfl.simulation.ray_worker import Orders, Worker, WorkerParts, as_arrays

KEY = NoiseSource.from_key(3)


def plan_of(algorithm, privacy):
    task = pf.load("digits", partition=pf.IID(clients=6), model="logistic", seed=2)
    return prepare(
        RunSettings(
            task=task,
            algorithm=algorithm,
            schedule=pf.Schedule(rounds=2, seed=2),
            training=pf.LocalTraining(batch_size=50),
            privacy=privacy,
            cohort=pf.Everyone(),
            availability=pf.Always(),
            execution=pf.Execution(device="cpu"),
            record=(),
        )
    )


def parts_of(plan):
    return WorkerParts(
        recipe=plan.task.recipe,
        seed=plan.schedule.seed,
        planned=plan.algorithm.context.planned,
        algorithm=replace(plan.algorithm),
        training=plan.training,
        usual=plan.channel.usual,
        way=plan.way,
        precision="float32",
    )


@pytest.mark.parametrize(
    ("algorithm", "privacy"),
    [
        (pf.Scaffold(), pf.Privacy()),
        (pf.FedAvg(), pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))),
        (pf.FedAvg(weighting="uniform"), pf.Privacy(update=[pf.Clip(0.1), pf.GaussianNoise(1.0, at="client")])),
    ],
    ids=["what clients keep", "noise on gradients", "noise on updates"],
)
def test_shares_of_workers_are_the_loops_cohort(algorithm, privacy):
    plan = plan_of(algorithm, privacy)
    (phase,) = phases_of(plan.algorithm, plan.channel.in_round(0, 6, {}))
    received = plan.algorithm.broadcast(plan.algorithm.start(plan.initial))
    weights = {client: 1 / 3 for client in range(6)}
    kept: dict = {}
    expected_logs = {}
    with LoopEngine(plan.task, plan.algorithm, plan.training, plan.channel.usual, way=plan.way, workers=1) as loop:
        context = RoundContext(0, 2, KEY, kept)
        results = loop.train(range(6), received, context, phase)
        expected = aggregate_uploads(
            results, PlainAggregator(phase.channel.sent), weights, kept, expected_logs.__setitem__
        )
    workers = [Worker(), Worker()]
    for worker in workers:
        assert worker.build(parts_of(plan)).described == plan.task.describe()
    whole, found_kept, logs = PlainAggregator(phase.channel.sent), {}, {}
    for worker, clients in zip(workers, [[5, 0], [1, 4, 3, 2]], strict=True):
        own = {client: weights[client] for client in clients}
        share = worker.train(KEY.key, True, as_arrays(received), Orders(0, "", phase.channel, own, {}))
        whole.merge(share.aggregator(whole, weights))
        found_kept |= share.states
        logs |= {client: log for log, some in share.logs for client in some}
        assert share.members == sorted(clients)
    sums = CohortSums()
    whole.close(sums)
    assert {name: value.tolist() for name, value in sums.total.items()} == {
        name: value.tolist() for name, value in expected.total.items()
    }
    assert logs == expected_logs
    assert {c: {n: v.tolist() for n, v in s.items()} for c, s in found_kept.items()} == {
        c: {n: v.tolist() for n, v in s.items()} for c, s in kept.items()
    }


def test_a_state_that_is_sent_counts_and_one_that_is_known_is_used():
    plan = plan_of(pf.Scaffold(), pf.Privacy())
    (phase,) = phases_of(plan.algorithm, plan.channel.in_round(0, 6, {}))
    received = as_arrays(plan.algorithm.broadcast(plan.algorithm.start(plan.initial)))
    orders = Orders(0, "", phase.channel, {0: 1.0}, {})
    knows, told = Worker(), Worker()
    for worker in (knows, told):
        worker.build(parts_of(plan))
    first = knows.train(KEY.key, True, received, orders)
    second = knows.train(KEY.key, True, received, replace(orders, number=1))
    moved = told.train(KEY.key, True, received, replace(orders, number=1, states=first.states))
    fresh = told.train(KEY.key, True, received, replace(orders, number=1, states={0: {}}))
    (name,) = second.states[0]
    assert second.states[0][name].tolist() == moved.states[0][name].tolist()
    assert second.states[0][name].tolist() != fresh.states[0][name].tolist()


def test_a_worker_without_the_data_says_so(tmp_path):
    gone = Recipe(arrays=Arrays(file=str(tmp_path / "gone.npz")))
    parts = replace(parts_of(plan_of(pf.FedAvg(), pf.Privacy())), recipe=gone)
    with pytest.raises(PrivflError, match=r"gone\.npz"):
        Worker().build(parts)


def test_what_a_worker_is_sent_is_copied():
    """Ray's arrays are read-only, and an algorithm may write to what it received."""
    plan = plan_of(pf.FedAvg(), pf.Privacy())
    (phase,) = phases_of(plan.algorithm, plan.channel.in_round(0, 6, {}))
    received = as_arrays(plan.algorithm.broadcast(plan.algorithm.start(plan.initial)))
    for array in received.values():
        array.flags.writeable = False
    worker = Worker()
    worker.build(parts_of(plan))
    share = worker.train(KEY.key, True, received, Orders(0, "", phase.channel, {0: 1.0}, {}))
    assert share.members == [0]
    assert torch.equal(torch.from_numpy(received["parameters"].copy()), plan.initial)


class Counting(pf.FedAvg):
    """Counts clients in its class."""

    name = "counting"
    clients = 0

    def begin(self, received, client_state, training):
        Counting.clients += 1
        return super().begin(received, client_state, training)


def test_a_worker_tells_what_clients_left_behind_in_its_process():
    noisy = pf.Privacy(update=[pf.Clip(0.1), pf.GaussianNoise(1.0, at="client")])
    own = ["the algorithm tests.simulation.test_ray_worker:Counting"]
    for algorithm, told in ((Counting("uniform"), own), (pf.FedAvg("uniform"), [])):
        plan = plan_of(algorithm, noisy)
        worker = Worker()
        worker.build(parts_of(plan))
        received = as_arrays(plan.algorithm.broadcast(plan.algorithm.start(plan.initial)))
        (phase,) = phases_of(plan.algorithm, plan.channel.in_round(0, 6, {}))
        orders = Orders(0, "", phase.channel, dict.fromkeys(range(6), 1.0), {})
        assert worker.train(bytes(32), True, received, orders).shared == told
