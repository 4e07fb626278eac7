"""What FedPer, FedRep, LG-FedAvg and FedBABU share: which parameters are sent, which stay, and what may be claimed.

The twin of all four trains torch modules by name, with torch.optim.SGD and explicit sums, on the engine's batches.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms.personal.partial_sharing import PartialUpload, descend_part
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import cross_entropy
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task, layered_task

SIZES = (7, 20, 13)
SHARES = np.array(SIZES) / 40
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)
HEAD = ("head.",)
TOP_TWO = ("head.", "body.2.")
EVERYTHING = ("head.", "body.")


def deep(seed):
    """Layers of 64·8 + 8 = 520, 8·6 + 6 = 54 and 6·10 + 10 = 70 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        return Network(body, nn.Linear(6, 10)).double()


def deep_task(sizes=SIZES):
    return replace(digits_task(sizes), model=deep)


@pytest.fixture(scope="module")
def task():
    return deep_task()


def simulate(task, algorithm, **settings):
    return pf.simulate(
        task, algorithm, **{"rounds": 2, "training": TRAINING, "execution": pf.Execution(workers=1), **settings}
    )


def bound(task, algorithm):
    return algorithm.bind(task.context(2, 0))


def descend_by_hand(task, network, parameters, client, training, order, epochs):
    """``epochs`` of torch.optim.SGD on ``parameters`` alone, with momentum that starts at 0."""
    if not parameters:
        return
    optimizer = torch.optim.SGD(
        parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    rows = task.clients[client]
    for _ in range(epochs):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(training.batch_size):
            loss = cross_entropy(network, task.inputs[batch], task.targets[batch]).mean()
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimizer.step()


def by_hand(task, private, phases, *, weights=SHARES, rounds=2, training=TRAINING):
    """The shared parameters and every client's private ones, by name, after ``rounds`` rounds of everybody.

    ``private`` holds the prefixes of what stays with clients; a round is ``phases`` of (prefixes trained, epochs).
    """
    begin = dict(deep(0).named_parameters())
    shared = {name: value.detach() for name, value in begin.items() if not name.startswith(private)}
    own = [{name: value.detach() for name, value in begin.items() if name not in shared} for _ in weights]
    for number in range(rounds):
        sent = []
        for client in range(len(weights)):
            network = deep(0)
            named = dict(network.named_parameters())
            with torch.no_grad():
                for name, value in {**shared, **own[client]}.items():
                    named[name].copy_(value)
            order = torch_stream(0, "batches", number, client)
            for trained, epochs in phases:
                chosen = [parameter for name, parameter in named.items() if name.startswith(trained)]
                descend_by_hand(task, network, chosen, client, training, order, epochs)
            own[client] = {name: named[name].detach() for name in own[client]}
            sent.append({name: named[name].detach() for name in shared})
        shared = {name: sum(weight * one[name] for weight, one in zip(weights, sent, strict=True)) for name in shared}
    return shared, own


def assert_as_by_hand(task, run, expected):
    """The server's shared and the clients' private parameters are the twin's; the server's private ones never moved."""
    shared, own = expected
    layout = bound(task, pf.FedAvg()).context.layout
    begin, server = (layout.named_views(flat) for flat in (flatten(task.model(0)), run.parameters))
    for name in layout.names:
        if name in shared:
            torch.testing.assert_close(server[name], shared[name], rtol=0, atol=1e-12)
        else:
            assert torch.equal(server[name], begin[name])
    for client, private in enumerate(own):
        if private:
            client_state = layout.named_views(run.client_state[client]["parameters"])
            for name, value in private.items():
                torch.testing.assert_close(client_state[name], value, rtol=0, atol=1e-12)


PARTS = {
    "fedper": (pf.FedPer(), 574),
    "fedper, two layers": (pf.FedPer(personal_layers=2), 520),
    "fedrep": (pf.FedRep(head_epochs=2), 574),
    "lg-fedavg": (pf.LGFedAvg(), 70),
    "lg-fedavg, two layers": (pf.LGFedAvg(shared_layers=2), 124),
    "fedbabu": (pf.FedBABU(finetune_epochs=0), 574),
    "fedbabu, fine-tuned": (pf.FedBABU(finetune_epochs=2), 574),
}
ONE_OF_EACH = [pf.FedPer("uniform"), pf.FedRep("uniform", head_epochs=1), pf.LGFedAvg("uniform"), pf.FedBABU("uniform")]
KEEPING = ONE_OF_EACH[:3]


def named(algorithms):
    return [algorithm.name for algorithm in algorithms]


@pytest.mark.parametrize("name", PARTS)
def test_an_upload_holds_the_shared_parameters_and_not_one_number_more(task, name):
    algorithm, shared = PARTS[name]
    run = simulate(task, algorithm, record=True)
    for seen in run.transcript:
        assert {client: {key: value.shape for key, value in sent.items()} for client, sent in seen.uploads.items()} == {
            client: {"update": (shared,)} for client in range(3)
        }
        assert {key: value.shape for key, value in seen.total.items()} == {"update": (shared,)}


@pytest.mark.parametrize("name", PARTS)
def test_private_parameters_stand_still_at_the_server_whatever_noise_is_added(task, name):
    algorithm, shared = PARTS[name]
    noise = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(1.0)])
    begin, part = flatten(deep(0)), bound(task, algorithm).shared
    assert int(part.sum()) == shared
    for privacy in (None, noise):
        run = simulate(task, replace(algorithm, weighting="uniform"), privacy=privacy, record=True)
        for flat in (run.parameters, *(seen.broadcast["parameters"] for seen in run.transcript)):
            assert torch.equal(flat[~part], begin[~part])
        assert bool((run.parameters[part] != begin[part]).all())


