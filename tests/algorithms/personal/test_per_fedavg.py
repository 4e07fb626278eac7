"""per-FedAvg: meta-gradients from batches of their own, and a client's model one step from the received one."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

import privfl as pf
from privfl.errors import ConfigError
from privfl.models import Network
from privfl.privacy.door.batch_plans import Epochs, Poisson
from tests.algorithms.contracts import SIZES as LAYERED_SIZES
from tests.algorithms.contracts import both
from tests.algorithms.federation import digits_task, initial, layered_task, task_of, uploads
from tests.algorithms.personal.personal_twins import drawn, quadratics, slope

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2)
ALL = 10**6
FORMS = ("first-order", "hessian-free")


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def hessian_product(task, point, rows, direction):
    """H·direction by double backward."""

    def loss(flat):
        logits = functional_call(
            task.model(0), {"weight": flat[:640].view(10, 64), "bias": flat[640:]}, task.inputs[rows]
        )
        return nn.functional.cross_entropy(logits, task.targets[rows])

    _, product = torch.autograd.functional.hvp(loss, point, direction)
    return product


def twin(task, client, number, server, form, alpha, *, size=5, passes=2, momentum=0.0, wd=0.0, rate=0.2):
    """One client's round, batch by batch, with the exact Hessian."""
    batches = list(drawn(task, client, size, passes * (2 if form == "first-order" else 3), round=number))
    v, velocity = server, torch.zeros_like(server)
    while batches:
        adapted = v - alpha * slope(task, v, batches.pop(0))
        outer = slope(task, adapted, batches.pop(0))
        if form == "hessian-free":
            outer = outer - alpha * hessian_product(task, v, batches.pop(0), outer)
        velocity = momentum * velocity + outer + wd * v
        v = v - rate * velocity
    return v


@pytest.mark.parametrize(("form", "tolerance"), [("first-order", 1e-12), ("hessian-free", 1e-6)])
def test_two_rounds_follow_the_meta_gradient(task, form, tolerance):
    """The central difference errs by order δ²: 8e-6 was seen at δ = 1e-4, so a hundredth of that at δ = 1e-5."""
    algorithm = pf.PerFedAvg("uniform", form=form, inner_learning_rate=0.5, difference=1e-5)
    run = pf.simulate(task, algorithm, rounds=2, training=replace(TRAINING, learning_rate_decay=0.5))
    server = initial(task)
    for number in range(2):
        received, rate = server, 0.2 / (number + 1)  # β decays, α does not
        server = sum(twin(task, client, number, received, form, 0.5, rate=rate) for client in range(3)) / 3
    torch.testing.assert_close(run.parameters, server, rtol=0, atol=tolerance)
    plain = sum(twin(task, client, 1, received, "first-order", 0.0, rate=rate) for client in range(3)) / 3
    assert float((server - plain).abs().max()) > 1e-3
    for client, client_state in run.client_state.items():
        expected = received - 0.5 * slope(task, received, task.clients[client])
        torch.testing.assert_close(client_state["personal"], expected, rtol=0, atol=10 * tolerance)


def test_the_hessian_free_form_is_not_the_first_order_one(task):
    forms = [twin(task, 1, 0, initial(task), form, 0.5, size=ALL) for form in FORMS]
    assert float((forms[0] - forms[1]).abs().max()) > 1e-3


def test_momentum_and_weight_decay_act_on_the_meta_gradient(task):
    training = replace(TRAINING, momentum=0.5, weight_decay=0.1)
    start = initial(task) + 0.1
    algorithm = pf.PerFedAvg(inner_learning_rate=0.5)
    for result in uploads(task, algorithm, {"parameters": start}, training=training):
        expected = twin(task, result.client, 0, start, "first-order", 0.5, momentum=0.5, wd=0.1)
        torch.testing.assert_close(result.upload["update"], expected - start, rtol=0, atol=1e-12)


def test_on_quadratics_the_hessian_free_form_has_no_error_of_its_own():
    """∇F(w − α∇F(w)) is (I − αA)·A·(w̃ − a), and a central difference of a linear gradient is exact."""
    task, curvatures, optima, _ = quadratics()
    start, alpha, beta = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), 0.2, 0.1
    algorithm = pf.PerFedAvg(form="hessian-free", inner_learning_rate=alpha, difference=1.0)
    training = pf.LocalTraining(learning_rate=beta)
    for client, result in enumerate(uploads(task, algorithm, {"parameters": start}, training=training)):
        matrix, own = curvatures[client], optima[client]
        adapted = start - alpha * matrix @ (start - own)
        meta = (torch.eye(3, dtype=torch.float64) - alpha * matrix) @ matrix @ (adapted - own)
        torch.testing.assert_close(result.upload["update"], -beta * meta, rtol=0, atol=1e-12)
        torch.testing.assert_close(result.client_state["personal"], adapted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_on_quadratics_it_finds_where_the_adapted_models_are_best(form):
    """One local step a round with exact gradients is descent on Σ F_k(w − α∇F_k(w)), or its first-order stand-in."""
    task, curvatures, optima, _ = quadratics()
    alpha, eye = 0.1, torch.eye(3, dtype=torch.float64)
    shrink = eye - alpha * curvatures
    matrices = curvatures @ shrink if form == "first-order" else shrink @ curvatures @ shrink
    expected = torch.linalg.solve(matrices.sum(0), torch.einsum("kij,kj->i", matrices, optima))
    algorithm = pf.PerFedAvg(form=form, inner_learning_rate=alpha)
    training = pf.LocalTraining(learning_rate=0.4)
    run = pf.simulate(task, algorithm, rounds=50, training=training, evaluate_every=50)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_without_an_inner_step_it_is_fedavg(task, form):
    whole = pf.LocalTraining(learning_rate=0.2, batch_size=ALL, epochs=3, momentum=0.5, weight_decay=0.01)
    ours = pf.simulate(task, pf.PerFedAvg("uniform", form=form, inner_learning_rate=0.0), rounds=3, training=whole)
    theirs = pf.simulate(task, pf.FedAvg("uniform"), rounds=3, training=whole)
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=0, atol=1e-12)
    for client_state in ours.client_state.values():
        previous = pf.simulate(task, pf.FedAvg("uniform"), rounds=2, training=whole).parameters
        torch.testing.assert_close(client_state["personal"], previous, rtol=0, atol=1e-12)


