"""What a metrics line says of clients and of their own models, against counting by hand."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

import privfl as pf
from privfl.metrics.fairness import gini
from privfl.simulation.evaluation import evaluate, storable


@pytest.fixture(scope="module")
def task():
    tests = pf.LocalTests(fraction=0.3, validation=0.3)
    return pf.load("digits", partition=pf.Dirichlet(clients=12, alpha=0.2), local_tests=tests)


def predictions(task, flat, index, client):
    network = task.model(0).eval()
    nn.utils.vector_to_parameters(flat.clone(), network.parameters())
    with torch.no_grad():
        return network(task.inputs[index[client]]).argmax(1).numpy()


def hits(task, flat, index, client):
    return float((predictions(task, flat, index, client) == task.targets[index[client]].numpy()).mean())


def test_local_metrics_are_those_of_the_servers_model_on_every_clients_own_rows(task):
    run = pf.simulate(task, pf.FedAvg(), rounds=2)
    line = run.metrics[-1]
    own = np.array([hits(task, run.parameters, task.local_tests, client) for client in range(12)])
    assert line["local_accuracy_of_clients"] == pytest.approx(own.mean())
    assert line["local_accuracy"] == pytest.approx(np.average(own, weights=task.local_tests.sizes))
    assert line["local_worst_tenth"] == pytest.approx(own.min())
    assert line["local_parity_gap"] == pytest.approx(own.max() - own.min())
    assert line["local_gini"] == pytest.approx(gini(own))
    scores = [
        f1_score(
            task.targets[task.local_tests[client]],
            predictions(task, run.parameters, task.local_tests, client),
            average="macro",
            zero_division=0,
        )
        for client in range(12)
    ]
    assert line["local_macro_f1"] == pytest.approx(np.mean(scores))
    assert not any(name.startswith("personal") for name in line)


def test_personal_metrics_are_those_of_each_clients_own_model(task):
    run = pf.simulate(task, pf.Local(), rounds=1)
    own = [hits(task, run.client_state[client]["parameters"], task.local_tests, client) for client in range(12)]
    assert run.metrics[-1]["personal_accuracy_of_clients"] == pytest.approx(np.mean(own))
    assert run.metrics[-1]["personal_accuracy_deviation"] == pytest.approx(np.std(own))


@dataclass(frozen=True)
class Two(pf.Local):
    """Clients own two models: nothing learned, and what they trained."""

    name: ClassVar[str] = "two"

    def personal(self, server, client_state):
        return {"zero": torch.zeros_like(server["parameters"]), "trained": client_state["parameters"]}


def test_among_several_models_validation_rows_choose_and_test_rows_bound(task):
    run = pf.simulate(task, Two(), rounds=1)
    line = run.metrics[-1]
    chosen, best = [], []
    for client in range(12):
        models = Two().personal(run.server, run.client_state[client])
        scores = {name: hits(task, model, task.local_validations, client) for name, model in models.items()}
        tested = {name: hits(task, model, task.local_tests, client) for name, model in models.items()}
        chosen.append(tested[max(scores, key=scores.get)])
        best.append(max(tested.values()))
    assert line["personal_accuracy_validated"] == pytest.approx(np.mean(chosen))
    assert line["personal_accuracy_best_on_test"] == pytest.approx(np.mean(best))
    assert line["personal_accuracy_best_on_test"] >= line["personal_accuracy_validated"]
    assert line["personal_accuracy[zero]"] == pytest.approx(line["personal_accuracy_of_clients"])


def test_a_client_that_never_trained_is_judged_by_what_it_starts_with(task):
    run = pf.simulate(task, pf.Local(), rounds=1, cohort=pf.FixedCohort(size=3))
    assert len(run.client_state) == 3
    assert "personal_accuracy" in run.metrics[-1]


def test_confidence_and_order_are_measured_too_and_a_diverged_model_has_none():
    digits = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    run = pf.simulate(digits, pf.FedAvg(), rounds=1)
    network = digits.model(0).eval()
    nn.utils.vector_to_parameters(run.parameters.clone(), network.parameters())
    with torch.no_grad():
        logits = network(digits.test_inputs)
    line = run.metrics[-1]
    best = logits.topk(5).indices.eq(digits.test_targets[:, None]).any(1).double().mean()
    assert line["test_top5"] == pytest.approx(float(best))
    assert 0 <= line["test_ece"] <= line["test_mce"] <= 1
    assert "test_auroc" not in line
    lost = storable(evaluate(digits, pf.FedAvg(), Diverged(), {"parameters": run.parameters}, {}))
    assert [lost[name] for name in ("test_ece", "test_mce", "test_top5")] == [None] * 3
    assert lost["test_accuracy"] is not None


class Diverged:
    """A predictor whose logits are not finite."""

    def logits(self, parameters, inputs):
        return torch.full((len(inputs), 10), torch.nan)


def test_two_classes_have_an_area_under_the_curve():
    x = np.random.default_rng(0).normal(size=(200, 3))
    task = pf.Task.from_arrays(x, (x[:, 0] > 0).astype(int), partition=pf.IID(clients=4))
    line = pf.simulate(task, pf.FedAvg(), rounds=5).metrics[-1]
    assert line["test_auroc"] > 0.9
    assert "test_top5" not in line


class Writing(pf.FedAvg):
    """Mixes the client's own weights into the server's state, for want of a copy."""

    name: ClassVar[str] = "writing"
    ensemble: ClassVar[bool] = False

    def personal(self, server, client_state):
        client_state["own"].mul_(3.0)
        return {"mixed": server["parameters"].mul_(0.5).add_(client_state["own"], alpha=0.5)}


class WritingEnsemble(Writing):
    """The same of a model that is tested together with others."""

    name: ClassVar[str] = "writing-ensemble"
    ensemble: ClassVar[bool] = True


@pytest.mark.parametrize("kind", [Writing, WritingEnsemble])
def test_what_an_algorithm_writes_when_it_is_tested_changes_neither_server_nor_clients(kind, task):
    size = sum(parameter.numel() for parameter in task.model(0).parameters())
    server, states = {"parameters": torch.ones(size)}, {client: {"own": torch.ones(size)} for client in range(12)}

    class Predictor:
        def logits(self, parameters, inputs):
            return torch.zeros(len(inputs), 10) + parameters.mean()

    evaluate(task, kind(), Predictor(), server, states)
    assert bool((server["parameters"] == 1).all())
    assert all(bool((state["own"] == 1).all()) for state in states.values())