@pytest.mark.parametrize("algorithm", KEEPING, ids=named(KEEPING))
def test_private_parameters_differ_from_client_to_client_unless_their_data_are_the_same(task, algorithm):
    twice = [task.clients[0], task.clients[0], task.clients[1]]
    training = replace(TRAINING, batch_size=100)  # whole batches: their order is the only other difference
    alike = replace(task, clients=ClientIndex.of([rows.numpy() for rows in twice]))
    private = ~bound(alike, algorithm).shared
    run = simulate(alike, algorithm, training=training)
    own = [run.client_state[client]["parameters"][private] for client in range(3)]
    torch.testing.assert_close(own[0], own[1], rtol=0, atol=1e-12)
    assert float((own[0] - own[2]).abs().max()) > 1e-3


@pytest.mark.parametrize("algorithm", KEEPING, ids=named(KEEPING))
def test_whoever_is_not_asked_keeps_its_private_part_as_it_was(task, algorithm):
    states = []
    cohort = pf.FixedCohort(1)
    run = simulate(
        task, algorithm, rounds=6, cohort=cohort, callbacks=[lambda one, _: states.append(dict(one.client_state))]
    )
    private, trained = ~bound(task, algorithm).shared, []
    for before, after in zip([{}, *states], states, strict=False):
        changed = [client for client in after if client not in before or after[client] is not before[client]]
        assert len(changed) == 1
        trained += changed
    assert len(run.client_state) == len(set(trained)) < 6  # somebody came back
    again = next(number for number in range(1, 6) if trained[number] in trained[:number])
    old, new = (states[number][trained[again]]["parameters"] for number in (again - 1, again))
    assert 0 < float((new - old)[private].abs().max()) < float((new - flatten(deep(0)))[private].abs().max())