def test_the_batches_of_a_local_step_are_its_own():
    """One client whose batches hold one row each: F at the first decides w̃, F at the second the step."""
    base = digits_task([4])
    task = task_of(base.inputs, base.targets, (4,))
    training = pf.LocalTraining(learning_rate=0.2, batch_size=1, steps=1)
    (result,) = uploads(task, pf.PerFedAvg(inner_learning_rate=0.5), {"parameters": initial(task)}, training=training)
    first, second, *_ = drawn(task, 0, 1, 1)
    assert int(first) != int(second)
    adapted = initial(task) - 0.5 * slope(task, initial(task), first)
    torch.testing.assert_close(result.upload["update"], -0.2 * slope(task, adapted, second), rtol=0, atol=1e-12)


def test_a_local_step_draws_as_many_batches_as_it_needs_of_the_usual_plan():
    for form, times in zip(FORMS, (2, 3), strict=True):
        algorithm = pf.PerFedAvg(form=form)
        assert algorithm.plan(Epochs(5, 4), {}) == Epochs(5, 4 * times)
        assert algorithm.plan(Epochs(5, 1, 7), {}).length(100) == 7 * times
        assert algorithm.plan(Poisson(0.1, 7, 20.0), {}) == Poisson(0.1, 7 * times, 20.0)


def test_several_steps_lead_to_the_own_model(task):
    training = replace(TRAINING, batch_size=ALL)
    run = pf.simulate(task, pf.PerFedAvg(inner_learning_rate=0.3, adaptation_steps=3), rounds=1, training=training)
    for client, client_state in run.client_state.items():
        own = initial(task)
        for _ in range(3):
            own = own - 0.3 * slope(task, own, task.clients[client])
        torch.testing.assert_close(client_state["personal"], own, rtol=0, atol=1e-12)
        (model,) = run.algorithm.personal(run.server, client_state).values()
        assert torch.equal(model, client_state["personal"])


def test_the_hessian_free_form_is_the_same_for_one_client_and_for_a_stack():
    found = both(layered_task(LAYERED_SIZES), pf.PerFedAvg(form="hessian-free", inner_learning_rate=0.3))
    assert all(float(result.upload["update"].abs().max()) > 0 for result in found.values())


def test_the_hessian_free_form_is_refused_where_its_two_gradients_would_not_belong_together(task):
    def dropping(seed):
        return Network(nn.Sequential(nn.Linear(64, 4), nn.Dropout(0.1)), nn.Linear(4, 10)).double()

    with pytest.raises(ConfigError, match="drop-out masks would differ; use form = 'first-order'"):
        pf.simulate(replace(task, model=dropping), pf.PerFedAvg(form="hessian-free"), rounds=1)
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    with pytest.raises(ConfigError, match=r"two gradients of every batch.*use form = 'first-order'"):
        pf.simulate(task, pf.PerFedAvg(form="hessian-free"), rounds=1, privacy=privacy)


@pytest.mark.parametrize(
    ("layer", "drops"),
    [
        (nn.Dropout(0.0), False),
        (nn.Dropout2d(0.1), True),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.1), True),
        (nn.LSTM(4, 4), False),
    ],
)
def test_any_layer_with_drop_out_is_refused_and_none_without(task, layer, drops):
    setting = replace(task, model=lambda seed: nn.Sequential(layer)).context(1, 0)
    if not drops:
        pf.PerFedAvg(form="hessian-free").bind(setting)
        return
    pf.PerFedAvg().bind(setting)
    with pytest.raises(ConfigError, match="drop-out masks would differ"):
        pf.PerFedAvg(form="hessian-free").bind(setting)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "second-order"}, "per-fedavg's form"),
        ({"inner_learning_rate": -0.1}, "per-fedavg's inner_learning_rate is -0.1"),
        ({"difference": 0.0}, "per-fedavg's difference is 0.0"),
        ({"adaptation_steps": 0}, "per-fedavg's adaptation_steps is 0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.PerFedAvg(**settings)
