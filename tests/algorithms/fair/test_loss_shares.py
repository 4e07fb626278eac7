"""What q-FedAvg and TERM share: two sums, a level that cancels, and what may be claimed for the loss inside."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

import privfl as pf
from privfl.algorithms.base import Round
from privfl.algorithms.declarations import declared
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.door.log import BARE_TOTAL
from tests.algorithms.fair.fair_rounds import (
    NOISY_LOSS,
    PRIVATE,
    SIZES,
    STEPS,
    TRAINING,
    cell,
    expected_epsilon,
    fair_task,
    simulated,
)
from tests.algorithms.federation import task_of, uploads

BOTH = pytest.mark.parametrize("algorithm", [pf.QFedAvg(q=3.0), pf.TERM(t=3.0)], ids=["q-fedavg", "term"])


@pytest.fixture(scope="module")
def task():
    return fair_task()


def received(task, level):
    return {"parameters": flatten(task.model(0)), "level": torch.tensor(level, dtype=torch.float64)}


def sums(task, algorithm, level):
    found = [result.upload for result in uploads(task, algorithm, received(task, level), training=TRAINING)]
    return {name: torch.stack([upload[name] for upload in found]).sum(0) for name in ("update", "normaliser")}


@BOTH
def test_the_level_cancels(task, algorithm):
    steps = [(one := sums(task, algorithm, level))["update"] / one["normaliser"] for level in (-1.0, 0.0, 5.0)]
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(steps[2], steps[1], rtol=1e-12, atol=0)


@BOTH
def test_the_level_is_the_log_of_the_last_rounds_mean_normaliser(task, algorithm):
    bound = algorithm.bind(task.context(1, 0))
    before = bound.start(flatten(task.model(0)))
    weights = torch.tensor(SIZES if bound.weighs == "size" else (1,) * 4, dtype=torch.float64)
    found = uploads(task, algorithm, bound.broadcast(before), training=TRAINING)
    normalisers = torch.stack([result.upload["normaliser"] for result in found])
    run = simulated(task, algorithm, rounds=1)
    mean = float((weights * normalisers).sum() / weights.sum())
    assert run.metrics[0]["level"] == pytest.approx(float(before["level"]) + math.log(mean), rel=1e-12)


@BOTH
def test_a_client_sends_one_number_besides_its_update_and_nobodys_loss(task, algorithm):
    for result in uploads(task, algorithm, received(task, 0.0), training=TRAINING):
        assert {name: value.numel() for name, value in result.upload.items()} == {
            "update": len(flatten(task.model(0))),
            "normaliser": 1,
        }
    assert declared(algorithm)["secure sums"] == "yes"


@BOTH
def test_secure_sums_give_the_same_model(task, algorithm):
    private = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    runs = [simulated(task, algorithm, privacy=privacy) for privacy in (None, private)]
    torch.testing.assert_close(runs[1].parameters, runs[0].parameters, rtol=0, atol=1e-9)


@BOTH
def test_the_order_of_the_clients_does_not_matter(algorithm):
    base = fair_task()
    order = [2, 0, 3, 1]
    rows = torch.cat([base.clients[client] for client in order])
    sizes = [SIZES[client] for client in order]
    whole = pf.LocalTraining(learning_rate=0.3, batch_size=10**6)  # else batches would differ
    swapped = task_of(base.inputs[rows], base.targets[rows], sizes)
    plain = task_of(base.inputs, base.targets, SIZES)
    runs = [simulated(task, algorithm, rounds=3, training=whole) for task in (plain, swapped)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


@BOTH
def test_where_the_shares_are_out_of_reach_the_model_stays_and_the_level_falls(task, algorithm):
    bound = algorithm.bind(task.context(1, 0))
    server = bound.start(flatten(task.model(0)))
    total = {"update": torch.ones_like(server["parameters"]), "normaliser": torch.tensor(0.0)}
    after = bound.aggregate(server, total, Round(weight=4.0, cohort=4, clients=4), TRAINING)
    assert torch.equal(after["parameters"], server["parameters"])
    assert float(after["level"]) == float(server["level"]) - 20
    assert bound.warnings(server) == []
    assert "in 1 rounds the shares" in bound.warnings(after)[0]
    finding = {**server, "level": server["level"] + 900}
    for _ in range(46):  # 900 is 45 times 20
        total, before = sums(task, algorithm, float(finding["level"])), finding
        finding = bound.aggregate(before, total, Round(weight=4.0, cohort=4, clients=4), TRAINING)
        lost = float(finding["lost"]) > float(before["lost"])
        assert torch.equal(finding["parameters"], before["parameters"]) == lost
    assert not lost


@BOTH
def test_a_loss_that_jumps_is_cut_off_and_leaves_nobody_out(algorithm):
    task = fair_task(dtype=torch.float32)
    for reach in (10.0, 60.0):
        reaching = replace(algorithm, reach=reach)
        for result in uploads(task, reaching, received(task, -500.0), training=TRAINING):
            assert result.dropped == ""
            assert math.exp(reach) * 0.999 <= float(result.upload["normaliser"]) < math.inf


@pytest.mark.parametrize("start", [-45.0, 45.0])
def test_a_secure_sum_finds_a_level_that_starts_far_off_and_drops_nobody(task, start):
    """Shares of e^45 are beyond what the sum can hold, shares of e^−45 below what it resolves."""

    @dataclass(frozen=True)
    class Elsewhere(pf.QFedAvg):
        def start(self, parameters):
            server = super().start(parameters)
            return {**server, "level": server["level"] + start}

    private = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    still = pf.LocalTraining(learning_rate=1e-9)  # losses stay as they are
    run = simulated(task, Elsewhere(q=3.0), rounds=6, training=still, privacy=private)
    assert run.summary["dropped"] == {}
    settled = simulated(task, pf.QFedAvg(q=3.0), rounds=1, training=still).metrics[0]["level"]
    assert run.metrics[-1]["level"] == pytest.approx(settled, abs=1e-6)
    assert float(run.server["lost"]) == (2 if start > 0 else 0)


@pytest.mark.parametrize("algorithm", [pf.QFedAvg(q=200.0), pf.TERM(t=60.0)], ids=["q-fedavg", "term"])
def test_steep_powers_stay_finite_in_float32(algorithm):
    run = simulated(fair_task(dtype=torch.float32), algorithm, rounds=6)
    assert [line["clients"] for line in run.metrics] == [4] * 6
    assert bool(run.parameters.isfinite().all())


@BOTH
def test_a_bound_on_losses_cuts_every_example_off(task, algorithm):
    free, loose, tight = (
        sums(task, type(algorithm)(**{**vars(algorithm), "loss_bound": bound}), 0.0)["normaliser"]
        for bound in (math.inf, 50.0, 0.5)
    )
    torch.testing.assert_close(loose, free, rtol=1e-12, atol=0)
    assert float(tight) < float(free)


@BOTH
def test_without_mechanisms_nothing_is_claimed(task, algorithm):
    run = simulated(task, algorithm, rounds=1)
    assert all(entry.epsilon == math.inf for entry in run.statement.cells)


def private(task, algorithm, statistics=()):
    privacy = pf.Privacy(training=PRIVATE, statistics=statistics, noise_key=5)
    return simulated(task, algorithm, training=STEPS, privacy=privacy)


def uniform(algorithm):
    return type(algorithm)(**{**vars(algorithm), "weighting": "uniform", "loss_bound": 5.0})


@BOTH
def test_dp_sgd_alone_does_not_cover_the_loss(task, algorithm):
    entry = cell(private(task, uniform(algorithm)))
    assert entry.epsilon == math.inf
    assert BARE_TOTAL in str(entry)


@BOTH
def test_noisy_gradients_and_a_noisy_loss_compose_to_a_finite_epsilon(task, algorithm):
    run = private(task, uniform(algorithm), (NOISY_LOSS,))
    for observer in ("server", "public"):
        assert cell(run, observer=observer).epsilon == pytest.approx(expected_epsilon(2), rel=1e-3)
        assert cell(run, "client", observer).epsilon == math.inf


@BOTH
def test_all_that_is_sent_is_computed_from_the_noisy_loss_and_the_noisy_gradients(task, algorithm):
    bound = algorithm.bind(task.context(1, 0))
    told = received(task, 0.0)
    told["parameters"] = told["parameters"] + 0.01

    class Answers:
        loss = None

        def total(self, statistic, parameters, batch, name):
            return torch.tensor([30.0, 11.0], dtype=torch.float64)

        def gradient(self, loss, parameters, batch):
            return torch.full_like(parameters, 0.2)

    local = bound.begin(told, {}, TRAINING)
    local["parameters"] = local["parameters"].clone()
    bound.prepare(local, told, None, Answers(), TRAINING)
    bound.step(local, told, None, Answers(), TRAINING)
    upload = bound.finish(local, told, TRAINING)
    share = float(bound.log_share(torch.tensor(30 / 11, dtype=torch.float64)).exp())
    torch.testing.assert_close(upload["update"], torch.full_like(told["parameters"], -0.2 * 0.3 * share))


@BOTH
def test_noise_on_the_update_is_refused_because_a_share_travels_beside_it(task, algorithm):
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
    with pytest.raises(ConfigError, match="one field 'update'"):
        simulated(task, uniform(algorithm), privacy=privacy)


@pytest.mark.parametrize("kind", [pf.QFedAvg, pf.TERM])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "scheme-2"}, "weighting is 'scheme-2'"),
        ({"server_learning_rate": 0.0}, "server_learning_rate is 0.0"),
        ({"loss_bound": 0.0}, "loss_bound is 0.0"),
        ({"loss_bound": math.nan}, "loss_bound is nan"),
        ({"reach": 0.0}, "reach is 0.0"),
        ({"reach": 61.0}, "reach is 61.0"),
    ],
)
def test_impossible_settings_are_one_sentence(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)
