"""Centralized, Local, FedAvg and FedProx: parts A, B and H of the baselines' specification."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms import ALGORITHMS, FedAvg, FedProx
from privfl.errors import ConfigError, DataError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task, cross_entropy
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task, full_gradient, initial, layered_task, task_of, uploads

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)


def trained_alone(task, client, training, start, *, mu=0.0, round=0, seed=0):
    """One client's training by torch.optim.SGD on the same shuffled batches: a twin that shares no code."""
    network = task.model(0)
    nn.utils.vector_to_parameters(start.clone(), network.parameters())
    optimizer = torch.optim.SGD(
        network.parameters(), lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    rows, order = task.clients[client], torch_stream(seed, "batches", round, client)
    for _ in range(training.epochs):
        shuffled = rows[torch.randperm(len(rows), generator=order)]
        for batch in shuffled.split(training.batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(network, task.inputs[batch], task.targets[batch]).mean()
            current = nn.utils.parameters_to_vector(network.parameters())
            (loss + mu / 2 * (current - start).square().sum()).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_a_client_trains_exactly_as_torch_sgd_does_with_a_squared_proximal_term(mu):
    task = digits_task(SIZES)
    start = initial(task) + 0.01
    results = uploads(task, FedProx(mu=mu), {"parameters": start}, training=TRAINING)
    for client, result in enumerate(results):
        expected = trained_alone(task, client, TRAINING, start, mu=mu) - start
        torch.testing.assert_close(result.upload["update"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("weighting", "weights"), [("size", np.array(SIZES) / 40), ("uniform", np.full(3, 1 / 3))])
def test_full_participation_is_the_exact_weighted_mean(weighting, weights):
    task = digits_task(SIZES)
    run = pf.simulate(task, FedAvg(weighting=weighting), rounds=1, training=TRAINING)
    alone = torch.stack([trained_alone(task, client, TRAINING, initial(task)) for client in range(3)])
    torch.testing.assert_close(run.parameters, torch.tensor(weights) @ alone, rtol=0, atol=1e-12)


def test_with_full_participation_scheme_2_is_the_size_weighted_mean():
    task = digits_task(SIZES)
    runs = [pf.simulate(task, FedAvg(weighting=w), rounds=2, training=TRAINING) for w in ("scheme-2", "size")]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def mean_over_cohorts(task, algorithm, cohort, draws):
    """Mean and standard error of one round's movement over many cohorts (here the seed sets the cohort alone)."""
    training = pf.LocalTraining(learning_rate=1.0, batch_size=10**6)
    moved = torch.stack(
        [
            pf.simulate(
                task,
                algorithm,
                rounds=1,
                training=training,
                cohort=cohort,
                seed=seed,
                execution=pf.Execution(workers=1, engine="loop"),
                evaluate_every=10,
            ).parameters
            for seed in range(draws)
        ]
    )
    return moved.mean(0), moved.std(0) / math.sqrt(draws)


@pytest.mark.parametrize(
    ("algorithm", "cohort"),
    [(FedAvg(weighting="uniform"), pf.SizeWeightedCohort(2)), (FedAvg(weighting="scheme-2"), pf.FixedCohort(2))],
    ids=["scheme I", "scheme II"],
)
def test_schemes_1_and_2_are_unbiased_for_the_size_weighted_mean(algorithm, cohort):
    task = digits_task(SIZES)
    mean, error = mean_over_cohorts(task, algorithm, cohort, 150)
    target = initial(task) - full_gradient(task, initial(task)) / 40  # one full-batch step at learning rate 1
    assert float(((mean - target).abs() / (error + 1e-12)).max()) < 5.9  # 5 s.e. corrected for 650 coordinates


def test_identical_clients_are_fixed_under_averaging():
    base = digits_task([10])
    task = task_of(base.inputs.repeat(3, 1), base.targets.repeat(3), (10, 10, 10))
    training = pf.LocalTraining(learning_rate=0.3, batch_size=10, epochs=3)
    run = pf.simulate(task, FedAvg(), rounds=1, training=training)
    one = trained_alone(task, 0, training, initial(task))
    torch.testing.assert_close(run.parameters, one, rtol=0, atol=1e-12)


def test_fedsgd_equals_a_centralised_gradient_step():
    task = digits_task(SIZES)
    training = pf.LocalTraining(learning_rate=0.4, batch_size=10**6)
    federated = pf.simulate(task, FedAvg(weighting="size"), rounds=3, training=training)
    pooled = pf.simulate(task, pf.Centralized(), rounds=3, training=training)
    parameters = initial(task)
    for _ in range(3):
        parameters = parameters - 0.4 * full_gradient(task, parameters) / 40
    torch.testing.assert_close(federated.parameters, parameters, rtol=0, atol=1e-12)
    torch.testing.assert_close(pooled.parameters, parameters, rtol=0, atol=1e-12)


def test_fedavg_with_one_client_is_centralised_training():
    task = digits_task([40])
    runs = [pf.simulate(task, algorithm, rounds=2, training=TRAINING) for algorithm in (FedAvg(), pf.Centralized())]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_fedprox_without_its_term_is_fedavg_bit_for_bit():
    task = digits_task(SIZES)
    runs = [pf.simulate(task, algorithm, rounds=2, training=TRAINING) for algorithm in (FedProx(mu=0.0), FedAvg())]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_fedprox_with_a_huge_term_stays_where_it_was():
    task = digits_task(SIZES)
    training = pf.LocalTraining(learning_rate=1e-8, batch_size=5, epochs=5)
    (result, *_) = uploads(task, FedProx(mu=1e8), {"parameters": initial(task)}, training=training)
    assert float(result.upload["update"].abs().max()) < 1e-7


def quadratic_task(seed=0, clients=4, dimension=3):
    """Clients F_k(w) = ½(w − a_k)ᵀA_k(w − a_k): one sample each, whose input carries A_k and a_k."""
    draws = np.random.default_rng(seed)
    roots = draws.normal(size=(clients, dimension, dimension))
    curvatures = np.einsum("kij,klj->kil", roots, roots) / dimension + np.eye(dimension)
    optima = draws.normal(size=(clients, dimension))

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))

        def forward(self, inputs):
            return self.w.expand(len(inputs), -1)

    def loss(network, inputs, targets):
        gap = network(inputs) - inputs[:, :dimension]
        matrix = inputs[:, dimension:].view(-1, dimension, dimension)
        return 0.5 * torch.einsum("bi,bij,bj->b", gap, matrix, gap)

    inputs = torch.from_numpy(np.concatenate([optima, curvatures.reshape(clients, -1)], axis=1))
    targets = torch.arange(clients) % 2
    index = ClientIndex.of([np.array([client]) for client in range(clients)])
    task = Task("quadratic", inputs, targets, index, inputs, targets, 3, lambda seed: Point(), "point", loss)
    optimum = np.linalg.solve(curvatures.sum(0), np.einsum("kij,kj->i", curvatures, optima))
    return task, torch.from_numpy(optimum)


def test_on_quadratics_one_local_step_finds_the_optimum_and_many_do_not():
    task, optimum = quadratic_task()
    settings = {"evaluate_every": 200, "execution": pf.Execution(engine="loop", workers=1)}
    one = pf.simulate(task, FedAvg(), rounds=200, training=pf.LocalTraining(learning_rate=0.2), **settings)
    many = pf.simulate(task, FedAvg(), rounds=60, training=pf.LocalTraining(learning_rate=0.1, epochs=10), **settings)
    assert float((one.parameters - optimum).norm()) < 1e-9
    assert float((many.parameters - optimum).norm()) > 1e-2


def test_local_sends_nothing_keeps_its_models_and_claims_zero():
    task = digits_task((30, 30, 30), dtype=torch.float32)
    training = pf.LocalTraining(learning_rate=0.3, batch_size=10)
    run = pf.simulate(task, pf.Local(), rounds=4, training=training)
    assert all(cell.epsilon == 0 and cell.releases == () for cell in run.statement.cells)
    assert torch.equal(run.parameters, initial(task))
    accuracies = [line["test_accuracy"] for line in run.metrics]
    assert accuracies[-1] > 0.5
    assert accuracies != [accuracies[0]] * 4  # the second round goes on from where the first ended


def test_permuting_clients_changes_nothing_but_rounding():
    task = digits_task(SIZES)
    parts = [task.clients[client].numpy() for client in (2, 0, 1)]
    permuted = replace(task, clients=ClientIndex.of(parts))
    training = pf.LocalTraining(learning_rate=0.2, batch_size=10**6, epochs=2)
    runs = [pf.simulate(one, FedAvg(), rounds=2, training=training) for one in (task, permuted)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_a_client_without_samples_is_refused():
    with pytest.raises(DataError, match="client 1 holds no sample"):
        ClientIndex.of([np.arange(3), np.arange(0)])


UPLOADS = {
    "centralized": ["update"],
    "local": [],
    "fedavg": ["update"],
    "fedprox": ["update"],
    "fedsampling": ["update"],
    "fedsampling-naive": ["update", "answered"],
}


@pytest.mark.parametrize("name", sorted(UPLOADS))
def test_an_upload_holds_what_the_table_says_and_nothing_else(name):
    task = digits_task(SIZES)
    algorithm = ALGORITHMS[name]()
    server = algorithm.start(initial(task))
    for result in uploads(task, algorithm, algorithm.broadcast(server)):
        sizes = {field: value.numel() for field, value in result.upload.items()}
        assert sizes == {field: 1 if field == "answered" else 650 for field in UPLOADS[name]}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_upload_holds_what_the_algorithm_declares_and_nothing_else(name):
    task = layered_task(SIZES)
    algorithm = ALGORITHMS[name]().bind(task.context(2, 0))
    server = algorithm.begin_round(algorithm.start(initial(task)), 0)
    size = len(initial(task))
    declared = {field.name: (size,) if field.shape is None else field.shape for field in algorithm.fields()}
    for result in uploads(task, algorithm, algorithm.broadcast(server)):
        assert result.dropped == ""
        assert {name: tuple(value.shape) for name, value in result.upload.items()} == declared


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_results_do_not_depend_on_the_number_of_workers(name):
    task = layered_task(SIZES, dtype=torch.float32)
    runs = [
        pf.simulate(task, ALGORITHMS[name](), rounds=2, training=TRAINING, execution=pf.Execution(workers=n))
        for n in (1, 3)
    ]
    assert runs[0].metrics == runs[1].metrics
    assert torch.equal(runs[0].parameters, runs[1].parameters)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "sise"}, "weighting is 'sise'"),
        ({"server_learning_rate": 0.0}, "server_learning_rate is 0.0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedAvg(**settings)
