"""What may be claimed for SuPerFed: its personal end point shapes later uploads, so the door must cover both.

Section 9 of the specification. The argument for DP-SGD is post-processing: every tensor of a client is a function of
the noisy gradients and of public values, which the replay below shows on the real steps.
"""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

import privfl as pf
from privfl.algorithms.personal.superfed import SuPerFed
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.release import BARE_TRAINING
from privfl.privacy.door.contract import Batch
from tests.algorithms.federation import digits_task
from tests.algorithms.personal.test_superfed import MODES, TRAINING, bound, simulate, small, trained

SIZES = (30, 30, 30, 30)


@pytest.fixture(scope="module")
def task():
    return replace(digits_task(SIZES), model=small)


class Recording:
    """The client's door, which notes what it was asked and what it gave."""

    def __init__(self, door, tape):
        self.door, self.tape, self.loss = door, tape, door.loss

    def gradient(self, loss, parameters, batch):
        given = self.door.gradient(loss, parameters, batch)
        self.tape.append((given.clone(), batch.uniform.clone()))
        return given


class Replaying:
    """A door without data: it gives what was noted."""

    loss = None

    def __init__(self, tape):
        self.given = [gradient for gradient, _ in tape]

    def gradient(self, loss, parameters, batch):
        return self.given.pop(0)


@dataclass(frozen=True)
class Watched(SuPerFed):
    tape: list = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, Recording(client, self.tape), training)


@pytest.mark.parametrize("mode", MODES)
def test_both_end_points_are_a_function_of_the_noisy_gradients_alone(task, mode):
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)
    training = replace(TRAINING, steps=5)
    watched = Watched(mode=mode, start_fraction=0.0)
    (result,) = trained(task, watched, training=training, dpsgd=dpsgd, clients=[2])
    assert len(watched.tape) == 5  # one gradient passes the door in a step
    assert sum(result.log.noisy.values()) == 5
    assert not result.log.bare
    algorithm = bound(task, SuPerFed(mode=mode, start_fraction=0.0))
    received = algorithm.broadcast(algorithm.start(flatten(task.model(0))))
    door, local = Replaying(watched.tape), algorithm.begin(received, algorithm.initial_client_state(2), training)
    local["parameters"] = local["parameters"].clone()
    nothing = torch.empty(0)
    for _, uniform in list(watched.tape):
        batch = Batch(lambda: pytest.fail("a batch was counted"), nothing, uniform, nothing)
        algorithm.step(local, received, batch, door, training)
    assert torch.equal(algorithm.finish(local, received, training)["update"], result.upload["update"])
    assert torch.equal(local["personal"], result.client_state["personal"])


@pytest.mark.parametrize("mode", MODES)
def test_one_example_moves_both_end_points_together_by_no_more_than_the_clipping_norm(task, mode):
    """Clipped, without noise: the joint change (Δu, Δv) of one step is at most η·C/divisor, ν and μ included."""
    dpsgd = pf.DPSGD(noise_multiplier=0.0, sample_rate=1.0, max_grad_norm=0.2)
    training = pf.LocalTraining(learning_rate=1.0, batch_size=8, steps=1)
    algorithm = SuPerFed(mode=mode, start_fraction=0.0, nu=2.0, mu=0.1)
    (with_all,) = trained(task, algorithm, training=training, dpsgd=dpsgd, clients=[1])
    moved = []
    for left_out in range(30):
        rows, offsets = task.clients.rows, task.clients.offsets
        keep = torch.ones(len(rows), dtype=torch.bool)
        keep[offsets[1] + left_out] = False
        index = replace(task.clients, rows=rows[keep], offsets=offsets - (offsets > offsets[1]))
        (without,) = trained(replace(task, clients=index), algorithm, training=training, dpsgd=dpsgd, clients=[1])
        change = [
            with_all.upload["update"] - without.upload["update"],
            with_all.client_state["personal"] - without.client_state["personal"],
        ]
        moved.append(float(torch.cat(change).norm()))
    assert 0 < max(moved) <= 0.2 / 8 * (1 + 1e-9)


def test_the_personal_end_point_shapes_uploads_in_phase_two_only(task):
    other = {0: {"personal": torch.full((len(flatten(small(0))),), 0.1, dtype=torch.float64)}}
    for fraction, same in ((1.0, True), (0.0, False)):
        algorithm = SuPerFed(start_fraction=fraction)
        (usual,), (changed,) = (
            trained(task, algorithm, clients=[0], client_state=client_state) for client_state in ({}, other)
        )
        assert torch.equal(usual.upload["update"], changed.upload["update"]) == same


def test_without_a_mechanism_nothing_is_claimed_for_the_reasons_that_fedavg_has(task):
    ours, theirs = (simulate(task, algorithm)[0].statement for algorithm in (SuPerFed(start_fraction=0.5), pf.FedAvg()))
    for unit in ("sample", "client"):
        for observer in ("server", "public"):
            cell = ours.cell(unit, observer)
            assert cell.epsilon == math.inf
            assert cell.reasons == theirs.cell(unit, observer).reasons
    reasons = " ".join(ours.cell("sample", "server").reasons)
    assert BARE_TRAINING in reasons
    assert "exact number of samples" in reasons


@pytest.mark.parametrize("mode", MODES)
def test_dp_sgd_claims_for_it_what_it_claims_for_fedavg(task, mode):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    cells = []
    for algorithm in (SuPerFed(mode=mode, start_fraction=0.5, weighting="uniform"), pf.FedAvg(weighting="uniform")):
        run, _ = simulate(task, algorithm, privacy=privacy, cohort=None)
        cells.append([run.statement.cell("sample", observer).epsilon for observer in ("server", "public")])
    assert cells[0] == cells[1]
    assert all(0 < epsilon < math.inf for epsilon in cells[0])


def test_client_level_noise_claims_for_it_what_it_claims_for_fedavg(task):
    privacy = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)])
    epsilons = [
        simulate(task, algorithm, privacy=privacy, cohort=pf.PoissonCohort(0.5))[0]
        .statement.cell("client", "public")
        .epsilon
        for algorithm in (SuPerFed(start_fraction=0.5, weighting="uniform"), pf.FedAvg(weighting="uniform"))
    ]
    assert epsilons[0] == epsilons[1] < math.inf


def test_noise_on_the_sum_alone_would_leave_the_personal_end_point_bare_and_is_refused(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2, noise_at="server"))
    with pytest.raises(ConfigError, match="sums of per-sample gradients"):
        simulate(task, SuPerFed(weighting="uniform"), privacy=privacy)
