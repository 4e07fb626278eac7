"""What Ditto, APFL, pFedMe and per-FedAvg share: a client's own model stays with it, and claims are those of FedAvg."""

import math
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.federation.client_index import ClientIndex
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import private_plan
from privfl.privacy.door.contract import Batch
from privfl.privacy.noise.source import NoiseSource
from tests.algorithms.federation import digits_task, initial

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.05, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)
METHODS = {
    "ditto": pf.Ditto("uniform"),
    "apfl": pf.APFL("uniform", alpha_decay=0.02),
    "pfedme": pf.PFedMe("uniform", personal_steps=1, warm_start=True),
    "per-fedavg": pf.PerFedAvg("uniform", inner_learning_rate=0.1),
}
SEVERAL_GRADIENTS = {
    "pfedme, K = 3": pf.PFedMe("uniform", personal_steps=3),
    "hessian-free": pf.PerFedAvg("uniform", form="hessian-free"),
}
NOISY = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def sent(task, algorithm, *, client_state=None, dpsgd=None):
    """What clients send and keep in one round, straight from the engine, with the same noise every time."""
    algorithm = algorithm.bind(task.context(5, 0))
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    way = None if dpsgd is None else "layers"
    with LoopEngine(task, algorithm, TRAINING, channel, way=way, workers=1) as engine:
        context = RoundContext(1, 0, NoiseSource.from_key(3), client_state or {})
        return list(engine.train(range(3), {"parameters": initial(task) + 0.01}, context))


class Guarded:
    """A client's door that notes what left it, and gives nonsense for what may not influence an upload."""

    def __init__(self, door, tape):
        self.door, self.tape, self.loss = door, tape, door.loss

    def gradient(self, loss, parameters, batch):
        given = self.door.gradient(loss, parameters, batch)
        self.tape.append(given.clone())
        return given

    def local_only_gradient(self, loss, parameters, batch):
        return torch.full_like(parameters, 7.0)


class Replaying:
    """A door without data: it gives what was noted, and other nonsense."""

    loss = None

    def __init__(self, tape):
        self.tape = list(tape)

    def gradient(self, loss, parameters, batch):
        return self.tape.pop(0)

    def local_only_gradient(self, loss, parameters, batch):
        return torch.full_like(parameters, -1e6)


def guarded(algorithm, tape):
    """``algorithm``, which meets only doors that are guarded."""
    kind = type(algorithm)

    class Watched(kind):
        def step(self, local, received, batch, client, training):
            super().step(local, received, batch, Guarded(client, tape), training)

        def conclude(self, local, received, everything, client, training):
            super().conclude(local, received, everything, Guarded(client, tape), training)

    return Watched(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm)})


@pytest.mark.parametrize("name", [*METHODS, *SEVERAL_GRADIENTS])
def test_neither_gradients_that_stay_nor_what_is_kept_influence_an_upload(task, name):
    algorithm = {**METHODS, **SEVERAL_GRADIENTS}[name]
    usual = sent(task, algorithm)
    like = usual[0].client_state
    other = {client: {key: torch.full_like(value, 0.9) for key, value in like.items()} for client in range(3)}
    for found in (sent(task, algorithm, client_state=other), sent(task, guarded(algorithm, []))):
        for one, two in zip(usual, found, strict=True):
            assert torch.equal(one.upload["update"], two.upload["update"])
            assert one.log == two.log


@pytest.mark.parametrize("name", METHODS)
def test_under_dp_sgd_an_upload_is_a_function_of_one_noisy_gradient_of_each_batch(task, name):
    tape = []
    results = sent(task, guarded(METHODS[name], tape), dpsgd=NOISY)
    algorithm = METHODS[name].bind(task.context(5, 0))
    received = {"parameters": initial(task) + 0.01}
    steps = algorithm.plan(private_plan(TRAINING, NOISY, 0), received).steps
    times = 2 if algorithm.local_only else 1  # a class from outside sends what comes of its second training
    assert len(tape) == times * 3 * steps
    nothing = torch.empty(0)
    for client, result in enumerate(results):
        assert sum(result.log.noisy.values()) == steps
        assert not result.log.bare
        door, local = (
            Replaying(tape[(times * (client + 1) - 1) * steps : times * (client + 1) * steps]),
            algorithm.begin(received, {}, TRAINING),
        )
        local["parameters"] = local["parameters"].clone()
        batch = Batch(lambda: pytest.fail("a batch was counted"), nothing, nothing, nothing)
        for _ in range(steps):
            algorithm.step(local, received, batch, door, TRAINING)
        algorithm.conclude(local, received, batch, door, TRAINING)
        update = algorithm.finish(local, received, TRAINING)["update"]
        assert torch.equal(update, result.upload["update"])
        assert float(update.abs().max()) > 0


@pytest.mark.parametrize("name", ["ditto", "apfl"])
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_row_that_is_not_finite_does_not_end_an_own_model_where_noise_lets_its_client_carry_on(task, name, engine):
    inputs = task.inputs.clone()
    inputs[task.clients[1][0]] = torch.inf
    broken, training = replace(task, inputs=inputs), replace(TRAINING, steps=2)
    for privacy in (pf.Privacy(training=NOISY), pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(1.0, at="client")])):
        run = pf.simulate(
            broken, METHODS[name], rounds=4, training=training, privacy=privacy, execution=pf.Execution(engine=engine)
        )
        assert not run.summary["dropped"]
        assert all(bool(value.isfinite().all()) for value in run.client_state[1].values())
        assert bool(run.client_state[1]["personal"].any())


