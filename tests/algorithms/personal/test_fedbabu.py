"""FedBABU against a twin that trains the body alone; personalisation that no upload knows of."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms.declarations import declared
from privfl.models.flat_network import flatten
from privfl.randomness import torch_stream
from tests.algorithms.personal.test_partial_sharing import (
    SHARES,
    TRAINING,
    assert_as_by_hand,
    by_hand,
    deep,
    deep_task,
    descend_by_hand,
    simulate,
)

BODY = ("body.",)
HEAD = ("head.",)
TUNED = {"full": ("body.", "head."), "head": HEAD, "body": BODY}
PRIVATE = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3), noise_key=1)


@pytest.fixture(scope="module")
def task():
    return deep_task()


def twin(task, **settings):
    """The averaged body under a head that nobody trains."""
    shared, _ = by_hand(task, (), [(BODY, 2)], **settings)
    return shared


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_two_rounds_are_those_of_the_twin(task, engine):
    run = simulate(task, pf.FedBABU(finetune_epochs=0), execution=pf.Execution(engine=engine))
    assert_as_by_hand(task, run, (twin(task), [{}] * 3))
    assert run.client_state == {}


def test_the_head_is_the_initial_one_in_all_rounds_and_the_body_is_not(task):
    head, begin = task.context(1, 0).head, flatten(deep(0))
    training = replace(TRAINING, momentum=0.9, weight_decay=0.5)
    for privacy in (None, PRIVATE):
        run = simulate(task, pf.FedBABU(), rounds=3, training=training, privacy=privacy, record=True)
        for seen in run.transcript:
            assert torch.equal(seen.released[head], begin[head])
            assert bool((seen.released[~head] != begin[~head]).any())


@dataclass(frozen=True)
class Headless(pf.FedBABU):
    """All parameters are the body."""

    def part(self):
        return torch.ones_like(self.context.head)


def test_with_an_empty_head_it_is_fedavg(task):
    runs = [simulate(task, one, rounds=3, cohort=pf.FixedCohort(2)) for one in (Headless(), pf.FedAvg())]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_the_global_test_is_that_of_the_averaged_body_under_the_initial_head(task):
    run, network = simulate(task, pf.FedBABU()), deep(0)
    nn.utils.vector_to_parameters(run.parameters, network.parameters())
    right = (network(task.test_inputs).argmax(1) == task.test_targets).double().mean()
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(float(right))
    assert declared(pf.FedBABU())["sends"] == "size (once), update (sum)"


def tuned_by_hand(task, received, client, part, epochs):
    """``epochs`` of torch.optim.SGD on the batches of ``client`` in round 1, after its training's shuffles."""
    network = deep(0)
    nn.utils.vector_to_parameters(received.clone(), network.parameters())
    trained = [parameter for name, parameter in network.named_parameters() if name.startswith(TUNED[part])]
    order = torch_stream(0, "batches", 1, client)
    for _ in range(TRAINING.epochs):
        torch.randperm(len(task.clients[client]), generator=order)
    descend_by_hand(task, network, trained, client, TRAINING, order, epochs)
    return flatten(network)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("part", TUNED)
def test_a_client_fine_tunes_the_model_it_receives(task, part, engine):
    algorithm = pf.FedBABU(finetune_epochs=3, finetune=part)
    run = simulate(task, algorithm, execution=pf.Execution(engine=engine), record=True)
    received = run.transcript[1].broadcast["parameters"]
    for client in range(len(SHARES)):
        own = run.client_state[client]["personal"]
        torch.testing.assert_close(own, tuned_by_hand(task, received, client, part, 3), rtol=0, atol=1e-12)
        resting = ~task.context(1, 0).head if part == "head" else task.context(1, 0).head
        if part != "full":
            assert torch.equal(own[resting], received[resting])


def test_personal_metrics_are_those_of_the_fine_tuned_models(task):
    held = deep_task((30, 30, 30)).with_local_tests()
    run = simulate(held, pf.FedBABU(finetune_epochs=10))
    accuracies = []
    for client in range(3):
        network, rows = deep(0), held.local_tests[client]
        nn.utils.vector_to_parameters(run.client_state[client]["personal"], network.parameters())
        accuracies.append(float((network(held.inputs[rows]).argmax(1) == held.targets[rows]).double().mean()))
    last = run.metrics[-1]
    assert last["personal_accuracy_of_clients"] == pytest.approx(np.mean(accuracies))
    assert last["personal_accuracy_of_clients"] > last["local_accuracy_of_clients"] + 0.1  # not the server's model
    assert not any(name.startswith("personal") for name in simulate(held, pf.FedBABU(finetune_epochs=0)).metrics[-1])


@pytest.mark.parametrize("privacy", [None, PRIVATE], ids=["plain", "DP-SGD"])
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_fine_tuning_changes_no_bit_of_any_message_and_no_claim(task, privacy, engine, common_noise):
    runs = [
        simulate(task, algorithm, privacy=privacy, execution=pf.Execution(engine=engine), record=True, evaluate_every=2)
        for algorithm in (
            pf.FedBABU(finetune_epochs=0),
            pf.FedBABU(),
            pf.FedBABU(finetune_epochs=2, finetune="head"),
        )
    ]
    assert [len(run.client_state) for run in runs] == [0, 3, 3]
    for run in runs[1:]:
        for mine, other in zip(run.transcript, runs[0].transcript, strict=True):
            assert torch.equal(mine.released, other.released)
            for client, sent in other.uploads.items():
                assert torch.equal(mine.uploads[client]["update"], sent["update"])
        assert run.statement.to_json() == runs[0].statement.to_json()


@dataclass(frozen=True)
class TunedOnOtherData(pf.FedBABU):
    """Personalises on other data than the client has: behind the door, labels are shifted."""

    def personalise(self, local, received, batch, client, training):
        super().personalise(local, received, batch, Shifted(client), training)


class Shifted:
    """A door behind which all labels are other ones."""

    def __init__(self, door):
        self.door = door
        self.loss = lambda network, inputs, targets: door.loss(network, inputs, (targets + 3) % 10)

    def local_only_gradient(self, *arguments):
        return self.door.local_only_gradient(*arguments)


def test_other_data_behind_the_personal_model_leave_every_upload_bit_identical(task):
    runs = [
        simulate(task, kind("uniform", finetune_epochs=4), rounds=3, record=True)
        for kind in (pf.FedBABU, TunedOnOtherData)
    ]
    for mine, other in zip(runs[0].transcript, runs[1].transcript, strict=True):
        assert torch.equal(mine.released, other.released)
        assert all(torch.equal(mine.uploads[client]["update"], other.uploads[client]["update"]) for client in range(3))
    for client in range(3):
        assert not torch.equal(runs[0].client_state[client]["personal"], runs[1].client_state[client]["personal"])


def test_clients_of_other_sampling_rates_fine_tune_alike_one_by_one_and_stacked(task):
    privacy = replace(PRIVATE, training=pf.DPSGD(noise_multiplier=1.0, sample_rate=(0.5, 0.1, 0.3)))
    runs = [
        simulate(
            task, pf.FedBABU("uniform"), privacy=privacy, execution=pf.Execution(engine=engine, workers=1), rounds=1
        )
        for engine in ("loop", "vectorised")
    ]
    for client in range(3):
        one, stacked = (run.client_state[client]["personal"] for run in runs)
        torch.testing.assert_close(one, stacked, rtol=0, atol=1e-12)