def test_permuting_clients_changes_nothing_but_rounding(task):
    training = replace(TRAINING, batch_size=100)
    permuted = replace(task, clients=ClientIndex.of([task.clients[client].numpy() for client in (2, 0, 1)]))
    for algorithm in (pf.FedPer(), pf.FedRep(head_epochs=1), pf.LGFedAvg(), pf.FedBABU(finetune_epochs=0)):
        runs = [simulate(one, algorithm, training=training) for one in (task, permuted)]
        torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)
        for client, other in ((2, 0), (0, 1), (1, 2)) if algorithm.keeps else ():
            client_state = runs[0].client_state[client]["parameters"], runs[1].client_state[other]["parameters"]
            torch.testing.assert_close(*client_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", KEEPING, ids=named(KEEPING))
def test_the_global_test_is_the_mean_soft_max_of_the_clients_own_models(task, algorithm):
    run = simulate(task, algorithm)
    outputs = []
    for client in range(3):
        network = deep(0)
        own = torch.where(bound(task, algorithm).shared, run.parameters, run.client_state[client]["parameters"])
        nn.utils.vector_to_parameters(own, network.parameters())
        outputs.append(network(task.test_inputs).softmax(1))
    mean = torch.stack(outputs).mean(0).detach()
    truth = task.test_targets
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(float((mean.argmax(1) == truth).double().mean()))
    assert run.metrics[-1]["test_loss"] == pytest.approx(float(nn.functional.nll_loss(mean.log(), truth)), rel=1e-5)


@pytest.mark.parametrize("algorithm", KEEPING, ids=named(KEEPING))
def test_a_clients_own_model_is_the_servers_shared_part_with_its_own_private_part(task, algorithm):
    held = deep_task((30, 30, 30)).with_local_tests()
    run = simulate(held, algorithm)
    part = bound(held, algorithm).shared
    accuracies = []
    for client in range(3):
        network, rows = deep(0), held.local_tests[client]
        own = torch.where(part, run.parameters, run.client_state[client]["parameters"])
        assert torch.equal(bound(held, algorithm).personal(run.server, run.client_state[client])["personal"], own)
        nn.utils.vector_to_parameters(own, network.parameters())
        accuracies.append(float((network(held.inputs[rows]).argmax(1) == held.targets[rows]).double().mean()))
    assert run.metrics[-1]["personal_accuracy_of_clients"] == pytest.approx(np.mean(accuracies))
    newcomer = bound(held, algorithm).personal(run.server, {})["personal"]
    assert torch.equal(newcomer, run.parameters)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_a_step_on_a_part_is_torch_sgd_on_it_and_leaves_the_rest_alone(momentum):
    draws = torch.Generator().manual_seed(0)
    begin, *gradients = torch.randn(4, 9, generator=draws, dtype=torch.float64)
    trained = torch.arange(9) % 3 > 0
    training = pf.LocalTraining(learning_rate=0.1, momentum=momentum, weight_decay=0.2)
    local = {"parameters": begin.clone(), "momentum": torch.zeros_like(begin)}
    leaf = begin[trained].clone().requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=0.1, momentum=momentum, weight_decay=0.2)
    for gradient in gradients:
        leaf.grad = gradient[trained].clone()
        optimizer.step()
        given = gradient.clone()
        given[~trained] = math.nan
        descend_part(local, given, trained, training)
    torch.testing.assert_close(local["parameters"][trained], leaf.detach(), rtol=0, atol=1e-14)
    assert torch.equal(local["parameters"][~trained], begin[~trained])
    assert not bool(local["momentum"][~trained].any())


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (lambda: pf.FedPer(personal_layers=0), "fedper's personal_layers is 0"),
        (lambda: pf.FedRep(personal_layers=1.5), "fedrep's personal_layers is 1.5"),
        (lambda: pf.FedRep(head_epochs=-1), "fedrep's head_epochs is -1"),
        (lambda: pf.LGFedAvg(shared_layers=True), "lg-fedavg's shared_layers is True"),
        (lambda: pf.FedBABU(finetune_epochs=-2), "fedbabu's finetune_epochs is -2"),
        (lambda: pf.FedBABU(finetune="heads"), "fedbabu's finetune is 'heads'; did you mean 'head'"),
        (lambda: pf.FedPer(weighting="sise"), "fedper's weighting is 'sise'"),
        (lambda: bound(deep_task(), pf.FedPer(personal_layers=3)), "of the model's 3 layers at least one must be left"),
        (lambda: bound(deep_task(), pf.LGFedAvg(shared_layers=7)), "lg-fedavg's shared_layers is 7"),
        (lambda: bound(digits_task(SIZES), pf.FedBABU()), "not divided into a body and a head"),
    ],
)
def test_impossible_settings_are_one_sentence(algorithm, message):
    with pytest.raises(ConfigError, match=message) as caught:
        algorithm()
    assert str(caught.value).count(". ") == 0 or str(caught.value).endswith("full, head.")


@dataclass(frozen=True)
class Masked(pf.FedPer):
    """FedPer with any part shared."""

    shares: object = field(default=None)

    def part(self):
        return self.shares


def test_a_part_may_be_scattered_over_the_vector(task):
    shares = torch.from_numpy(np.random.default_rng(0).random(644) < 0.4)
    run = simulate(task, Masked(shares=shares))
    begin = flatten(deep(0))
    assert torch.equal(run.parameters[~shares], begin[~shares])
    models = torch.stack([run.client_state[client]["parameters"] for client in range(3)])
    mean = torch.from_numpy(SHARES) @ models
    torch.testing.assert_close(run.parameters[shares], mean[shares], rtol=0, atol=1e-12)


def test_an_algorithm_knows_its_part_anew_in_every_run(task):
    algorithm = bound(task, pf.FedPer())
    assert len(algorithm.places) == 574
    smaller = replace(task, model=lambda seed: Network(nn.Linear(64, 3), nn.Linear(3, 10)).double())
    assert len(algorithm.bind(smaller.context(2, 0)).places) == 195
    assert isinstance(algorithm, PartialUpload)


def test_parts_of_their_own_pay_where_clients_name_their_classes_differently():
    """Client 1 calls every digit by another name, which one model for both cannot learn and a head for each can."""
    task = layered_task((200, 200))
    renamed = task.targets.clone()
    renamed[task.clients[1]] = (renamed[task.clients[1]] + 5) % 10
    task = replace(task, targets=renamed).with_local_tests()
    training = replace(TRAINING, learning_rate=0.2, batch_size=20, epochs=3, momentum=0.0, weight_decay=0.0)
    settings = {"rounds": 5, "training": training, "evaluate_every": 5}
    accuracies = {
        algorithm.name: simulate(task, algorithm, **settings).metrics[-1]["personal_accuracy_of_clients"]
        for algorithm in (pf.FedPer(), pf.FedRep(head_epochs=3), pf.LGFedAvg())
    }
    assert min(accuracies.values()) > 0.8
    assert simulate(task, pf.FedAvg(), **settings).metrics[-1]["local_accuracy_of_clients"] < 0.6
