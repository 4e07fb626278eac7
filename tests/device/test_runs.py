"""Whole runs on a CUDA device: what they report, what attacks make of them, and what an audit certifies.

A study trains its members in processes of their own, which the stand-in does not reach; a member is a run as here.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.labels.inference import LabelCounts
from audits.canaries.canaries import rare_token_canaries, rare_token_task
from audits.canaries.gradient_canaries import audit_one_run
from tests.device.cases import a_device

PRIVATE = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2), noise_key=3)
CLIENT_LEVEL = pf.Privacy(update=[pf.Clip(1.0), pf.DiscreteGaussianNoise(0.5), pf.SecureSum()], noise_key=3)


def run(device, engine="loop", privacy=None, task=None, batch=20, **more):
    return pf.simulate(
        task or pf.load("digits", partition=pf.IID(clients=4), model="logistic"),
        pf.FedAvg("uniform"),
        rounds=2,
        training=pf.LocalTraining(learning_rate=0.2, batch_size=batch, steps=2),
        privacy=privacy or pf.Privacy(),
        execution=pf.Execution(device=device, engine=engine, workers=1),
        **more,
    )


@pytest.mark.parametrize("privacy", [None, PRIVATE, CLIENT_LEVEL], ids=["plain", "dp-sgd", "client level"])
def test_a_run_reports_what_it_reports_on_the_cpu(privacy, tmp_path, common_noise):
    here = run("cpu", "vectorised", privacy)
    with a_device():
        there = run("cuda", "vectorised", privacy, out=tmp_path / "run")
        assert there.parameters.is_cuda
        parameters = there.parameters.cpu()
    # A GPU adds up in another order: its means of right answers are the same to rounding, not in every bit.
    on_a_gpu = torch.cuda.is_available()
    accuracy = [one["test_accuracy"] for one in here.metrics]
    assert [one["test_accuracy"] for one in there.metrics] == pytest.approx(
        accuracy, rel=1e-9 if on_a_gpu else 0.0, abs=0.0
    )
    assert there.statement.to_json() == here.statement.to_json()
    assert not there.warnings
    torch.testing.assert_close(parameters, here.parameters, rtol=1e-5, atol=3e-6 if on_a_gpu else 1e-6)


def test_an_attack_learns_from_a_run_on_the_device_what_it_learns_on_the_cpu():
    task = pf.load("digits", partition=pf.Dirichlet(clients=4, alpha=0.3), model="logistic")
    counts = torch.stack([torch.bincount(task.targets[task.clients[client]], minlength=10) for client in range(4)])
    known = Auxiliary(public=Records(task.test_inputs, task.test_targets), truth={"counts": counts})
    here = LabelCounts(method="bias").run(run("cpu", task=task, record=True, batch=2000).transcript, known)
    with a_device():
        transcript = run("cuda", task=task, record=True, batch=2000).transcript
    found = LabelCounts(method="bias").run(transcript, known)
    expected = here.metrics["multiset_accuracy"].value
    assert expected > 0.5
    assert found.metrics["multiset_accuracy"].value == pytest.approx(expected, rel=1e-6)


def test_an_audit_of_a_run_on_the_device_certifies_what_it_certifies_on_the_cpu(common_noise):
    task = rare_token_task(50)
    canaries = rare_token_canaries(task, 50)

    def audited(device, where):
        def train(planted):
            with where():
                return run(device, privacy=PRIVATE, task=planted, record=["server"])

        return audit_one_run(task, train, canaries)

    here, there = audited("cpu", nullcontext), audited("cuda", a_device)
    assert [one.epsilon for one in there.bounds] == pytest.approx([one.epsilon for one in here.bounds], abs=1e-6)
    assert there.claim == here.claim