@pytest.mark.parametrize("name", METHODS)
def test_an_upload_is_one_update_as_in_fedavg(task, name):
    algorithm = METHODS[name]
    assert algorithm.fields() == pf.FedAvg().fields()
    assert algorithm.weights() == "uniform"
    for result in sent(task, algorithm):
        assert {key: value.numel() for key, value in result.upload.items()} == {"update": 650}


def test_defaults_are_the_papers():
    assert pf.Ditto() == pf.Ditto(None, 1.0, proximal_weight=1.0, personal_learning_rate=None)
    assert pf.APFL() == pf.APFL(None, 1.0, alpha=0.5, adaptive=True, alpha_updates="round", alpha_decay=0.0)
    pfedme = {"proximal_weight": 15.0, "personal_steps": 5, "personal_learning_rate": 0.05}
    assert pf.PFedMe() == pf.PFedMe(None, 1.0, **pfedme, warm_start=False, theta_decay=0.0)
    per_fedavg = {"inner_learning_rate": 0.01, "difference": 1e-3, "adaptation_steps": 1}
    assert pf.PerFedAvg() == pf.PerFedAvg(None, 1.0, form="first-order", **per_fedavg)


PRIVACY = {
    "none": pf.Privacy(),
    "dp-sgd": pf.Privacy(training=NOISY),
    "noise on updates": pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)]),
}


@cache
def claims(algorithm, privacy, steps=4):
    training = replace(TRAINING, steps=steps)
    run = pf.simulate(digits_task(SIZES), algorithm, rounds=1, training=training, privacy=PRIVACY[privacy])
    return {(cell.unit, cell.observer): (cell.epsilon, cell.reasons) for cell in run.statement.cells}


@pytest.mark.parametrize("name", METHODS)
def test_without_a_mechanism_nothing_is_claimed_for_the_reasons_that_fedavg_has(name):
    ours = claims(METHODS[name], "none")
    assert ours == claims(pf.FedAvg("uniform"), "none")
    assert all(epsilon == math.inf for epsilon, _ in ours.values())


@pytest.mark.parametrize("name", METHODS)
def test_dp_sgd_claims_what_it_claims_for_fedavg_with_as_many_gradients(name):
    ours = claims(METHODS[name], "dp-sgd")
    assert ours == claims(pf.FedAvg("uniform"), "dp-sgd", steps=8 if name == "per-fedavg" else 4)
    assert 0 < ours["sample", "server"][0] < math.inf


@pytest.mark.parametrize("name", [*METHODS, *SEVERAL_GRADIENTS])
def test_noise_that_hides_clients_claims_what_it_claims_for_fedavg(name):
    ours = claims({**METHODS, **SEVERAL_GRADIENTS}[name], "noise on updates")
    assert ours == claims(pf.FedAvg("uniform"), "noise on updates")
    assert 0 < ours["client", "public"][0] < math.inf


@pytest.mark.parametrize("name", METHODS)
def test_permuting_clients_permutes_their_own_models_and_changes_nothing_else(task, name):
    order = (2, 0, 1)
    parts = [task.clients[client].numpy() for client in order]
    permuted = replace(task, clients=ClientIndex.of(parts))
    whole = replace(TRAINING, batch_size=10**6)
    one, two = (pf.simulate(task, METHODS[name], rounds=2, training=whole) for task in (task, permuted))
    torch.testing.assert_close(one.parameters, two.parameters, rtol=0, atol=1e-12)
    for place, client in enumerate(order):
        for key, value in two.client_state[place].items():
            torch.testing.assert_close(value, one.client_state[client][key], rtol=0, atol=1e-12)
    assert not torch.allclose(*(next(iter(one.client_state[client].values())) for client in (0, 1)), atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_never_took_part_uses_the_servers_model(task, name):
    run = pf.simulate(task, METHODS[name], rounds=1, training=TRAINING, cohort=pf.FixedCohort(1))
    (absent, *_) = (client for client in range(3) if not run.client_state.get(client))
    (model,) = run.algorithm.personal(run.server, run.client_state.get(absent, {})).values()
    assert torch.equal(model, run.parameters)


@pytest.mark.parametrize("name", METHODS)
def test_where_clients_hold_two_classes_each_their_own_models_do_better_than_the_servers(name):
    data = digits_task((400,))
    by_class = np.argsort(data.targets.numpy(), kind="stable")
    skewed = replace(data, clients=ClientIndex.of(np.array_split(by_class, 5)))
    task = skewed.with_local_tests(pf.LocalTests(0.3))
    training = pf.LocalTraining(learning_rate=0.05, batch_size=10, epochs=2)
    line = pf.simulate(task, METHODS[name], rounds=3, training=training, evaluate_every=3).metrics[-1]
    assert line["personal_accuracy"] > line["local_accuracy"] + 0.05
